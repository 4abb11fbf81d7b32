"""A layer's whole decode step, and whole prompts: ours beside upstream's kernels for the same work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from harness.bench.gpu.clock import microseconds
from harness.bench.gpu.upstream import Upstream, gates_of
from harness.bench.gpu.work import HV, STATE, D, H, K, Tokens, V, normal, rotations
from harness.engine.kernels import NaiveKernels, chunk, decode
from harness.engine.kernels.samples import QWEN3_NEXT

W, EPS = QWEN3_NEXT.W, 1e-6


@dataclass(frozen=True, slots=True)
class Decoded:
    """Times in us of one step of B rows: vLLM's three kernels one by one, and together, and ours."""

    batch: int
    convolution: float
    recurrence: float
    norm: float
    together: float
    ours: float


def decodes(upstream: Upstream, random: torch.Generator, batches: Sequence[int]) -> Iterator[Decoded]:
    """One token per row, float32 states, bfloat16 activations."""
    for B in batches:
        sets = rotations(2 * B * STATE * 4) * 2
        state = normal(random, 1 + sets * B, HV, V, K)
        lines = normal(random, 1 + sets * B, W - 1, D).bfloat16()
        slots = (1 + torch.randperm(sets * B, generator=random, device="cuda").int()).view(sets, B)
        t = Tokens.draw(B, random)
        z, weight, norm = (
            normal(random, B, HV, V).bfloat16(),
            normal(random, D, W).bfloat16(),
            normal(random, V),
        )
        gates = gates_of(t.g, t.beta)
        mixed, core = t.x.clone(), t.x.new_zeros(B, 1, HV, V)
        out, rstd = torch.empty_like(z), torch.empty(B * HV, device="cuda")
        scratch = torch.empty(B, HV, V, device="cuda")
        arrivals = torch.zeros(B, H, dtype=torch.int32, device="cuda")

        def convolve(of: Tensor, x=mixed, lines=lines, weight=weight) -> None:  # type: ignore[no-untyped-def]
            upstream.convolve(x, lines, weight, of)

        def recur(of: Tensor, x=mixed, gates=gates, state=state, core=core) -> None:  # type: ignore[no-untyped-def]
            upstream.recur(x, gates, state, core, of)

        def gate(_: Tensor, core=core, z=z, norm=norm, out=out, rstd=rstd) -> None:  # type: ignore[no-untyped-def]
            upstream.norm(core.view(-1, V), z.view(-1, V), norm, out.view(-1, V), rstd, EPS)

        launches = [
            decode.decode_launch(
                t.x,
                gates["a"],
                gates["b"],
                z,
                lines,
                weight,
                None,
                gates["A_log"],
                gates["dt_bias"],
                state,
                norm,
                EPS,
                scratch,
                out,
                arrivals,
                state_indices=of,
            )
            for of in slots
        ]
        parts = (convolve, recur, gate)
        single = [microseconds([lambda part=part, of=of: part(of) for of in slots]) for part in parts]  # type: ignore[misc]
        calls = [lambda part=part, of=of: part(of) for of in slots for part in parts]  # type: ignore[misc]
        together = 3 * microseconds(calls)
        first, second, third = single
        ours = microseconds([launch.run for launch in launches])
        yield Decoded(B, first, second, third, together, ours)


@dataclass(frozen=True, slots=True)
class Prefilled:
    """Time in us of a batch of prompts, and relative RMS errors against float64."""

    what: str
    time: float
    output_error: float
    state_error: float


def prefills(
    upstream: Upstream, random: torch.Generator, prompts: int = 16, length: int = 2048
) -> Iterator[Prefilled]:
    """fla-core's chunk kernels, ours on bfloat16, and ours on the same numbers as float32."""
    t = Tokens.draw(prompts * length, random)
    state = normal(random, 1 + prompts, HV, V, K)
    bounds = torch.arange(0, prompts * length + 1, length, device="cuda", dtype=torch.int32)
    rows: dict[str, Any] = {
        "query_start_loc": bounds,
        "state_indices": torch.arange(1, prompts + 1, device="cuda", dtype=torch.int32),
        "has_initial_state": torch.ones(prompts, device="cuda", dtype=torch.bool),
    }
    whole = state.double()
    q, k, v = (x.double() for x in t.qkv())
    expected = NaiveKernels().gdn_prefill(q, k, v, t.g, t.beta, whole, **rows)

    def judged(what: str, time: float, out: Tensor, final: Tensor) -> Prefilled:
        return Prefilled(what, time, relative(out, expected), relative(final, whole[1:]))

    q, k, v = (x.contiguous() for x in t.qkv())
    initial, cu = state[1:].transpose(2, 3).contiguous(), bounds.long()
    out, final = upstream.prefill(q, k, v, t.g, t.beta, initial, cu)
    time = microseconds([lambda: upstream.prefill(q, k, v, t.g, t.beta, initial, cu)])
    yield judged("fla-core", time, out, final.transpose(2, 3))
    for what, dtype in (("ours, bfloat16", torch.bfloat16), ("ours, float32", torch.float32)):
        tokens = Tokens(x=t.x.to(dtype), g=t.g, beta=t.beta)
        pool, out = state.clone(), torch.zeros(len(t.x), HV, V, device="cuda", dtype=dtype)
        launches = chunk.prefill_launches(*tokens.qkv(), t.g, t.beta, out, pool, **rows)
        for launch in launches:
            launch.run()
        final, result = pool[1:].clone(), out.clone()
        time = len(launches) * microseconds([launch.run for launch in launches])
        yield judged(what, time, result, final)


def relative(actual: Tensor, expected: Tensor) -> float:
    """Relative RMS of a difference."""
    return float((actual.double() - expected).norm() / expected.norm())
