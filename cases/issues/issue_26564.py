"""Qwen3-Next with MTP fails on FlashInfer: the drafter gets metadata of the wrong kind (vLLM issue 26564).

Caches come in groups, one for attention and one for the recurrent layers, and the drafter took those of group 0,
which belong to the recurrent layers. In this engine its keys then land in blocks that it does not own.
"""

from collections.abc import Iterator

from harness import Documented, Lab, Request, Scenario, issue

FAULT = "drafter-in-the-wrong-group"


@issue("vllm#26564", title="the drafter writes by the other cache group", variants=("fixed", FAULT))
def scenarios(lab: Lab) -> Iterator[Scenario]:
    # The first prompt fills a block, so that from then on slots and blocks of one number are not one request's.
    yield lab.natural(
        "two requests draft",
        k=3,
        requests=[
            Request(id=f"r{i}", prompt=lab.prompt(20 - 8 * i), max_tokens=8, arrival=i, ignore_eos=True)
            for i in range(2)
        ],
        must_observe={"prompt beside verify rows": 1},
        documented={FAULT: Documented(failure="memory")},
    )
