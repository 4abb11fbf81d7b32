"""The text of vLLM issue 24730 was not available to us: all that is known is that PR 24957 says it fixes it.

So this case covers what the code before that change implies for guided rollback beside speculation: token counts
that include prompt tokens, padded row counts that lose short rows, persistent tensors sized by requests but indexed
by tokens, accepted counts that differ, and the accepted count that a step without any draft leaves stale.
"""

from collections.abc import Iterator

from harness import Documented, Lab, Plan, Scenario, issue

REPAIRED = ("as-merged", "stale-accepted-count")
VARIANTS = ("before-fix", "as-merged", "stale-accepted-count", "fixed")


@issue(
    "vllm#24730",
    title="guided rollback in mixed batches, lost rows, small buffers, stale counts",
    variants=VARIANTS,
    live=("before-fix", "as-merged"),
)
def scenarios(lab: Lab) -> Iterator[Scenario]:
    yield lab.forced(
        "a: prompt beside verify rows",
        title="a prompt joins two guided rows of equal length: the product of rows and k + 1 over-counts",
        k=3,
        plans={
            "r0": Plan(guided=True, turns=((1, 2), (1, 1), (3, 2), (2, 3))),
            "r1": Plan(guided=True, turns=((1, 1), (1, 2), (3, 4), (2, 1))),
            "r2": Plan(arrival=2, prompt=17, turns=((3, 3), (2, 1))),
        },
        must_observe={"prompt beside verify rows": 1, "grammar trim": 2, "rollback": 3},
        documented={
            "before-fix": Documented(failure="crash", message="is invalid for input of size", step=2)
        },
        passes=REPAIRED,
    )
    yield lab.forced(
        "a2: prompt before verify rows",
        title="the same rows the other way round: what is gathered by row must not be taken in order",
        k=3,
        reverse_rows=True,
        plans={
            "r0": Plan(guided=True, turns=((1, 2), (1, 1), (3, 2), (2, 3))),
            "r1": Plan(guided=True, turns=((2, 1), (1, 2), (3, 4), (2, 1))),
            "r2": Plan(arrival=2, prompt=17, turns=((3, 3), (2, 1))),
            "r3": Plan(arrival=3, prompt=1, turns=((3, 1), (1, 2))),
        },
        must_observe={"prompt before a verify row": 2, "unequal rows": 2, "rollback": 3},
        passes=REPAIRED,
    )
    yield lab.forced(
        "b: lost rows",
        title="10 rows of 2 tokens, k=2, padded to 24 tokens: 24 / 3 = 8 rows are computed",
        k=2,
        capture_sizes=(24,),
        max_num_seqs=24,
        plans={f"r{i}": Plan(guided=True, turns=((1, 1 + i % 2), (1, 1))) for i in range(10)},
        must_observe={"padded rows": 1, "padded tokens": 1, "grammar trim": 10},
        documented={"before-fix": Documented(failure="state", tensor="conv", layer=0, step=1)},
        passes=REPAIRED,
    )
    yield lab.forced(
        "c: small buffers",
        title="the token mask is sized by requests: 10 entries for 20 tokens",
        k=2,
        capture_sizes=(24,),
        max_num_seqs=10,
        plans={f"r{i}": Plan(guided=True, turns=((1, 1 + i % 2), (1, 1))) for i in range(10)},
        must_observe={"padded tokens": 1},
        documented={"before-fix": Documented(failure="crash", message="size of tensor", step=1)},
        passes=REPAIRED,
    )
    yield lab.forced(
        "d: mixed accepted counts",
        title="guided and free requests arrive one after the other, roll back, and accept different counts",
        k=3,
        plans={
            f"r{i}": Plan(
                guided=i % 2 == 1, arrival=2 * i, prompt=3 + 5 * i, turns=lab.chain(10, k=3, fewest=1)
            )
            for i in range(5)
        },
        token_budget=24,
        must_observe={"different accepted counts": 6, "prompt beside verify rows": 3, "rollback": 8},
        passes=REPAIRED,
    )
    yield lab.forced(
        "e: a step without drafts",
        title="several tokens are accepted, then no request has a draft, then drafts come back",
        k=3,
        plans={
            "r0": Plan(guided=True, turns=((3, 4), (0, 1), (3, 2), (2, 3))),
            "r1": Plan(guided=True, turns=((3, 3), (0, 1), (2, 1), (3, 1))),
        },
        must_observe={"verify step without drafts": 1, "drafts after a step without": 2},
        documented={
            "as-merged": Documented(failure="state", layer=0, step=2),
            "stale-accepted-count": Documented(failure="state", layer=0, step=2),
        },
    )
    yield lab.natural(
        "f: natural, arrivals",
        title="guided and free requests keep arriving: every batch mixes prompts, verify rows and trims",
        k=3,
        token_budget=40,
        max_num_seqs=5,
        requests=lab.mixed_requests(16, max_tokens=96, every=3),
        must_observe={"prompt beside verify rows": 5, "grammar trim": 10, "rollback": 50, "slot reuse": 8},
    )
