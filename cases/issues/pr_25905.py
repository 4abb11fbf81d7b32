"""A request's answer is unconstrained after the end token was drafted and rejected (vLLM PR 25905).

The matcher takes the drafts to make their masks and is rolled back, but its flag "terminated" stayed, and whoever is
terminated is not masked or advanced any more. The second draft here is the end token, legal and rejected.
"""

from collections.abc import Iterator

from harness import Documented, Grammar, Lab, Request, Scenario, issue


@issue("vllm#25905", title="a rejected end token ends the grammar", variants=("fixed", "end-stays-in-force"))
def scenarios(lab: Lab) -> Iterator[Scenario]:
    grammar = Grammar(kind="regex", text="([a-z][0-9]){1,9}")
    yield Scenario(
        name="the end token is rejected",
        requests=(Request(id="r0", prompt=lab.encode("x y z"), max_tokens=30, grammar=grammar),),
        script={"r0": lab.spell(("", 1, "a"), ("1$", 2, "c"), ("3x4", 4, "x"))},
        must_observe={"rollback": 1},
        documented={"end-stays-in-force": Documented(failure="grammar", tensor="mask", step=1)},
    )
