"""On Metal a request that was preempted and resumed goes on from its old state (vllm-metal issue 488).

Preemption frees a request's blocks and starts it again from its first token, but its recurrent slots were neither
freed nor cleared: all its tokens are folded into a state that has them already. The request is preempted while it
decodes and computes everything again.
"""

from collections.abc import Iterator

from harness import Documented, Event, Lab, Plan, Scenario, issue


@issue(
    "vllm-metal#488",
    title="a preempted request goes on from its old state",
    variants=("fixed", "preempted-goes-on"),
)
def scenarios(lab: Lab) -> Iterator[Scenario]:
    yield lab.forced(
        "preempted and computed again",
        k=2,
        plans={"r0": Plan(turns=((2, 2), (2, 1), (2, 2)))},
        events=(Event(step=2, what="preempt", request="r0"),),
        must_observe={"preemption": 1, "resume": 1},
        documented={"preempted-goes-on": Documented(failure="state", layer=0, step=2)},
    )
