"""Padded rows read and write in front of the pool of states (vLLM PR 33326).

Rows that pad a captured batch were marked with slot -1, and the recurrence took that for a slot like any other: its
offset is negative. The pools of this harness have guards on both sides, and its plain kernels refuse such a slot.
"""

from collections.abc import Iterator

from harness import Documented, Lab, Plan, Scenario, issue

FAULT = "padding-is-minus-one"


@issue("vllm#33326", title="slot -1 of a padded row is taken for a slot", variants=("fixed", FAULT))
def scenarios(lab: Lab) -> Iterator[Scenario]:
    yield lab.forced(
        "two rows where four fit",
        k=3,
        capture_sizes=(16,),
        max_num_seqs=4,
        plans={f"r{i}": Plan(turns=((3, 4), (3, 1))) for i in range(2)},
        must_observe={"padded rows": 1},
        documented={FAULT: Documented(failure="crash", otherwise="memory", step=1)},
    )
