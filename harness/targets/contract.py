"""Test an adapter alone, before any engine: does a verify recurrence keep the contract, and if not, what is wrong?

One small packed batch with everything that matters: rows of unequal length, accepted counts from 1 to k + 1, one
that exceeds its row, a padded row, states of other requests around. Each finding names one mistake. The reference is
the naive twin; a mistake is named by running the twin with that mistake in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from harness.engine.kernels.base import Kernels
from harness.engine.kernels.decisions import CORRECT, Decision, KernelDecisions
from harness.engine.kernels.naive import NaiveKernels

TOLERANCE = 1e-4
"""Relative RMS that float32 arithmetic in any order stays far below, and any mistake named here far above."""
NAMED = 1e-3
"""A mistake is named where the twin with that mistake is this close."""
K = 3
LENGTHS, ACCEPTED = (4, 2, 1, 3, 0), (2, 1, 4, 3, 1)
"""Rows of the batch; the last one is padding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """Arguments of ``gdn_verify``; ``state`` is copied for every call."""

    q: Tensor  # [N, H, K]
    k: Tensor  # [N, H, K]
    v: Tensor  # [N, HV, V]
    g: Tensor  # [N, HV]
    beta: Tensor  # [N, HV]
    state: Tensor  # [P, HV, V, K]
    query_start_loc: Tensor  # [B + 1]
    state_indices: Tensor  # [B, k + 1]
    num_accepted_tokens: Tensor  # [B]

    def call(self, kernels: Kernels, decisions: KernelDecisions = CORRECT) -> tuple[Tensor, Tensor]:
        """Output and state after it."""
        state = self.state.clone()
        out = kernels.gdn_verify(
            self.q,
            self.k,
            self.v,
            self.g,
            self.beta,
            state,
            query_start_loc=self.query_start_loc,
            state_indices=self.state_indices,
            num_accepted_tokens=self.num_accepted_tokens,
            decisions=decisions,
        )
        return out, state


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong with an adapter, and where to look."""

    what: str
    detail: str

    def __str__(self) -> str:
        return f"{self.what}: {self.detail}"


def examine(kernels: Kernels, device: str = "cpu") -> list[Finding]:
    """What is wrong with ``kernels.gdn_verify``; nothing, if it keeps the contract."""
    found = _examine(kernels, batch(device))
    if found and found[0].what.startswith("raises"):  # perhaps a full acceptance is what it dies of
        found += [f for f in _examine(kernels, batch(device, most=K)) if f.what != found[0].what]
    return found


def _examine(kernels: Kernels, inputs: Inputs) -> list[Finding]:
    expected, expected_state = inputs.call(NaiveKernels())
    try:
        out, state = inputs.call(kernels)
    except TypeError as error:
        return [Finding(what="wrong arguments", detail=str(error))]
    except Exception as error:  # noqa: BLE001  an adapter is user code: whatever it raises is the finding
        message = (str(error).splitlines() or [""])[0]
        return [Finding(what=f"raises {type(error).__name__}", detail=message)]
    return list(_form(out, expected)) or list(_values(inputs, out, state, expected, expected_state))


def batch(device: str = "cpu", *, most: int = K + 1) -> Inputs:
    """The batch: H=2, HV=4, K=16, V=8, accepted counts up to ``most``; the pool has more slots than the rows own."""
    random = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random)

    tokens, rows = sum(LENGTHS), len(LENGTHS)
    slots = torch.arange(2, 2 + rows * (K + 1), dtype=torch.int32).flip(0).view(rows, K + 1).clone()
    slots[-1] = 0  # the padded row points at the null slot
    made = Inputs(
        q=draw(tokens, 2, 16),
        k=draw(tokens, 2, 16),
        v=draw(tokens, 4, 8),
        g=-draw(tokens, 4).abs() * 0.2,
        beta=draw(tokens, 4).sigmoid(),
        state=draw(3 + rows * (K + 1), 4, 8, 16),
        query_start_loc=torch.tensor([0, *LENGTHS]).cumsum(0).to(torch.int32),
        state_indices=slots,
        num_accepted_tokens=torch.tensor(ACCEPTED, dtype=torch.int32).clamp(max=most),
    )
    return replace(made, **{name: getattr(made, name).to(device) for name in Inputs.__slots__})


def _form(out: object, expected: Tensor) -> Iterator[Finding]:
    if not isinstance(out, Tensor):
        yield Finding(
            what="wrong result", detail=f"returned {type(out).__name__}, expected a tensor [N, HV, V]"
        )
        return
    if out.shape != expected.shape:
        yield Finding(
            what="wrong shape",
            detail=f"returned {tuple(out.shape)}, expected [N, HV, V] = {tuple(expected.shape)}",
        )
    if out.dtype != expected.dtype:
        yield Finding(what="wrong dtype", detail=f"returned {out.dtype}, expected v's dtype {expected.dtype}")


def _values(
    inputs: Inputs, out: Tensor, state: Tensor, expected: Tensor, expected_state: Tensor
) -> Iterator[Finding]:
    """What the numbers say: the state first, since the output follows from it."""
    if torch.equal(state, inputs.state):
        yield Finding(
            what="state not updated in place",
            detail="the pool is as it was before the call; write each token's state into it, at state_indices[b, j]",
        )
        return
    owned = inputs.state_indices[inputs.state_indices > 0].unique()
    others = torch.ones(len(state), dtype=torch.bool, device=state.device)
    others[owned.long()] = False
    touched = (state != inputs.state).flatten(1).any(1) & others
    if touched.any():
        slots = touched.nonzero().flatten().tolist()
        yield Finding(
            what="writes outside its rows",
            detail=f"slots {slots} belong to no row of the batch"
            + (" (0 is the null slot of padded rows)" if 0 in slots else ""),
        )
    error, state_error = _distance(out, expected), _written(inputs, state, expected_state)
    if max(error, state_error) <= TOLERANCE:
        return
    for what, decisions in MISTAKES:
        twin, twin_state = inputs.call(NaiveKernels(), decisions)
        if _distance(out, twin) <= NAMED and _written(inputs, state, twin_state) <= NAMED:
            yield Finding(
                what=what,
                detail=f"its output is that of a correct kernel with this mistake ({error:.1e} off)",
            )
            return
    yield Finding(
        what="wrong values",
        detail=f"relative RMS {error:.1e} of the output and {state_error:.1e} of the states, where {TOLERANCE:.0e} "
        "is allowed, and no known mistake explains it",
    )


def _written(inputs: Inputs, state: Tensor, expected: Tensor) -> float:
    """Distance of the slots that the rows must have written."""
    lengths = inputs.query_start_loc.diff()
    columns = torch.arange(K + 1, device=state.device)
    slots = inputs.state_indices[(columns < lengths[:, None]) & (inputs.state_indices > 0)].long()
    return _distance(state[slots], expected[slots])


def _distance(a: Tensor, b: Tensor) -> float:
    """Relative RMS; infinite where anything is not a number."""
    value = float((a - b).norm() / b.norm())
    return value if value == value else float("inf")


def _reads(column: Callable[[Tensor], Tensor]) -> KernelDecisions:
    return replace(CORRECT, read_column=Decision(naive=column, triton=CORRECT.read_column.triton))


def _writes(column: Callable[[Tensor], Tensor]) -> KernelDecisions:
    return replace(CORRECT, write_column=Decision(naive=column, triton=CORRECT.write_column.triton))


LATE = "accepted offset is one too many (reads column a instead of a - 1)"
EARLY = "accepted offset is one too few (reads column a - 2 instead of a - 1)"
MISTAKES = (
    (LATE, _reads(lambda a: a.clamp(max=K))),
    (LATE, _reads(lambda a: a % (K + 1))),
    (EARLY, _reads(lambda a: (a - 2).clamp(min=0))),
    (EARLY, _reads(lambda a: (a - 2) % (K + 1))),
    ("accepted count is ignored (reads column 0)", _reads(lambda a: a * 0)),
    ("reads the last column, whatever was accepted", _reads(lambda a: a * 0 + K)),
    ("states are written one column too late", _writes(lambda j: (j + 1).clamp(max=K))),
    ("every token's state is written to column 0", _writes(lambda j: j * 0)),
)
"""What a verify recurrence gets wrong, as the twin would compute it; at the table's edge, both ways to go on."""
