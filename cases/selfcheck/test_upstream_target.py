"""Suspects in processes of their own: what they die of, what of a release is read, and what releases are known for.

Tests of real releases run where the cache holds them (``specharness repro 24881 --target vllm==0.10.2`` fills it).
"""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from harness.cases import find_case, load_cases
from harness.errors import TargetError, Unsupported
from harness.lab import Lab
from harness.models.tiny import default_cache, ensure
from harness.run import Judge
from harness.scenario import Scenario
from harness.targets.upstream.einops_twin import rearrange
from harness.targets.upstream.extract import extract
from harness.targets.upstream.layouts import TABLE, layout_of
from harness.targets.upstream.order import Order
from harness.targets.upstream.target import UpstreamTarget
from harness.targets.upstream.wheel import Release
from harness.trace import Trace
from harness.verdict import Verdict

ROOT = Path(__file__).resolve().parents[2]
CACHE = default_cache(os.environ).parent / "upstream"


@pytest.fixture(scope="module")
def model() -> Path:
    return ensure("narrow")


@pytest.fixture(scope="module")
def scenarios(model: Path) -> dict[str, Scenario]:
    """The forced scenarios of issue 24881, by the letter they begin with."""
    case = find_case(load_cases(ROOT), "24881")
    built = case.build(Lab(model, ROOT / "fixtures"))
    return {scenario.name.split(":")[0]: scenario for scenario in built if scenario.forced}


Start = Callable[..., UpstreamTarget]


@pytest.fixture
def user(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """A target whose kernel is the lines that a test gives."""
    opened = []

    def start(lines: str, **options: float) -> UpstreamTarget:
        body = textwrap.indent(textwrap.dedent(lines), "    ")
        (tmp_path / "theirs.py").write_text(
            f"import os, time, torch\ndef verify(q, k, v, *inputs, **rows):\n{body}"
        )
        monkeypatch.chdir(tmp_path)
        order = Order(
            title="theirs", suspect="theirs:verify", model=str(model), device="cpu", state_dtype="float32"
        )
        opened.append(UpstreamTarget(order, **options))
        return opened[-1]

    yield start
    for target in opened:
        target.close()


def test_a_suspect_that_kills_its_process_has_crashed_and_the_next_run_starts_another(
    user: Start, scenarios: dict[str, Scenario]
) -> None:
    target = user("print('last words', file=__import__('sys').stderr)\nos.abort()")
    for _ in range(2):
        crash = target.run(scenarios["b1"]).crash
        assert crash is not None
        assert crash.kind == "ProcessDied"
        assert "SIGABRT" in crash.message


def test_a_suspect_without_an_answer_is_ended_and_undecided(
    user: Start, scenarios: dict[str, Scenario]
) -> None:
    target = user("time.sleep(600)", run_limit=1.0)
    assert target.setting
    with pytest.raises(Unsupported, match="no answer within 1 s"):
        target.run(scenarios["b1"])


def test_what_a_suspect_prints_does_not_disturb_its_answers(
    user: Start, scenarios: dict[str, Scenario]
) -> None:
    target = user("print('{\"trace\": 1}')\nos.write(1, b'noise')\nreturn torch.zeros_like(v)")
    trace = target.run(scenarios["b1"])
    assert trace.crash is None
    assert trace.target == "theirs"
    assert "theirs" in trace.notes["kernels"]


def test_an_exception_of_a_suspect_is_a_crash_with_its_line(
    user: Start, scenarios: dict[str, Scenario]
) -> None:
    crash = user("raise ValueError('no such tile')").run(scenarios["b1"]).crash
    assert crash is not None
    assert (crash.kind, crash.message, crash.where) == ("ValueError", "no such tile", "theirs.py:3 verify")


def test_a_module_that_does_not_load_is_a_usage_error(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    order = Order(title="broken", suspect="broken:f", model=str(model), device="cpu", state_dtype="float32")
    with pytest.raises(TargetError, match="broken does not load: ZeroDivisionError"):
        _ = UpstreamTarget(order).setting


def test_every_row_of_the_adapter_table_follows_the_one_before() -> None:
    for row, following in pairwise(TABLE):
        assert row.end == following.first
        assert row.layout != following.layout


@pytest.mark.parametrize("version", ["0.9.2", "0.34.0", "1.0.0"])
def test_a_version_outside_the_table_is_unsupported_even_if_it_looks_known(version: str) -> None:
    known = _release("0.33.0")
    with pytest.raises(Unsupported, match="outside the adapter table"):
        layout_of(Release(project="vllm", version=version, root=known.root))


def test_a_version_whose_sources_say_something_else_is_unsupported() -> None:
    with pytest.raises(Unsupported, match="not what the adapter table says"):
        layout_of(Release(project="vllm", version="0.11.0", root=_release("0.10.2").root))


def test_a_checkout_is_known_by_its_sources() -> None:
    release = _release("0.33.0")
    checkout = Release(project="vllm", version=None, root=release.root)
    assert layout_of(checkout) == layout_of(release)


def test_a_folder_without_kernels_is_unsupported(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="saw none of"):
        layout_of(Release(project="vllm", version=None, root=tmp_path))


MODEL = """import torch
from nowhere import Base, decorated, annotation
from math import sqrt

def helper(x: annotation) -> annotation:
    return sqrt(x)

@decorated
class Layer(Base):
    @decorated
    def _forward(self, x: annotation) -> annotation:
        y: annotation = helper(x)
        return self.scaled(y)

    def scaled(self, y):
        return y * self.factor + given()

    def unused(self):
        return nothing_that_exists
"""


def test_a_method_is_taken_out_with_what_it_calls_and_keeps_its_place(tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    layer, used = extract(path, "_forward", {"given": lambda: 1, "other": None})
    made = layer()
    made.factor = 10
    assert made._forward(4) == 21
    assert used == {"given"}
    assert not hasattr(layer, "unused")
    assert (layer._forward.__code__.co_filename, layer._forward.__code__.co_firstlineno) == (str(path), 11)


def test_a_constant_that_is_not_taken_out_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text("LIMIT = 3\nclass Layer:\n    def _forward(self):\n        return LIMIT\n")
    with pytest.raises(Unsupported, match="needs LIMIT"):
        extract(path, "_forward", {})


@pytest.mark.parametrize(
    ("pattern", "shape"),
    [
        ("l p d -> l (p d)", (2, 12)),
        ("b l d -> b d l", (2, 4, 3)),
        ("b d l -> (b l) d", (8, 3)),
        ("l (h d) e -> 1 l h d e", (1, 2, 1, 3, 4)),
        ("... h d -> ... (h d)", (2, 12)),
    ],
)
def test_the_twin_of_rearrange_gives_the_shape(pattern: str, shape: tuple[int, ...]) -> None:
    x = torch.arange(24).reshape(2, 3, 4)
    assert rearrange(x, pattern, **({"d": 3} if "1 l" in pattern else {})).shape == shape


def test_the_twin_of_rearrange_moves_values_with_their_axes() -> None:
    x = torch.arange(24).reshape(2, 3, 4)
    assert torch.equal(rearrange(x, "b l d -> b d l"), x.transpose(1, 2))
    assert torch.equal(rearrange(x, "b d l -> (b l) d"), x.transpose(1, 2).reshape(8, 3))
    with pytest.raises(ValueError, match="has 2 axes"):
        rearrange(x, "a b -> b a")


def _release(version: str) -> Release:
    root = CACHE / f"vllm-{version}"
    if not root.is_dir():
        pytest.skip(f"the cache holds no vllm {version}")
    return Release(project="vllm", version=version, root=root)


def _open(version: str, model: Path, suspect: str = "forward") -> UpstreamTarget:
    root = str(_release(version).root)
    title = f"vllm {version}"
    return UpstreamTarget(
        Order(
            title=title,
            suspect=suspect,
            model=str(model),
            device="cpu",
            state_dtype="float32",
            project="vllm",
            version=version,
            root=root,
        )
    )


def _judged(target: UpstreamTarget, scenario: Scenario, model: Path) -> tuple[Verdict, Trace, str]:
    judge = Judge(model)
    trace = target.run(scenario)
    judgement = judge.judge(scenario, trace, judge.calibrate(target, scenario, trace))
    return judgement.verdict, trace, str(judgement.first)


def test_0_10_2_dies_in_its_own_code_as_users_saw_it(model: Path, scenarios: dict[str, Scenario]) -> None:
    crash = _open("0.10.2", model).run(scenarios["a"]).crash
    assert crash is not None
    channels = Lab(model, ROOT / "fixtures").conv_dim
    assert crash.message == f"shape '[15, -1, {channels}]' is invalid for input of size {44 * channels}"
    assert crash.where.startswith("qwen3_next.py:")
    assert crash.where.endswith(" _forward")


def test_0_10_2_is_silently_wrong_where_the_tokens_divide(
    model: Path, scenarios: dict[str, Scenario]
) -> None:
    verdict, trace, first = _judged(_open("0.10.2", model), scenarios["b1"], model)
    assert trace.crash is None
    assert verdict is Verdict.FAIL
    assert "layer=0" in first


def test_0_11_0_repairs_unequal_rows_and_loses_the_offset_of_rows_without_drafts(
    model: Path, scenarios: dict[str, Scenario]
) -> None:
    target = _open("0.11.0", model)
    assert _judged(target, scenarios["b1"], model)[0] is Verdict.PASS
    verdict, _, first = _judged(target, scenarios["d"], model)
    assert verdict is Verdict.FAIL
    assert "lost the last 3 accepted tokens" in first


def test_0_33_0_passes_what_older_releases_fail(model: Path, scenarios: dict[str, Scenario]) -> None:
    target = _open("0.33.0", model)
    assert _judged(target, scenarios["d"], model)[0] is Verdict.PASS


def test_two_releases_run_side_by_side_without_mixing(model: Path, scenarios: dict[str, Scenario]) -> None:
    old, new = _open("0.10.2", model), _open("0.33.0", model)
    assert new.run(scenarios["b1"]).notes["sources"].startswith("vllm 0.33.0")
    assert old.run(scenarios["b1"]).notes["code"] == "_forward of vllm.model_executor.models.qwen3_next"
    assert new.setting["code"].startswith("_forward_core of vllm.model_executor.layers.mamba.gdn")
