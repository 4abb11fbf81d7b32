"""Qwen3-Next with MTP loses accuracy when requests are batched (vLLM PR 30632).

The tokens of prompts and of verify rows are gathered by sorting a mask, and the sort was not stable: the right tokens
came in another order than their rows say. A prompt arrives while another request verifies, so both kinds meet.
"""

from collections.abc import Iterator

from harness import Documented, Lab, Plan, Scenario, issue


@issue(
    "vllm#30632",
    title="tokens of mixed batches gathered by an unstable sort",
    variants=("fixed", "unstable-sort"),
)
def scenarios(lab: Lab) -> Iterator[Scenario]:
    plans = {
        "r0": Plan(turns=((2, 2), (2, 1), (2, 2))),
        "late": Plan(prompt=7, arrival=2, turns=((1, 1),)),
    }
    documented = {"unstable-sort": Documented(failure="state", tensor="conv", layer=0, step=2)}
    yield lab.forced(
        "a prompt joins",
        k=2,
        plans=plans,
        must_observe={"prompt beside verify rows": 1},
        documented=documented,
    )
    yield lab.forced(
        "a prompt joins captured rows",
        k=2,
        capture_sizes=(8,),
        plans=plans,
        must_observe={"prompt beside verify rows": 1, "padded rows": 2},
        documented=documented,
    )
