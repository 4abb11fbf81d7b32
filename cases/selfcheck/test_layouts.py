"""What a layout changes in a case, and that a row which leaves no journal behind is named as such."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
import torch

from harness.cases import find_case, load_cases
from harness.engine.config import EngineConfig, Layout
from harness.engine.engine import Engine
from harness.engine.faults import faults
from harness.engine.guided import Grammars
from harness.engine.kernels.select import select
from harness.engine.loader import Loader
from harness.engine.policy import POLICY
from harness.engine.request import EngineRequest
from harness.engine.variants import VARIANTS
from harness.errors import Unsupported
from harness.explore.workbench import Setting, Workbench
from harness.lab import Lab, Plan
from harness.layouts import require_in, scenario_in, variants_in
from harness.models.tiny import ensure

ROOT = Path(__file__).resolve().parents[2]
CASES = load_cases(ROOT)


def test_a_case_whose_fault_exists_in_slots_alone_is_unsupported_elsewhere() -> None:
    case = find_case(CASES, "25743")
    assert variants_in("slots", case) == case.variants
    with pytest.raises(Unsupported, match="stride-ignored cannot act in layout replay"):
        variants_in("replay", case)
    more = replace(case, variants=(*case.variants, "zero-draft-row"))
    assert set(variants_in("replay", more)) == {"fixed", "zero-draft-row"}


def test_every_other_case_keeps_its_variants() -> None:
    refs = []
    for case in CASES:
        try:
            assert variants_in("replay", case) == case.variants
        except Unsupported:
            refs.append(case.ref)
    assert refs == ["vllm#25743"]


@pytest.mark.parametrize("layout", get_args(Layout))
def test_what_is_asked_for_by_name_can_act_or_is_unsupported(layout: str) -> None:
    """Nothing that cannot be wrong is called killed, survivor or sound."""
    require_in(layout, [*VARIANTS, *(name for name, one in faults().items() if one.layout in (None, layout))])
    elsewhere = [one for one in faults().values() if one.layout not in (None, layout)]
    assert elsewhere
    for one in elsewhere:
        with pytest.raises(Unsupported, match=f"{one.name} cannot act in layout {layout}") as told:
            require_in(layout, ["fixed", one.name])
        assert f"--layout {one.layout}" in str(told.value)


def test_a_row_off_the_speculative_path_loses_every_token_that_waits_in_the_journal(models: Path) -> None:
    """In layout slots the same row loses nothing: one token was accepted before it."""
    folder = ensure("narrow", 0, models)
    turns = ((3, 1), (0, 1), (0, 1))
    scenario = Lab(folder, ROOT / "fixtures").forced(
        "trim", k=3, plans={"r0": Plan(guided=True, turns=turns)}, passes=("as-merged",)
    )
    slots, replaying = (
        Workbench(Setting(model=str(folder), kernels="naive", layout=layout))
        for layout in ("slots", "replay")
    )
    assert not slots.examine(scenario_in("slots", scenario), "as-merged").killed
    lost = replaying.examine(scenario_in("replay", scenario), "as-merged")
    assert lost.killed
    assert lost.first is not None
    assert lost.first.cause == "lost accepted tokens"
    assert "lacks 1 token that the step before accepted" in str(lost.first.diagnosis)
    assert scenario_in("replay", scenario).passes == ()
    assert scenario_in("slots", scenario).passes == ("as-merged",)


def test_a_journal_is_folded_in_float32_whatever_the_states_are_kept_in(models: Path) -> None:
    """As the next step will: a state is rounded when it is stored, and this one is not."""
    loader = Loader(ensure("narrow", 0, models))
    config = EngineConfig(k=2, layout="replay", drafter="ngram", state_dtype=torch.bfloat16)
    kernels = select("naive", "cpu").kernels
    model = loader.model(config, POLICY, kernels)
    engine = Engine(model, None, Grammars(loader.vocabulary), config, POLICY)
    request = EngineRequest(id="r0", prompt=(5, 6, 5, 6, 5, 6), max_tokens=4)
    engine.add(request)
    engine.step()
    stored = engine.observed(request).recurrent
    assert torch.equal(stored, stored.bfloat16().float())
    engine.step()
    seen = engine.observed(request).recurrent
    assert seen.dtype == torch.float32
    assert not torch.equal(seen, seen.bfloat16().float())
