"""Kimi-K3 with prompt-lookup drafts faults on batches that mix speculative and other rows (vLLM issue 52792).

A part of the table of slots was handed to the verify kernel as it stood. Where a prompt comes before a speculative
row in the batch, that row got the prompt's slots. Here prompts stand first, and one arrives while another decodes.
"""

from collections.abc import Iterator

from harness import Documented, Lab, Plan, Scenario, issue


@issue(
    "vllm#52792",
    title="the first rows of the slot table for the speculative rows",
    variants=("fixed", "table-of-the-first-rows"),
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
        documented={"table-of-the-first-rows": Documented(failure="state", tensor="conv", layer=0, step=2)},
    )
