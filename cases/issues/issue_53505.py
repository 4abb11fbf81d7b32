"""Output degenerates behind a prefix hit, where an accepted run had ended just on a block (vLLM issue 53505).

States are filed when a row crosses a block boundary. Where the new length lies just on it the copy went backwards,
and an older state was filed. The first request's first verify step ends at twenty tokens, in blocks of four; the
second one's prompt goes on from there.
"""

from collections.abc import Iterator

from harness import Documented, Lab, Plan, Scenario, issue

FAULT = "backwards-at-the-boundary"


@issue("vllm#53505", title="an older state is filed at a boundary", variants=("fixed", FAULT))
def scenarios(lab: Lab) -> Iterator[Scenario]:
    first = lab.forced(
        "an accepted run ends on a boundary",
        k=3,
        block_size=4,
        prefix_caching=True,
        plans={"r0": Plan(prompt=17, turns=((3, 3), (3, 2)))},
        must_observe={"prefix hit": 1, "two or more accepted": 1},
        documented={FAULT: Documented(failure="state", tensor="conv", layer=0)},
    )
    yield lab.followed_by(first, Plan(prompt=22, arrival=6, turns=((2, 2),)))
