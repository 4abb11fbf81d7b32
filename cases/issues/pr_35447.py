"""Nemotron-H with MTP and prompts in pieces forgets part of a prompt (vLLM PR 35447).

A piece of k + 1 tokens or fewer was taken for a verify row: it leaves a state behind each of its tokens, in one slot
each, and the next step reads the first of them. A token budget of eight cuts this prompt of eleven tokens, and its
second piece has three.
"""

from collections.abc import Iterator

from harness import Documented, Lab, Plan, Scenario, issue

FAULT = "short-prompt-piece-verifies"


@issue("vllm#35447", title="a short piece of a prompt is taken for a verify row", variants=("fixed", FAULT))
def scenarios(lab: Lab) -> Iterator[Scenario]:
    yield lab.forced(
        "a piece of three tokens",
        k=3,
        token_budget=8,
        plans={"r0": Plan(prompt=11, turns=((2, 2),))},
        must_observe={"prompt in pieces": 1},
        documented={FAULT: Documented(failure="state", tensor="conv", layer=0, step=1)},
    )
