"""The server's counter of accepted tokens falls, and a metrics library refuses that (vLLM issues 46066 and 33729).

A late result of a request that has ended or was reset has drafts and commits nothing. Accepted tokens are counted as
what was committed less one, so such a row counts as minus one. r0 ends while its next row is in flight.
"""

from collections.abc import Iterator

from harness import Documented, Lab, Plan, Scenario, issue


@issue("vllm#46066", title="counters go backwards", variants=("fixed", "discarded-rows-counted"))
def scenarios(lab: Lab) -> Iterator[Scenario]:
    yield lab.forced(
        "a row of a request that is over",
        k=3,
        regime="placeholder",
        plans={"r0": Plan(turns=((3, 2),)), "r1": Plan(turns=((3, 2), (3, 1), (3, 4)))},
        must_observe={"discarded row": 1},
        documented={"discarded-rows-counted": Documented(failure="ledger")},
    )
