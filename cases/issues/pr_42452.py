"""Output with structural tags is unconstrained behind the tag (vLLM PR 42452).

In the step in which the grammar begins to rule it was not advanced, so what was committed behind the marker is read a
step late, and the masks until then are those of its start. The marker is the second draft here, and the draft behind
it is accepted.
"""

from collections.abc import Iterator

from harness import Documented, Grammar, Lab, Request, Scenario, issue

FAULT = "advance-deferred-at-the-switch"


@issue("vllm#42452", title="the grammar advances a step late where it begins", variants=("fixed", FAULT))
def scenarios(lab: Lab) -> Iterator[Scenario]:
    request = Request(
        id="r0",
        prompt=lab.encode("x y z"),
        max_tokens=30,
        grammar=Grammar(kind="regex", text="([ab][12]){9}"),
        reasoning_end=lab.encode("|")[0],
    )
    yield Scenario(
        name="a draft behind the marker is accepted",
        requests=(request,),
        script={"r0": lab.spell(("", 1, "x"), ("x|a", 4, "1"), ("b2a", 4, "1"))},
        must_observe={"reasoning ends in window": 1},
        documented={FAULT: Documented(failure="ledger", tensor="matcher history", step=1)},
    )
