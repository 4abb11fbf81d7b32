"""The engine does not start where a captured size is larger than the number of state slots (vLLM issue 34094).

Capture asserted a cache line for each row that a captured size could hold, although no step ever needs as many; PR
34571 took the assertion away. The engine here may have four requests and captures batches of thirty-two tokens.
"""

from collections.abc import Iterator

from harness import Documented, Lab, Plan, Scenario, issue

FAULT = "more-tokens-than-slots"


@issue("vllm#34094", title="captured sizes larger than the pool of slots", variants=("fixed", FAULT))
def scenarios(lab: Lab) -> Iterator[Scenario]:
    yield lab.forced(
        "a large captured size",
        k=3,
        capture_sizes=(32,),
        max_num_seqs=4,
        plans={f"r{i}": Plan(turns=((3, 4), (3, 1))) for i in range(2)},
        must_observe={"padded tokens": 1},
        documented={FAULT: Documented(failure="crash", step=1)},
    )
