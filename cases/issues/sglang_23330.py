"""An adaptive number of drafts breaks verification on hybrid models (SGLang issue 23330).

The tables of slots were made for the number of drafts at the start. When it rises while the engine runs, the columns
for the further tokens are not there. Here k is one for two steps and then three.
"""

from collections.abc import Iterator

from harness import Documented, Event, Lab, Plan, Scenario, issue

FAULT = "columns-of-the-first-k"


@issue("sglang#23330", title="tables sized by the first number of drafts", variants=("fixed", FAULT))
def scenarios(lab: Lab) -> Iterator[Scenario]:
    yield lab.forced(
        "k rises from one to three",
        k=3,
        plans={"r0": Plan(turns=((1, 2), (3, 4), (3, 2)))},
        events=(Event(step=0, what="draft length", k=1), Event(step=2, what="draft length", k=3)),
        must_observe={"k change": 2, "draft length rises": 1},
        documented={FAULT: Documented(failure="crash", step=3)},
    )
