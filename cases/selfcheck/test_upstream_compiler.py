"""Kernels of releases that today's Triton refuses, compiled without a GPU in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.errors import Unsupported
from harness.models.tiny import default_cache
from harness.scenario import Request, Scenario
from harness.targets.upstream import target
from harness.targets.upstream.order import Order
from harness.targets.upstream.target import UpstreamTarget
from harness.trace import Completion, Crash, Trace

CACHE = default_cache(os.environ).parent / "upstream"
RELEASE = "0.10.2"

KERNEL = """
import triton
import triton.language as tl

@triton.jit{options}
def kernel(x, scale, N: tl.constexpr):
    i = tl.arange(0, 16)
    tl.store(x + i, tl.load(x + i, mask=i < N) * scale, mask=i < N)
"""

COMPILE = """
import hashlib, importlib, json, sys
from harness.targets.upstream import compiler
if {repaired}:
    compiler.repair()
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
kernel = importlib.import_module({module!r}).kernel
signature = dict(x="*fp32", scale="fp32", N="constexpr")
source = ASTSource(kernel, signature, constexprs=dict(N=11))
try:
    binary = triton.compile(source, target=GPUTarget("cuda", 90, 32))
    said = hashlib.sha256(binary.asm["ptx"].split(".loc")[0].encode()).hexdigest()
except Exception as error:
    said = type(error).__name__
wishes = [[p.name, bool(p.do_not_specialize)] for p in kernel.params]
print(json.dumps(dict(said=said, wishes=wishes)))
"""


def in_a_process(code: str, folder: Path) -> Any:
    """What ``code`` prints as JSON, in a process that does not interpret kernels."""
    path = os.pathsep.join([str(folder), *sys.path])
    child = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"TRITON_INTERPRET": "0", "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert child.returncode == 0, child.stderr
    return json.loads(child.stdout.splitlines()[-1])


@pytest.fixture
def compiled(tmp_path: Path) -> Callable[..., Any]:
    def compile_it(options: str, *, repaired: bool) -> Any:
        (tmp_path / "theirs.py").write_text(KERNEL.format(options=options))
        return in_a_process(COMPILE.format(repaired=repaired, module="theirs"), tmp_path)

    return compile_it


@pytest.mark.slow
def test_a_constant_that_is_not_to_be_specialised_compiles_as_if_nobody_had_said_so(
    compiled: Callable[..., Any],
) -> None:
    plain = compiled("", repaired=False)["said"]
    listed = compiled("(do_not_specialize=['N', 'scale'])", repaired=True)
    assert listed["said"] == plain != "CompilationError"
    assert listed["wishes"] == [["x", False], ["scale", True], ["N", False]], "other wishes stay"
    assert compiled("", repaired=True)["said"] == plain


REAL = f"""
import json
from pathlib import Path
from harness.targets.upstream import compiler, einops_twin
from harness.targets.upstream.layouts import FLA
from harness.targets.upstream.loading import with_release
compiler.repair()
einops_twin.install()
with_release(Path({str(CACHE / f"vllm-{RELEASE}")!r}), "vllm", (FLA.rpartition(".")[0],))
from vllm.model_executor.layers.fla.ops import fused_recurrent
kernel = fused_recurrent.fused_recurrent_gated_delta_rule_fwd_kernel.fn
print(json.dumps([p.name for p in kernel.params if p.is_constexpr and p.do_not_specialize]))
"""


@pytest.mark.slow
def test_the_recurrence_of_0_10_2_wishes_nothing_for_its_constants(tmp_path: Path) -> None:
    if not (CACHE / f"vllm-{RELEASE}").is_dir():
        pytest.skip(f"vllm {RELEASE} is not in the cache: specharness repro 24881 --target vllm=={RELEASE}")
    assert in_a_process(REAL, tmp_path) == []
    assert in_a_process(REAL.replace("compiler.repair()", ""), tmp_path) == ["N", "T"]


class FakeChild:
    """A child whose suspect has crashed in the way that a test says."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def ask(self, question: dict[str, Any], limit: float) -> dict[str, Any]:
        if "order" in question:
            return {"setting": {}}
        trace = Trace(
            scenario="s",
            target="t",
            steps=(),
            completions={"r": Completion(tokens=(), finish_reason=None)},
            linear_layers=(),
            crash=Crash(step=0, kind=self._kind, message="at 4:1:\n  N\n  ^\nN is refused", where="x.py:1"),
        )
        trace.save(Path(question["trace"]))
        return {"trace": question["trace"]}

    def end(self) -> None:
        """Nothing runs."""


def test_a_release_that_does_not_compile_here_is_undecided_and_a_users_kernel_has_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    order = Order(title="vllm 1", suspect="recurrence", model="m", device="cuda", state_dtype="float32")
    scenario = Scenario(name="s", requests=(Request(id="r", prompt=(1,), max_tokens=1),))
    monkeypatch.setattr(target, "Child", lambda **_: FakeChild(target.UNCOMPILED))
    with pytest.raises(Unsupported, match=r"vllm 1: the Triton here, not its own.*: N is refused"):
        UpstreamTarget(replace(order, project="vllm")).run(scenario)
    assert UpstreamTarget(order).run(scenario).crash is not None
    monkeypatch.setattr(target, "Child", lambda **_: FakeChild("RuntimeError"))
    assert UpstreamTarget(replace(order, project="vllm")).run(scenario).crash is not None
