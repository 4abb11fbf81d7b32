"""Two objections of the review of vLLM PR 24957, the fix of issues 24881 and 24730.

One: what should the persistent tensors of a padded batch be sized by? By requests, rows are lost or a copy does not
fit; by tokens, most of what is launched is empty. Two: the row length is a compile-time constant that changes at run
time. In the merged kernel it is the fixed k + 1, so one compiled variant serves every batch; taken from the batch, it
is compiled again for every length that a trim leaves.
"""

from collections.abc import Iterator

from harness import Documented, Lab, Plan, Scenario, issue

VARIANTS = ("buffers-by-requests", "buffers-by-tokens", "as-merged", "constexpr-length", "fixed")


@issue("vllm#24957", title="review of the fix: buffer sizes and compile-time lengths", variants=VARIANTS)
def scenarios(lab: Lab) -> Iterator[Scenario]:
    short_rows = {f"r{i}": Plan(guided=True, turns=((1, 1 + i % 2), (1, 1))) for i in range(10)}
    yield lab.forced(
        "1a: as many rows as fit",
        title="10 rows of 2 tokens, k=2, padded to 24 tokens, room for 24 requests",
        k=2,
        capture_sizes=(24,),
        max_num_seqs=24,
        plans=short_rows,
        must_observe={"padded tokens": 2, "padded rows": 2},
        passes=("buffers-by-tokens", "as-merged", "constexpr-length"),
        documented={"buffers-by-requests": Documented(failure="state", tensor="conv", layer=0, step=1)},
    )
    yield lab.forced(
        "1b: a full batch",
        title="the same rows where 10 requests are the limit: 20 tokens meet a tensor of 10",
        k=2,
        capture_sizes=(24,),
        max_num_seqs=10,
        plans=short_rows,
        must_observe={"padded tokens": 2},
        passes=("buffers-by-tokens", "as-merged", "constexpr-length"),
        documented={"buffers-by-requests": Documented(failure="crash", message="size of tensor", step=1)},
    )
    yield lab.forced(
        "2: lengths that change",
        title="a grammar trims whole batches to 4, 3, 2 and 1 tokens a row: how often is a kernel compiled?",
        k=3,
        plans={
            f"r{i}": Plan(guided=True, turns=((3, 2 + i), (2, 1 + i), (1, 1), (0, 1), (3, 1), (1 + i, 2)))
            for i in range(3)
        },
        most_compilations=1,
        passes=("buffers-by-requests", "buffers-by-tokens", "as-merged"),
        must_observe={"unequal rows": 1, "grammar trim": 8, "verify step without drafts": 1},
        documented={"constexpr-length": Documented(failure="recompile", message="compiled 4 times")},
    )
