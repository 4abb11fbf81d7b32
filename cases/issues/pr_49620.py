"""A preemption while a verify step is in flight ends in an illegal address (vLLM PR 49620, issue 41190).

With asynchronous scheduling the results of that step arrive after the request has lost its memory. Applied, they make
it claim computed tokens that no block holds any more. The request is preempted in its fourth step.
"""

from collections.abc import Iterator

from harness import Documented, Event, Lab, Plan, Scenario, issue


@issue(
    "vllm#49620",
    title="late results of a preempted request are applied",
    variants=("fixed", "late-frame-applied"),
)
def scenarios(lab: Lab) -> Iterator[Scenario]:
    yield lab.forced(
        "preempted in flight",
        k=3,
        regime="placeholder",
        plans={"r0": Plan(turns=((3, 2), (3, 3), (3, 1)))},
        events=(Event(step=3, what="preempt", request="r0"),),
        must_observe={"preemption": 1},
        documented={"late-frame-applied": Documented(failure="state", tensor="conv", layer=0)},
    )
