"""With speculation on, prompts that are read together leave their states in each other's slots.

The slots of a batch of prompts are one column of the table of k + 1 columns, and the convolution kernel ignored the
stride of that view: it took the first numbers of the table, which are all the first prompt's (vLLM PR 25743). Two
prompts of different lengths share a step here, and each then verifies two drafts.
"""

from collections.abc import Iterator

from harness import Documented, Lab, Plan, Scenario, issue


@issue(
    "vllm#25743", title="a column of the slot table, its stride ignored", variants=("fixed", "stride-ignored")
)
def scenarios(lab: Lab) -> Iterator[Scenario]:
    yield lab.forced(
        "two prompts in one step",
        k=2,
        plans={f"r{i}": Plan(prompt=5 + i, turns=((2, 2),)) for i in range(2)},
        must_observe={"several prompts": 1},
        documented={"stride-ignored": Documented(failure="state", tensor="conv", layer=0, step=0)},
    )
