"""When padding became block 0 instead of -1, padded rows began to write into it (vLLM PRs 35431 and 39064).

The kernels still looked for ids below zero. Block 0 is nobody's and everybody's: what one padded row leaves there is
read by the next. Two requests run in a captured batch for four, so there is padding in each step.
"""

from collections.abc import Iterator

from harness import Documented, Lab, Plan, Scenario, issue


@issue("vllm#35431", title="padded rows write the null slot", variants=("fixed", "null-slot-is-a-slot"))
def scenarios(lab: Lab) -> Iterator[Scenario]:
    yield lab.forced(
        "two rows where four fit",
        k=3,
        capture_sizes=(16,),
        max_num_seqs=4,
        plans={f"r{i}": Plan(turns=((3, 4), (3, 1))) for i in range(2)},
        must_observe={"padded rows": 1},
        documented={"null-slot-is-a-slot": Documented(failure="memory", step=1)},
    )
