"""vLLM 0.10.2 dies on Qwen3-Next with MTP and guided decoding: "shape '[15, -1, 2048]' is invalid".

Fifteen guided requests, two drafts each, except one whose first draft ends its grammar: the second is refused, and
the verify batch has 44 tokens where 15 rows of 3 were assumed. Where the token count happens to divide, nothing
crashes and tokens are regrouped across requests. PR 24957 lets rows be unequal, but sends a row whose drafts were
all trimmed down the path without an accepted offset.
"""

from collections.abc import Iterator

from harness import Documented, Lab, Plan, Scenario, issue

CONV = Documented(failure="state", tensor="conv", layer=0, step=1)


@issue(
    "vllm#24881",
    title="guided decoding trims drafts: verify rows of unequal length",
    live=("before-fix", "as-merged"),
)
def scenarios(lab: Lab) -> Iterator[Scenario]:
    full = {f"r{i}": Plan(guided=True, turns=((2, 1 + i % 3),)) for i in range(14)}
    size = 44 * lab.conv_dim
    yield lab.forced(
        "a: the public dump",
        title="15 guided requests, k=2: 14 rows of 3 tokens, one whose single draft is the end token",
        k=2,
        plans={**full, "r14": Plan(guided=True, turns=(), ends=True)},
        must_observe={"unequal rows": 1, "grammar trim": 1, "different accepted counts": 1},
        passes=("as-merged",),
        documented={
            "before-fix": Documented(
                failure="crash",
                message=f"shape '[15, -1, {lab.conv_dim}]' is invalid for input of size {size}",
                step=1,
            )
        },
    )
    for name, kept in (("b1: silent, rows (4,2)", (3, 1)), ("b2: silent, rows (4,3,2)", (3, 2, 1))):
        yield lab.forced(
            name,
            title="the token count divides by the rows: nothing crashes, tokens of two requests are mixed",
            k=3,
            plans={f"r{i}": Plan(guided=True, turns=((n, n), (n, 1))) for i, n in enumerate(kept)},
            must_observe={"unequal rows": 1, "grammar trim": 1, "rollback": 2},
            passes=("as-merged",),
            documented={"before-fix": CONV},
        )
    yield lab.forced(
        "c: chained accepted counts",
        title="accepted counts differ within a batch and from step to step, and exceed the next row's length",
        k=3,
        plans={f"r{i}": Plan(guided=i % 2 == 0, turns=lab.chain(14, k=3, fewest=1)) for i in range(5)},
        must_observe={
            "different accepted counts": 10,
            "row shorter than accepted before": 1,
            "rollback": 10,
            "all drafts accepted": 3,
        },
        passes=("as-merged",),
    )
    yield lab.forced(
        "d: trimmed to zero",
        title="the grammar trims a request to no drafts right after it accepted two or more",
        k=3,
        plans={
            "r0": Plan(guided=True, turns=((3, 4), (0, 1), (2, 2), (0, 1), (3, 1))),
            "r1": Plan(guided=True, turns=((2, 1), (3, 3), (0, 1), (1, 2), (2, 2))),
            "r2": Plan(turns=((3, 2), (2, 3), (3, 4), (3, 1), (1, 1))),
        },
        must_observe={"no drafts after several accepted": 3, "grammar trims to zero": 3},
        documented={"as-merged": Documented(failure="state", tensor="conv", layer=0, step=2)},
    )
    yield lab.natural(
        "e: natural, MTP",
        title="16 requests of 96 tokens, JSON schemas and free text, the model's own drafts",
        k=3,
        requests=lab.mixed_requests(16, max_tokens=96),
        must_observe={"grammar trims to zero": 1, "no drafts after several accepted": 1, "rollback": 50},
        documented={"as-merged": Documented(failure="state", layer=0)},
    )
    yield lab.natural(
        "f: natural, token budget",
        title="the step's token budget cuts drafts and pieces prompts",
        k=3,
        token_budget=8,
        requests=lab.mixed_requests(6, max_tokens=32),
        must_observe={"schedule trim": 5, "unequal rows": 5, "prompt in pieces": 1},
    )
    yield lab.natural(
        "g: natural, model length",
        title="max_model_len cuts the last drafts of long requests",
        k=3,
        max_model_len=56,
        requests=lab.mixed_requests(6, max_tokens=96),
        must_observe={"schedule trim": 2, "unequal rows": 2},
    )
    yield lab.natural(
        "h: natural, n-gram",
        title="a prompt-lookup drafter proposes between none and k drafts",
        k=3,
        drafter="ngram",
        requests=lab.mixed_requests(8, max_tokens=48),
        must_observe={"unequal rows": 5, "no drafts after several accepted": 1},
        documented={"as-merged": Documented(failure="state", layer=0)},
    )
