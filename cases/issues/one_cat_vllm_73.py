"""When requests leave, others fail with "missing cached draft probabilities" (1Cat-vLLM issue 73).

What belongs to a request was kept by the row that it had. When another one leaves, the last row moves into the hole,
and what was kept stays behind: here an accepted count, so that r2 reads its state by the count of who left.
"""

from collections.abc import Iterator

from harness import Documented, Lab, Plan, Scenario, issue


@issue(
    "1Cat-vLLM#73",
    title="what is kept by row does not move with it",
    variants=("fixed", "counts-do-not-move"),
)
def scenarios(lab: Lab) -> Iterator[Scenario]:
    yield lab.forced(
        "the last row moves",
        k=3,
        plans={
            "r0": Plan(turns=((3, 1),)),
            "r1": Plan(turns=((3, 4), (3, 2))),
            "r2": Plan(turns=((3, 4), (3, 2), (3, 3))),
        },
        must_observe={"row move": 1},
        documented={"counts-do-not-move": Documented(failure="state", tensor="conv", layer=0, step=2)},
    )
