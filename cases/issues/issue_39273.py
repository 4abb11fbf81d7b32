"""Repetition loops and dropped tokens with MTP on hybrid models, while acceptance metrics look healthy.

A request whose drafts were all trimmed leaves the speculative path. The plain one reads slot 0 at offset 0, so what
the step before accepted beyond its first token never enters the state (vLLM issues 39273 and 40875). A grammar trims
r0 to nothing right after it accepted four tokens; r1, which always has drafts, is a witness.
"""

from collections.abc import Iterator

from harness import Documented, Lab, Plan, Scenario, issue


@issue(
    "vllm#39273", title="a row without drafts forgets what it accepted", variants=("fixed", "zero-draft-row")
)
def scenarios(lab: Lab) -> Iterator[Scenario]:
    yield lab.forced(
        "trimmed to zero",
        k=3,
        plans={
            "r0": Plan(guided=True, turns=((3, 4), (0, 1), (2, 2))),
            "r1": Plan(turns=((3, 2), (2, 3), (3, 1))),
        },
        must_observe={"no drafts after several accepted": 1, "grammar trims to zero": 1},
        documented={"zero-draft-row": Documented(failure="state", tensor="conv", layer=0, step=2)},
    )
