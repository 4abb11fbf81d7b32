"""States are corrupted after a request has finished while the batch is padded (vLLM PR 37728).

The row of a request that has left keeps its block ids, and the next captured batch pads with that row: padding is
written into memory that is free, or by now somebody else's. r1 leaves a step before r0, in batches for four.
"""

from collections.abc import Iterator

from harness import Documented, Lab, Plan, Scenario, issue


@issue(
    "vllm#37728", title="padded rows keep the slots of who left", variants=("fixed", "padded-rows-keep-slots")
)
def scenarios(lab: Lab) -> Iterator[Scenario]:
    yield lab.forced(
        "one leaves, the batch stays padded",
        k=3,
        capture_sizes=(16,),
        max_num_seqs=4,
        plans={"r0": Plan(turns=((3, 4), (3, 2))), "r1": Plan(turns=((3, 4),))},
        must_observe={"padded rows": 2},
        documented={"padded-rows-keep-slots": Documented(failure="memory", step=2)},
    )
