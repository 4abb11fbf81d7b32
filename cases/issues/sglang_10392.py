"""Qwen3-Next with MTP does not start with data parallelism: an idle rank's batch is empty (SGLang PR 10392).

A rank without requests takes part in each step all the same, and code that is right for one row or more fails on
none. In this engine the longest row of an empty batch is asked for. The dummy step comes between two real ones.
"""

from collections.abc import Iterator

from harness import Documented, Event, Lab, Plan, Scenario, issue

FAULT = "idle-batch-has-a-row"


@issue("sglang#10392", title="the batch of an idle rank is empty", variants=("fixed", FAULT))
def scenarios(lab: Lab) -> Iterator[Scenario]:
    yield lab.forced(
        "a dummy step between two real ones",
        k=3,
        capture_sizes=(8,),
        plans={"r0": Plan(turns=((3, 4), (3, 2)))},
        events=(Event(step=2, what="dummy"),),
        must_observe={"dummy step": 1, "padded rows": 3},
        documented={FAULT: Documented(failure="crash", step=3)},
    )
