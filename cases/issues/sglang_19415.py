"""Verification dies, or a cached prefix is overwritten, after a prompt whose state was kept (SGLang PR 19415).

The mark that had the prompt's state filed was left on for the verify steps behind it, so the same prefix is filed
again with a later state. The second request begins
with the first one's prompt.
"""

from collections.abc import Iterator

from harness import Documented, Lab, Plan, Scenario, issue

FAULT = "prompt-mark-left-on"


@issue("sglang#19415", title="a prompt's mark is left on while it verifies", variants=("fixed", FAULT))
def scenarios(lab: Lab) -> Iterator[Scenario]:
    first = lab.forced(
        "a prompt for the second time",
        k=3,
        block_size=4,
        prefix_caching=True,
        plans={"r0": Plan(prompt=11, turns=((3, 2),))},
        must_observe={"prefix hit": 1},
        documented={FAULT: Documented(failure="state", layer=0)},
    )
    yield lab.followed_by(first, Plan(prompt=10, arrival=6, turns=((2, 2),)))
