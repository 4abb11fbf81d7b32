"""In mixed batches some rows decay and write with the gates of other tokens (vLLM PRs 51812 and 36754).

Queries, keys and values are gathered for each kind of row; when gating was fused into the kernel, its raw inputs were
not. Whoever stands behind a row of the other kind has the wrong ones. Prompts stand before verify rows here.
"""

from collections.abc import Iterator

from harness import Documented, Lab, Plan, Scenario, issue


@issue(
    "vllm#51812", title="gates are not gathered with their tokens", variants=("fixed", "gates-not-gathered")
)
def scenarios(lab: Lab) -> Iterator[Scenario]:
    yield lab.forced(
        "a prompt before a verify row",
        k=2,
        reverse_rows=True,
        plans={
            "r0": Plan(turns=((2, 2), (2, 1), (2, 2))),
            "late": Plan(prompt=7, arrival=2, turns=((1, 1),)),
        },
        must_observe={"prompt before a verify row": 1},
        documented={"gates-not-gathered": Documented(failure="state", tensor="recurrent", layer=0, step=2)},
    )
