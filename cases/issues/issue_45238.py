"""With drafts the prefix cache never has a hit, and nobody notices (vLLM issue 45238).

States were kept one block above what a lookup can use once the drafter's block has been dropped. The server is right
and slow; only the counter of hits tells. Two requests share a prompt of eighteen tokens in blocks of four.
"""

from collections.abc import Iterator

from harness import Documented, Lab, Request, Scenario, issue

FAULT = "snapshot-one-block-above"


@issue("vllm#45238", title="states kept where no lookup finds them", variants=("fixed", FAULT))
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
        documented={FAULT: Documented(failure="ledger")},
    )
