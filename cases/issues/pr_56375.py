"""A buffer has one entry less than the largest batch has tokens, so only a batch of just that size fails.

Boundaries of n tokens are n + 1 numbers, and the array for them was made for n (vLLM PR 56375). Two rows of four
tokens fill the captured batch of eight to the last place; a step later, with shorter rows, nothing is wrong.
"""

from collections.abc import Iterator

from harness import Documented, Lab, Plan, Scenario, issue


@issue(
    "vllm#56375",
    title="a buffer one short, met by full batches alone",
    variants=("fixed", "buffer-one-short"),
)
def scenarios(lab: Lab) -> Iterator[Scenario]:
    yield lab.forced(
        "just as many tokens as fit",
        k=3,
        capture_sizes=(8,),
        max_num_seqs=4,
        plans={f"r{i}": Plan(turns=((3, 2), (3, 1))) for i in range(2)},
        must_observe={"rollback": 3, "padded rows": 2},
        documented={"buffer-one-short": Documented(failure="crash", step=1)},
    )
