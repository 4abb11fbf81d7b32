"""The gated-delta-rule layer: projections, convolution, gating, recurrence, gated norm.

Yang et al., "Gated Delta Networks" (arXiv 2412.06464), as Qwen3-Next arranges it. Speculative and plain rows take
different paths through convolution and recurrence and are merged again by token.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from harness.engine.batch import Batch, PlainRows, SpecRows
from harness.engine.kernels.base import Kernels
from harness.engine.kernels.journal import Journal
from harness.engine.kernels.warmup import Layer, warm_up
from harness.engine.policy import Policy
from harness.models.checkpoint import ModelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearWeights:
    """Weights of one layer, projections de-interleaved to [q | k | v], z, b, a."""

    in_proj_qkv: torch.Tensor  # [D, hidden]
    in_proj_z: torch.Tensor  # [HV * V, hidden]
    in_proj_b: torch.Tensor  # [HV, hidden]
    in_proj_a: torch.Tensor  # [HV, hidden]
    conv: torch.Tensor  # [D, W]
    A_log: torch.Tensor  # [HV], float32
    dt_bias: torch.Tensor  # [HV]
    norm: torch.Tensor  # [V]
    out_proj: torch.Tensor  # [hidden, HV * V]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearCache:
    """The states of one layer for the whole pool; kernels change them in place."""

    conv: torch.Tensor  # [P, W - 1 + k, D], oldest input first
    recurrent: torch.Tensor  # [P, HV, V, K]
    journal: Journal | None = None  # of layout replay


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearLayer:
    """One layer, its cache, and the kernels and decisions it runs with."""

    config: ModelConfig
    weights: LinearWeights
    cache: LinearCache
    kernels: Kernels
    policy: Policy

    def __call__(self, x: torch.Tensor, batch: Batch) -> torch.Tensor:
        """x ``[N, hidden]`` -> ``[N, hidden]``; updates the cache."""
        w = self.weights
        x = x[: batch.num_actual_tokens]
        qkv = F.linear(x, w.in_proj_qkv)  # [N, D]
        g, beta = self.kernels.gating(F.linear(x, w.in_proj_a), F.linear(x, w.in_proj_b), w.A_log, w.dt_bias)
        core = self._core(qkv, g, self.policy.write_strength(beta), batch)  # [N, HV, V]
        z = F.linear(x, w.in_proj_z).view_as(core)
        gated = self.kernels.gated_norm(core, z, w.norm, self.config.rms_eps)
        return F.linear(gated.flatten(1), w.out_proj)

    def warm_up(self) -> None:
        """Have all kernels compiled that a step may need, so that no request waits for it. Touches no state."""
        w = self.weights
        layer = Layer(
            conv_state=self.cache.conv,
            conv_weight=w.conv,
            conv_bias=None,
            A_log=w.A_log,
            dt_bias=w.dt_bias,
            state=self.cache.recurrent,
            norm_weight=w.norm,
            journal=self.cache.journal,
            eps=self.config.rms_eps,
        )
        warm_up(self.kernels, layer, self.policy.kernels)

    def _core(self, qkv: torch.Tensor, g: torch.Tensor, beta: torch.Tensor, batch: Batch) -> torch.Tensor:
        spec, plain = batch.spec, batch.plain
        if spec is None:
            assert plain is not None
            return self._plain(qkv, g, beta, plain)
        if plain is None:
            return self._speculative(qkv, g, beta, spec)
        core = qkv.new_zeros(batch.num_actual_tokens, self.config.num_value_heads, self.config.value_head_dim)
        of, order = self.policy.gates_of, self.policy.token_order
        mine, theirs = (order(mask.nonzero()[:, 0]) for mask in (spec.token_mask, ~spec.token_mask))
        core[mine] = self._speculative(qkv[mine], of(g, mine), of(beta, mine), spec)
        core[theirs] = self._plain(qkv[theirs], of(g, theirs), of(beta, theirs), plain)
        return core

    def _speculative(
        self, qkv: torch.Tensor, g: torch.Tensor, beta: torch.Tensor, rows: SpecRows
    ) -> torch.Tensor:
        """Rows that start from the state at a - 1 and keep one state per token, or one state and a journal."""
        mixed = self.kernels.conv_update(
            qkv,
            self.cache.conv,
            self.weights.conv,
            None,
            query_start_loc=self.policy.conv_rows(qkv, rows.query_start_loc),
            state_indices=rows.state_indices[:, 0],
            num_accepted_tokens=rows.num_accepted_tokens,
            decisions=self.policy.kernels,
        )
        if rows.replayed is None:
            return self.kernels.gdn_verify(
                *self._split(mixed),
                g,
                beta,
                self.cache.recurrent,
                query_start_loc=rows.query_start_loc,
                state_indices=rows.state_indices,
                num_accepted_tokens=rows.num_accepted_tokens,
                decisions=self.policy.kernels,
            )
        assert self.cache.journal is not None
        return self.kernels.gdn_replay(
            *self._split(mixed),
            g,
            beta,
            self.cache.recurrent,
            self.cache.journal,
            query_start_loc=rows.query_start_loc,
            state_indices=rows.state_indices[:, 0],
            num_accepted_tokens=rows.replayed.num_tokens,
            turns=rows.replayed.turns,
            decisions=self.policy.kernels,
        )

    def _plain(self, qkv: torch.Tensor, g: torch.Tensor, beta: torch.Tensor, rows: PlainRows) -> torch.Tensor:
        """Rows that live in column 0: pieces of prompts, or single tokens without an accepted offset."""
        if not rows.has_prompt:
            return self._speculative(qkv, g, beta, _as_single_tokens(rows))
        mixed = self.kernels.conv_prefill(
            qkv,
            self.cache.conv,
            self.weights.conv,
            None,
            query_start_loc=rows.query_start_loc,
            state_indices=rows.state_indices,
            has_initial_state=rows.has_initial_state,
        )
        return self.kernels.gdn_prefill(
            *self._split(mixed),
            g,
            beta,
            self.cache.recurrent,
            query_start_loc=rows.query_start_loc,
            state_indices=rows.state_indices,
            has_initial_state=rows.has_initial_state,
        )

    def _split(self, mixed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """[N, D] -> q ``[N, H, K]``, k ``[N, H, K]``, v ``[N, HV, V]``."""
        c = self.config
        keys = c.num_key_heads * c.key_head_dim
        q, k, v = mixed.split([keys, keys, c.num_value_heads * c.value_head_dim], dim=1)
        shape = (-1, c.num_key_heads, c.key_head_dim)
        return q.reshape(shape), k.reshape(shape), v.reshape(-1, c.num_value_heads, c.value_head_dim)


def _as_single_tokens(rows: PlainRows) -> SpecRows:
    """A decode without an offset: one token a row, read and written at column 0."""
    return SpecRows(
        query_start_loc=rows.query_start_loc,
        state_indices=rows.state_indices[:, None],
        num_accepted_tokens=torch.ones_like(rows.state_indices),
        replayed=None,
        token_mask=torch.ones(rows.state_indices.numel(), dtype=torch.bool, device=rows.state_indices.device),
    )
