"""Qwen3-Next with MTP and two drafts fails an assertion while graphs are captured; with three it starts.

Captured sizes were taken to be multiples of k + 1: eight tokens are two rows of four, but no whole rows of three
(vLLM issue 25647, repaired by PR 25743). Both sizes of draft run here in a captured batch of eight.
"""

from collections.abc import Iterator

from harness import Documented, Lab, Plan, Scenario, issue

FAULT = "capture-of-whole-rows"


@issue("vllm#25647", title="captured sizes that are no multiple of k + 1", variants=("fixed", FAULT))
def scenarios(lab: Lab) -> Iterator[Scenario]:
    yield lab.forced(
        "k=2: rows of three in eight tokens",
        k=2,
        capture_sizes=(8,),
        max_num_seqs=4,
        plans={f"r{i}": Plan(turns=((2, 2), (2, 1))) for i in range(2)},
        must_observe={"padded tokens": 2},
        documented={FAULT: Documented(failure="crash", message="no whole rows of 3", step=1)},
    )
    yield lab.forced(
        "k=3: rows of four in eight tokens",
        k=3,
        capture_sizes=(8,),
        max_num_seqs=4,
        plans={f"r{i}": Plan(turns=((3, 2), (2, 1))) for i in range(2)},
        must_observe={"padded tokens": 1},
        passes=(FAULT,),
    )
