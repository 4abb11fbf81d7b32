"""A new request with a prompt of one token continues somebody else's text (vLLM PR 32118).

A row of one token was taken for a decode, by its length alone, so its state counted as its own and was not cleared:
it is the one that the slot's former owner left. One request at a time is allowed here, so the second, of one token,
gets the first one's slots.
"""

from collections.abc import Iterator

from harness import Documented, Lab, Plan, Scenario, issue

FAULT = "one-token-prompt-decodes"


@issue("vllm#32118", title="a prompt of one token starts from a stale state", variants=("fixed", FAULT))
def scenarios(lab: Lab) -> Iterator[Scenario]:
    yield lab.forced(
        "one token in a used slot",
        k=2,
        max_num_seqs=1,
        plans={
            "r0": Plan(turns=((2, 2),)),
            "r1": Plan(prompt=1, arrival=1, turns=((2, 1),)),
        },
        must_observe={"slot reuse": 1, "one-token prompt row": 1},
        documented={FAULT: Documented(failure="state", tensor="conv", layer=0, step=2)},
    )
