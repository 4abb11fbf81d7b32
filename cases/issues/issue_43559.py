"""Accuracy falls by 20 to 40 points with prefix caching and MTP, and nothing is reported (vLLM issue 43559).

A drafter's own cache depends on the next token, so the last block of a hit is dropped; only the attention group did
that. The recurrent layers started a block further on, and its tokens are folded in twice. Two requests share a prompt
of eighteen tokens in blocks of four.
"""

from collections.abc import Iterator

from harness import Documented, Lab, Request, Scenario, issue

FAULT = "state-keeps-the-dropped-block"


@issue("vllm#43559", title="the recurrent state of a block that attention dropped", variants=("fixed", FAULT))
def scenarios(lab: Lab) -> Iterator[Scenario]:
    prompt = lab.prompt(18)
    yield lab.natural(
        "a prompt for the second time",
        k=3,
        block_size=4,
        prefix_caching=True,
        requests=[
            Request(id=name, prompt=prompt, max_tokens=3, arrival=6 * i, ignore_eos=True)
            for i, name in enumerate("ab")
        ],
        must_observe={"prefix hit": 1},
        documented={FAULT: Documented(failure="state", layer=0)},
    )
