"""Structured output behind a reasoning fails to advance its grammar, and the request ends with an error.

The matcher was advanced with the tokens of the reasoning as well. It reads what it was never meant to, or refuses
the marker and loses what was committed behind it (vLLM issue 46118, repaired by PR 44993). The reasoning here begins
with a letter that the grammar would take, too.
"""

from collections.abc import Iterator

from harness import Documented, Grammar, Lab, Request, Scenario, issue

FAULT = "reasoning-fed-to-the-grammar"


@issue("vllm#46118", title="the grammar reads the reasoning", variants=("fixed", FAULT))
def scenarios(lab: Lab) -> Iterator[Scenario]:
    request = Request(
        id="r0",
        prompt=lab.encode("x y z"),
        max_tokens=30,
        grammar=Grammar(kind="regex", text="([ab][12]){9}"),
        reasoning_end=lab.encode("|")[0],
    )
    yield Scenario(
        name="a reasoning that looks like an answer",
        requests=(request,),
        script={"r0": lab.spell(("", 1, "a"), ("1|a", 3, "b"), ("2", 2, "a"))},
        must_observe={"reasoning ends in window": 1},
        documented={FAULT: Documented(failure="ledger", tensor="matcher history", step=0)},
    )
