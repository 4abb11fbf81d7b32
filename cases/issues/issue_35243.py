"""With speculation the engine hangs when a request comes near the model's length (vLLM issues 35243 and 40589).

There is no room for a draft then, and whoever decides about rows wants one with a draft or none at all: the request
neither ends nor goes on, and other ranks wait for this one. The model's length is twelve tokens here, and the request
has eleven when its three drafts are cut to none.
"""

from collections.abc import Iterator

from harness import Documented, Lab, Plan, Scenario, issue

FAULT = "waits-for-room-to-draft"


@issue("vllm#35243", title="waits for ever for room to draft", variants=("fixed", FAULT))
def scenarios(lab: Lab) -> Iterator[Scenario]:
    yield lab.forced(
        "room for a token and for no draft",
        k=3,
        max_model_len=12,
        plans={"r0": Plan(turns=((3, 4), (3, 1), (3, 1)))},
        must_observe={"schedule trim": 1},
        documented={FAULT: Documented(failure="crash", message="stalled")},
    )
