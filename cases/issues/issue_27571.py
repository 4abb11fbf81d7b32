"""Qwen3-Next dies with an assertion about the shape of its slots, or with an illegal address (vLLM issue 27571).

A captured batch has more rows than there are requests. The tokens were padded to it and the table of slots was cut
to the real rows, so the two disagree as soon as a batch is no captured size; PR 28202 repaired it. Two rows of four
tokens run here in a captured batch of sixteen.
"""

from collections.abc import Iterator

from harness import Documented, Lab, Plan, Scenario, issue


@issue(
    "vllm#27571", title="padded tokens and slots that were not padded", variants=("fixed", "slots-not-padded")
)
def scenarios(lab: Lab) -> Iterator[Scenario]:
    yield lab.forced(
        "two rows where four fit",
        k=3,
        capture_sizes=(16,),
        max_num_seqs=4,
        plans={f"r{i}": Plan(turns=((3, 4), (3, 1))) for i in range(2)},
        must_observe={"padded rows": 1},
        documented={"slots-not-padded": Documented(failure="crash", step=1)},
    )
