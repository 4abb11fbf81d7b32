"""Qwen3.5 and its successors die with an illegal address some minutes into load, at any k (vLLM issue 40756).

A row whose results are thrown away counts as having accepted nothing. One less than that is the index -1: what lies
before the row in the table is taken for a slot, which is then written. With asynchronous scheduling such a row
exists for each request that has just finished, as r0 has here.
"""

from collections.abc import Iterator

from harness import Documented, Lab, Plan, Scenario, issue


@issue("vllm#40756", title="an accepted count of none", variants=("fixed", "accepted-none"))
def scenarios(lab: Lab) -> Iterator[Scenario]:
    yield lab.forced(
        "a row of a request that is over",
        k=3,
        regime="placeholder",
        plans={"r0": Plan(turns=((3, 2),)), "r1": Plan(turns=((3, 2), (3, 1), (3, 4)))},
        must_observe={"discarded row": 1},
        documented={"accepted-none": Documented(failure="crash")},
    )
