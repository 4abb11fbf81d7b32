"""vLLM checks that a batch has no more requests than its captured sizes, and not that it has no more tokens.

With speculation each request brings several tokens, so persistent tensors that are indexed by token but have one
entry a request are overrun as soon as a batch is large (vLLM issue 24660, repaired by PR 24667). Here three rows of
four tokens run as a captured batch of sixteen, in an engine that may have four requests.
"""

from collections.abc import Iterator

from harness import Documented, Lab, Plan, Scenario, issue


@issue(
    "vllm#24660",
    title="buffers by requests, rows of several tokens",
    variants=("fixed", "token-buffer-by-requests"),
)
def scenarios(lab: Lab) -> Iterator[Scenario]:
    yield lab.forced(
        "three full rows",
        k=3,
        capture_sizes=(16,),
        max_num_seqs=4,
        plans={f"r{i}": Plan(turns=((3, 2), (3, 4))) for i in range(3)},
        must_observe={"padded tokens": 1},
        documented={"token-buffer-by-requests": Documented(failure="crash", step=1)},
    )
