"""The contract of the kernels: what a Gated DeltaNet layer asks of the device, and nothing else.

Letters: ``B`` rows, ``N`` packed tokens, ``k`` drafts per row at most, ``a`` tokens committed by a row's previous
step, ``H``/``HV`` key/value heads, ``K``/``V`` head dims, ``D`` convolution channels, ``W`` convolution width,
``P`` state slots, ``C = W-1+k`` columns of a convolution line (oldest input first).

Rules that hold everywhere:

* Tokens are packed; row ``b`` is ``x[query_start_loc[b] : query_start_loc[b + 1]]``. Rows may have any length.
* A row of length zero touches nothing. A row whose (first) slot is the null slot 0 is padding: it reads nothing,
  writes nothing, and its outputs are zero, as are those of tokens that belong to no row.
* Slot 0 is never written. Where a live row is told to start from it, the state is zero.
* Arithmetic is float32 (the naive twin uses float64 on float64 pools); a state is rounded to the dtype of its pool
  only when it is stored.
* Index tensors may be strided views.
* ``NaiveKernels`` raises ``EngineError`` for a slot outside the pool or a column outside its line; the Triton
  kernels trust their caller.

Source: Yang et al. 2024, "Gated Delta Networks", arXiv 2412.06464.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from .decisions import CORRECT, KernelDecisions
from .journal import Journal


class Kernels(Protocol):
    """What one engine step needs. Pools (``conv_state``, ``state``) are updated in place; outputs are new tensors."""

    def conv_update(
        self,
        x: Tensor,
        conv_state: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        *,
        query_start_loc: Tensor,
        state_indices: Tensor,
        num_accepted_tokens: Tensor,
        decisions: KernelDecisions = CORRECT,
    ) -> Tensor:
        """Causal convolution and silu over the rows of a verify step, continuing each row's line.

        x [N, D]; conv_state [P, C, D]; weight [D, W]; bias [D]; query_start_loc [B + 1]; state_indices [B];
        num_accepted_tokens [B]; returns [N, D] in x's dtype.

        The history of a row is columns ``a-1 .. a+W-3`` of its line. Afterwards the line holds the old columns
        ``a .. a+W-3`` followed by the row's raw inputs, from column 0; later columns keep what they had.
        ``a`` may exceed the row's length: it counts the tokens of the step before.
        """
        ...

    def conv_prefill(
        self,
        x: Tensor,
        conv_state: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        *,
        query_start_loc: Tensor,
        state_indices: Tensor,
        has_initial_state: Tensor,
    ) -> Tensor:
        """Causal convolution and silu over whole prompts (or prompt chunks).

        Shapes as in ``conv_update``; has_initial_state [B] bool. History is columns ``0 .. W-2`` where
        ``has_initial_state``, zeros elsewhere; afterwards these columns hold the last W-1 raw inputs.
        """
        ...

    def gdn_verify(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor,
        beta: Tensor,
        state: Tensor,
        *,
        query_start_loc: Tensor,
        state_indices: Tensor,
        num_accepted_tokens: Tensor,
        decisions: KernelDecisions = CORRECT,
    ) -> Tensor:
        """Gated delta rule over the rows of a verify step, leaving the state after every token.

        q, k [N, H, K]; v [N, HV, V]; g, beta [N, HV] float32 (log decay, write strength); state [P, HV, V, K];
        query_start_loc [B + 1]; state_indices [B, k + 1]; num_accepted_tokens [B]; returns [N, HV, V] in v's dtype.

        A row starts from slot ``state_indices[b, a-1]``; after token ``j`` its state goes to ``state_indices[b, j]``.
        So rejecting drafts costs nothing: the next step's ``a`` selects the slot. q and k are l2-normalised here
        and q is scaled by ``K ** -0.5``.
        """
        ...

    def gdn_replay(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor,
        beta: Tensor,
        state: Tensor,
        journal: Journal,
        *,
        query_start_loc: Tensor,
        state_indices: Tensor,
        num_accepted_tokens: Tensor,
        turns: Tensor,
        decisions: KernelDecisions = CORRECT,
    ) -> Tensor:
        """Gated delta rule over the rows of a verify step, from one committed state per row.

        Shapes as in ``gdn_verify``, but state_indices [B]; turns [B] int32, the half of the journal that is read.
        Rows have at most R = ``journal.rows`` tokens, and ``a`` is 0..R: 0 where nothing is left to replay, as
        after a prompt.

        What the first ``a`` tokens of half ``turn`` of the row's journal wrote is folded into its state, which is
        stored; the outputs are those of the new row behind it, and what that writes goes to half ``1 - turn``. The
        caller turns the turn. So the stored state lags behind the committed tokens by the ``a`` of the row's next step.
        ``a`` may exceed the row's length: it counts the tokens of the step before.
        """
        ...

    def gdn_prefill(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor,
        beta: Tensor,
        state: Tensor,
        *,
        query_start_loc: Tensor,
        state_indices: Tensor,
        has_initial_state: Tensor,
    ) -> Tensor:
        """Gated delta rule over whole prompts. Shapes as in ``gdn_verify``, but state_indices [B].

        A row starts from its slot where ``has_initial_state``, from zero elsewhere, and leaves its final state there.
        """
        ...

    def gating(self, a: Tensor, b: Tensor, A_log: Tensor, dt_bias: Tensor) -> tuple[Tensor, Tensor]:
        """Log decay ``g = -exp(A_log) * softplus(a + dt_bias)`` and write strength ``beta = sigmoid(b)``.

        a, b [N, HV]; A_log, dt_bias [HV]; returns (g, beta), both [N, HV] float32.
        """
        ...

    def gated_norm(self, x: Tensor, z: Tensor, weight: Tensor, eps: float) -> Tensor:
        """RMS norm over the head dimension with a plain weight, times ``silu(z)``.

        x, z [N, HV, V]; weight [V]; returns [N, HV, V] in x's dtype.
        """
        ...

    def decode(
        self,
        x: Tensor,
        a: Tensor,
        b: Tensor,
        z: Tensor,
        conv_state: Tensor,
        conv_weight: Tensor,
        conv_bias: Tensor | None,
        A_log: Tensor,
        dt_bias: Tensor,
        state: Tensor,
        norm_weight: Tensor,
        eps: float,
        *,
        state_indices: Tensor,
    ) -> Tensor:
        """A layer between its projections, for rows of one token that live in column 0: the four kernels in one.

        x [B, D] raw inputs of the convolution, q, k and v side by side; a, b [B, HV] raw gates; z [B, HV, V];
        conv_state, conv_weight, conv_bias as in ``conv_update``; A_log, dt_bias [HV]; state [P, HV, V, K];
        norm_weight [V]; state_indices [B], no live slot twice; returns [B, HV, V] in x's dtype.

        Lines and states are left as by ``conv_update`` and ``gdn_verify`` with one token per row and ``a = 1``.
        """
        ...
