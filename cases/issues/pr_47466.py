"""Qwen3.5 with MTP is wrong behind a transfer from a prefill instance, or whenever a request is resumed.

A request counted as decoding as soon as the tokens of its prompt were computed. A resumed one has answers to compute
again, and the rest of them was taken for drafts, which leaves its states in the wrong slots (vLLM PR 47466). The
request is preempted after an answer of four tokens, and a budget of six cuts what it reads again.
"""

from collections.abc import Iterator

from harness import Documented, Event, Lab, Plan, Scenario, issue


@issue(
    "vllm#47466",
    title="the rest of a resumed answer is taken for drafts",
    variants=("fixed", "resumed-tail-verifies"),
)
def scenarios(lab: Lab) -> Iterator[Scenario]:
    yield lab.forced(
        "preempted, then read again in pieces",
        k=3,
        token_budget=6,
        plans={"r0": Plan(prompt=6, turns=((3, 2), (3, 1), (3, 2)))},
        events=(Event(step=3, what="preempt", request="r0"),),
        must_observe={"preemption": 1, "resume": 1},
        documented={"resumed-tail-verifies": Documented(failure="state", tensor="conv", layer=0, step=4)},
    )
