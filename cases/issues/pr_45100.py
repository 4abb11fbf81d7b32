"""Accepted counts reach the CPU while the step still writes them (vLLM PR 45100).

The next step is prepared with what was there before, so it reads the state behind another number of tokens. Without
a race the same mistake is a count that is one step old, and that is how it is made here: the request accepts four
tokens, then two, then one.
"""

from collections.abc import Iterator

from harness import Documented, Lab, Plan, Scenario, issue


@issue(
    "vllm#45100",
    title="accepted counts copied a step too early",
    variants=("fixed", "count-copied-too-early"),
)
def scenarios(lab: Lab) -> Iterator[Scenario]:
    yield lab.forced(
        "four accepted, two, one",
        k=3,
        plans={"r0": Plan(turns=((3, 4), (3, 2), (3, 1)))},
        must_observe={"two or more accepted": 2},
        documented={"count-copied-too-early": Documented(failure="state", tensor="conv", layer=0, step=1)},
    )
