"""A preempted request verifies the drafts that it had before (vLLM PR 31944).

They were drafted for a place that it comes to only after it has computed everything again, and by then other tokens
may stand there. Wrong drafts change no greedy answer, so only a check of the drafts themselves sees it.
"""

from collections.abc import Iterator

from harness import Documented, Event, Lab, Plan, Scenario, issue


@issue("vllm#31944", title="drafts outlive a preemption", variants=("fixed", "drafts-survive-preemption"))
def scenarios(lab: Lab) -> Iterator[Scenario]:
    yield lab.forced(
        "preempted with drafts in hand",
        k=3,
        plans={"r0": Plan(turns=((3, 2), (3, 3), (3, 1)))},
        events=(Event(step=2, what="preempt", request="r0"),),
        must_observe={"preemption": 1, "resume": 1},
        documented={"drafts-survive-preemption": Documented(failure="drafts")},
    )
