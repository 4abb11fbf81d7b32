"""The last token of a prompt is padded to k + 1 to fit into a batch of verify rows, and the state is corrupted.

The prefill path keeps the state behind the last position, and that is one of the fillers (vLLM PR 55178). A budget of
eight leaves one token of the late prompt to a step in which r0 verifies.
"""

from collections.abc import Iterator

from harness import Documented, Lab, Plan, Scenario, issue


@issue(
    "vllm#55178", title="a prompt's last token padded with fillers", variants=("fixed", "padded-prompt-tail")
)
def scenarios(lab: Lab) -> Iterator[Scenario]:
    yield lab.forced(
        "one token of a prompt beside a verify row",
        k=2,
        token_budget=8,
        plans={
            "r0": Plan(prompt=3, turns=((2, 2), (2, 1), (2, 2))),
            "late": Plan(prompt=6, arrival=1, turns=((2, 1),)),
        },
        must_observe={"prompt tail of one token": 1, "prompt beside verify rows": 1},
        documented={"padded-prompt-tail": Documented(failure="state", tensor="conv", layer=0, step=2)},
    )
