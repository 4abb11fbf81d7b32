"""Verify rows are treated as prompts when one of them was trimmed (vLLM PR 47381).

Decodes were recognised as the rows of one length at the front of the batch. A trimmed row breaks that rule, and the
full ones behind it run as prompts, which know nothing of an accepted count. A grammar trims r1 and not r0.
"""

from collections.abc import Iterator

from harness import Documented, Lab, Plan, Scenario, issue


@issue(
    "vllm#47381",
    title="behind a trimmed row all rows are prompts",
    variants=("fixed", "trimmed-rows-are-prompts"),
)
def scenarios(lab: Lab) -> Iterator[Scenario]:
    plans = {
        "r0": Plan(guided=True, turns=((3, 4), (3, 2))),
        "r1": Plan(guided=True, turns=((3, 3), (1, 1))),
    }
    documented = {"trimmed-rows-are-prompts": Documented(failure="state", tensor="conv", layer=0, step=2)}
    yield lab.forced(
        "full rows, then unequal ones",
        k=3,
        plans=plans,
        must_observe={"unequal rows": 1, "grammar trim": 1},
        documented=documented,
    )
    yield lab.forced(
        "the same rows, captured",
        k=3,
        capture_sizes=(10,),
        plans=plans,
        must_observe={"unequal rows": 1, "grammar trim": 1, "padded rows": 2},
        documented=documented,
    )
