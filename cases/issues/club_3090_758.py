"""After all drafts of a row were refused, the engine dies with an illegal address (club-3090 issue 758).

With asynchronous scheduling a refused draft stays in its row as the placeholder -1, and the embedding was asked for
that token. A grammar refuses two drafts of three here.
"""

from collections.abc import Iterator

from harness import Documented, Lab, Plan, Scenario, issue


@issue("club-3090#758", title="the embedding of a placeholder", variants=("fixed", "placeholder-embedded"))
def scenarios(lab: Lab) -> Iterator[Scenario]:
    yield lab.forced(
        "two drafts refused",
        k=3,
        regime="placeholder",
        plans={"r0": Plan(guided=True, turns=((1, 2), (3, 1)))},
        must_observe={"placeholder draft": 1},
        documented={"placeholder-embedded": Documented(failure="crash", step=1)},
    )
