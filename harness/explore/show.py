"""What an exported program does: run one scenario under one variant and print the judgement."""

from __future__ import annotations

from typing import Any

from harness.errors import HarnessError
from harness.explore.workbench import Setting, Workbench
from harness.scenario import Scenario
from harness.verdict import Verdict


def show(text: str, *, variant: str, **setting: Any) -> int:
    """Print what every check says of a scenario (JSON): 1 if the variant is wrong, 0 if not, 125 if unknown.

    ``setting``: the fields of ``Setting``, by name.
    """
    scenario = Scenario.from_json(text)
    try:
        bench = Workbench(Setting(**setting))
    except HarnessError as error:  # its device or kernels are not here
        print(error)
        return error.exit_code
    judgement = bench.judge(scenario, bench.run(scenario, variant))
    print(f"{scenario.name} on {variant}: {judgement.verdict.value}")
    for evidence in judgement.evidence:
        print(f"  {evidence.verdict.value:<12} {evidence.check}: {evidence.summary}")
    if judgement.verdict is Verdict.FAIL and judgement.first:
        first = judgement.first
        print(f"first: {first.told}: {first.message}")
        print(f"diagnosis: {first.diagnosis or first.cause or 'none'}")
        print(*judgement.ledger, sep="\n")
    return judgement.verdict.exit_code
