"""On Ascend the engine dies with "numAcceptedTokens[0]=4 exceeds varlen segment length=2".

The kernel holds the accepted count against the length of the row in front of it, but the count belongs to the row
of the step before: after four accepted tokens a grammar, the token budget or the model's length may leave one draft,
and the batch is legal (vllm-ascend issues 9956 and 10372). One request accepts four tokens and is then trimmed.
"""

from collections.abc import Iterator

from harness import Documented, Lab, Plan, Scenario, issue

FAULT = "accepted-count-against-this-row"


@issue("vllm-ascend#9956", title="accepted counts held against the wrong row", variants=("fixed", FAULT))
def scenarios(lab: Lab) -> Iterator[Scenario]:
    plans = {"r0": Plan(guided=True, turns=((3, 4), (1, 1)))}
    documented = {FAULT: Documented(failure="crash", message="exceeds varlen segment length 2", step=2)}
    yield lab.forced(
        "four accepted, then one draft",
        k=3,
        plans=plans,
        must_observe={"row shorter than accepted before": 1, "grammar trim": 1},
        documented=documented,
    )
    yield lab.forced(
        "the same, captured for six tokens",
        k=3,
        capture_sizes=(6,),
        plans=plans,
        must_observe={"row shorter than accepted before": 1, "grammar trim": 1, "padded rows": 2},
        documented=documented,
    )
