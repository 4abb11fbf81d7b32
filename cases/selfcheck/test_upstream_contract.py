"""A user's kernel: the contract names what is wrong with it, and scenarios judge it inside the engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from torch import Tensor

from harness.cases import find_case, load_cases
from harness.engine.kernels.naive import NaiveKernels
from harness.lab import Lab
from harness.models.tiny import ensure
from harness.scenario import Scenario
from harness.targets.contract import examine
from harness.targets.user_kernel import UserKernels

ROOT = Path(__file__).resolve().parents[2]
DOC = ROOT / "docs" / "plug-in-a-kernel.md"


def code_of_the_guide() -> str:
    """The first block of code in the guide: what a reader is told to write."""
    return DOC.read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]


@pytest.fixture(scope="module")
def verify() -> Callable[..., Tensor]:
    space: dict[str, Callable[..., Tensor]] = {}
    exec(code_of_the_guide(), space)
    return space["verify"]


def wrong_in(kernel: Callable[..., object]) -> list[str]:
    return [str(finding) for finding in examine(UserKernels(kernel))]


def test_the_naive_twin_keeps_the_contract() -> None:
    assert examine(NaiveKernels()) == []


def test_the_kernel_of_the_guide_keeps_the_contract(verify: Callable[..., Tensor]) -> None:
    assert wrong_in(verify) == []


@pytest.mark.parametrize(("off", "named"), [(1, "one too many"), (-1, "one too few")])
def test_an_accepted_offset_that_is_off_by_one_is_named(off: int, named: str) -> None:
    code = code_of_the_guide()
    assert "- 1]" in code
    space: dict[str, Callable[..., Tensor]] = {}
    exec(code.replace("- 1]", f"- 1 + {off}]"), space)
    assert any(f"accepted offset is {named}" in line for line in wrong_in(space["verify"]))


def test_a_state_that_is_not_written_is_named(verify: Callable[..., Tensor]) -> None:
    def forgets(
        q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, **rows: Tensor
    ) -> Tensor:
        return verify(q, k, v, g, beta, state.clone(), **rows)

    assert wrong_in(forgets)[0].startswith("state not updated in place")


def test_a_missing_argument_is_named() -> None:
    def narrow(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor) -> Tensor:
        return v

    (line,) = wrong_in(narrow)
    assert "wrong arguments" in line
    assert "query_start_loc" in line


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda out: out.flatten(1), "wrong shape: returned (10, 32), expected [N, HV, V] = (10, 4, 8)"),
        (lambda out: out.half(), "wrong dtype: returned torch.float16, expected v's dtype torch.float32"),
        (lambda out: (out, None), "wrong result: returned tuple"),
        (lambda out: out * 1.01, "wrong values"),
        (lambda out: out * float("nan"), "wrong values: relative RMS inf"),
    ],
)
def test_a_wrong_output_is_named(
    verify: Callable[..., Tensor], change: Callable[[Tensor], object], named: str
) -> None:
    assert wrong_in(lambda *inputs, **rows: change(verify(*inputs, **rows)))[0].startswith(named)


@pytest.mark.parametrize("slot", [0, 1])
def test_a_write_to_a_slot_of_nobody_or_of_another_is_named(verify: Callable[..., Tensor], slot: int) -> None:
    def spills(
        q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, **rows: Tensor
    ) -> Tensor:
        state[slot] += 1
        return verify(q, k, v, g, beta, state, **rows)

    assert f"writes outside its rows: slots [{slot}]" in wrong_in(spills)[0]


def test_a_kernel_that_dies_is_reported_with_its_words() -> None:
    def dies(*_: Tensor, **__: Tensor) -> Tensor:
        raise RuntimeError("out of registers")

    assert wrong_in(dies) == ["raises RuntimeError: out of registers"]


def specharness(folder: Path, *arguments: str) -> tuple[dict[str, object], str]:
    """The last line of a verb that is run where the user's module lies, and everything before it."""
    done = subprocess.run(
        [sys.executable, "-m", "harness.cli", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    last = done.stdout.strip().splitlines()[-1]
    return json.loads(last), done.stdout + done.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("user")
    code = code_of_the_guide()
    (where / "my_kernels.py").write_text(code)
    (where / "late_kernels.py").write_text(code.replace("- 1]", "]"))
    return where


def test_contract_is_a_command(folder: Path) -> None:
    good, _ = specharness(folder, "contract", "my_kernels:verify", "--device", "cpu")
    assert (good["exit"], good["findings"]) == (0, [])
    late, said = specharness(folder, "contract", "late_kernels:verify", "--device", "cpu")
    assert late["exit"] == 1
    assert "accepted offset is one too many" in said


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("my_kernels:absent", "my_kernels has no function 'absent'; it has verify"),
        ("no_such_module:verify", "cannot import no_such_module"),
        ("vllm=0.10.2", "expected one of: embedded, vllm==VERSION"),
    ],
)
def test_a_target_that_is_not_there_is_a_usage_error(folder: Path, target: str, said: str) -> None:
    result, output = specharness(folder, "contract", target, "--device", "cpu")
    assert result["exit"] == 2
    assert said in output
    assert "Traceback" not in output


def test_a_correct_kernel_passes_in_the_engine_and_a_late_one_fails(folder: Path) -> None:
    scenario = folder / "scenario.json"
    scenario.write_text(_silent_rows().to_json())
    common = (
        "run",
        str(scenario),
        "--device",
        "cpu",
        "--reports",
        str(folder / "reports"),
        "--cases",
        str(ROOT),
    )
    good, _ = specharness(folder, *common, "--target", "my_kernels:verify")
    assert good["exit"] == 0, good
    late, said = specharness(folder, *common, "--target", "late_kernels:verify")
    assert late["exit"] == 1, late
    assert "IndexError" in said or "recurrent" in said


def _silent_rows() -> Scenario:
    case = find_case(load_cases(ROOT), "24881")
    lab = Lab(ensure("narrow"), ROOT / "fixtures")
    return next(s for s in case.build(lab) if s.name.startswith("b1"))
