"""An idle rank of a data-parallel group writes into slots that other requests may own by now (vLLM PR 49757).

An idle rank runs a dummy step, so that the others need not wait, and it replayed with the slots of its last real
step. Here such a step runs between two real ones, and nothing may change in it.
"""

from collections.abc import Iterator

from harness import Documented, Event, Lab, Plan, Scenario, issue


@issue(
    "vllm#49757", title="a dummy step replays with real slots", variants=("fixed", "dummy-step-keeps-slots")
)
def scenarios(lab: Lab) -> Iterator[Scenario]:
    yield lab.forced(
        "a dummy step between two real ones",
        k=3,
        capture_sizes=(16,),
        max_num_seqs=4,
        plans={"r0": Plan(turns=((3, 4), (3, 2))), "r1": Plan(turns=((3, 4),))},
        events=(Event(step=2, what="dummy"),),
        must_observe={"dummy step": 1, "padded rows": 3},
        documented={"dummy-step-keeps-slots": Documented(failure="memory", step=3)},
    )
