"""Qwen3-Next with MTP dies with an assertion: num_decodes is 1 and num_spec_decodes is 2 (vLLM issue 34845).

Plain decodes and speculative rows were declared to exclude each other, and any row of one token counted as a decode.
The last token of a prompt that was cut is such a row, and here it meets a request that verifies.
"""

from collections.abc import Iterator

from harness import Documented, Lab, Plan, Scenario, issue

FAULT = "kinds-exclude-each-other"


@issue("vllm#34845", title="one-token rows and verify rows exclude each other", variants=("fixed", FAULT))
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
        documented={FAULT: Documented(failure="crash", message="num_spec_decodes: 1", step=2)},
    )
