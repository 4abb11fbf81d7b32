"""The layer of a release that calls its kernels, run in place of ours: its own lines, on a stand-in object.

``_forward`` (the whole layer, until 0.11.0) or ``_forward_core`` (convolution and recurrence, later) is taken out of
the release's model file. It gets the metadata that the release's own builder makes of the step, handed over as its
model runner does, and our weights and caches.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F

from harness.engine.batch import Batch
from harness.engine.kernels.fold import L2_EPS
from harness.engine.kernels.naive import NaiveKernels
from harness.engine.linear_layer import LinearLayer, LinearWeights
from harness.models.config import ModelConfig
from harness.targets.upstream.extract import extract
from harness.targets.upstream.kernels import as_laid_out
from harness.targets.upstream.layouts import Layout, path_of
from harness.targets.upstream.steps import LAYER, Step, Steps
from harness.targets.upstream.wheel import Release

EVERYTHING = slice(None)
"""The virtual engine: older releases index their caches by it, newer ones do not, and both find the pair."""


class Forward:
    """A release's layer code, taken out once per process. ``prompts``: whether it convolves prompts itself."""

    def __init__(self, release: Release, layout: Layout, *, prompts: bool) -> None:
        self.layout = layout
        self._context = SimpleNamespace(attn_metadata=None, virtual_engine=EVERYTHING)
        provided = {
            "get_forward_context": lambda: self._context,
            "is_conv_state_dim_first": lambda: False,
            "logger": logging.getLogger(release.name),
            "_warmup_prefill_kernels": lambda *_: None,
            "chunk_gated_delta_rule": self._chunk,
            **({} if prompts else {"causal_conv1d_fn": conv_of_prompts}),
        }
        self._class, used = extract(path_of(release, layout.model), layout.entry, provided)
        self.retyped = sorted(
            {*used, "chunk_gated_delta_rule (ours)", "the object with its weights and projections"}
        )

    def _chunk(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        g: torch.Tensor,
        beta: torch.Tensor,
        initial_state: torch.Tensor,
        cu_seqlens: torch.Tensor,
        use_qk_l2norm_in_kernel: bool = False,
        **_: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The recurrence over prompts, ours: theirs refuses float32, which the judgement of states needs.

        q, k ``[1, N, H, K]``, v ``[1, N, HV, V]``, g, beta ``[1, N, HV]``, initial_state ``[R, HV, K, V]`` (or V, K).
        """
        turned = self.layout.state == "KV"
        final = (initial_state.transpose(2, 3) if turned else initial_state).float().clone()
        tokens = Tokens.of(q[0], k[0], v[0], g[0], beta[0], normalise=use_qk_l2norm_in_kernel)
        out = torch.cat(
            [tokens.fold(final[r], *ends) for r, ends in enumerate(pairwise(cu_seqlens.tolist()))]
        )
        return out[None].to(v.dtype), final.transpose(2, 3) if turned else final

    def stand_in(self, config: ModelConfig, weights: LinearWeights) -> Any:
        """An object with the attributes that the code reads; caches are set for each call."""
        layer: Any = object.__new__(self._class)
        values = {
            "prefix": LAYER,
            "tp_size": 1,
            "activation": "silu",
            "conv1d": SimpleNamespace(weight=weights.conv[:, None, :], bias=None),
            "A_log": weights.A_log,
            "dt_bias": weights.dt_bias,
            "num_k_heads": config.num_key_heads,
            "num_v_heads": config.num_value_heads,
            "head_k_dim": config.key_head_dim,
            "head_v_dim": config.value_head_dim,
            "key_dim": config.key_dim,
            "value_dim": config.value_dim,
            "enable_packed_recurrent_decode": True,
            "chunk_gated_delta_rule": self._chunk,
            "_warmup_prefill_kernels": lambda *_: None,
            **_projections(config, weights),
        }
        vars(layer).update(values)
        return layer

    def call(
        self, layer: Any, step: Step, caches: tuple[torch.Tensor, torch.Tensor], **arrays: torch.Tensor
    ) -> None:
        """Run the entry on one step; it changes ``caches`` (conv, recurrent) and the last of ``arrays`` in place."""
        layer.kv_cache = caches
        self._context.attn_metadata = {LAYER: step.metadata}
        getattr(layer, self.layout.entry)(**arrays)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """Packed tokens of prompts, keys as wide as values; float32."""

    q: torch.Tensor  # [N, HV, K], scaled
    k: torch.Tensor  # [N, HV, K]
    v: torch.Tensor  # [N, HV, V]
    decay: torch.Tensor  # [N, HV]
    beta: torch.Tensor  # [N, HV]

    @staticmethod
    def of(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        g: torch.Tensor,
        beta: torch.Tensor,
        *,
        normalise: bool,
    ) -> Tokens:
        """From the arguments of a chunk kernel; newer releases normalise q and k before it."""

        def wide(x: torch.Tensor) -> torch.Tensor:
            x = x.float()
            if normalise:
                x = x * (x.square().sum(-1, keepdim=True) + L2_EPS).rsqrt()
            return x.repeat_interleave(v.shape[1] // x.shape[1], 1)

        scaled = wide(q) * q.shape[-1] ** -0.5
        return Tokens(q=scaled, k=wide(k), v=v.float(), decay=g.float().exp(), beta=beta.float())

    def fold(self, h: torch.Tensor, start: int, end: int) -> torch.Tensor:
        """Advance the state ``h [HV, V, K]`` in place over tokens ``start .. end - 1``; their outputs [n, HV, V]."""
        out = self.v.new_zeros(end - start, *self.v.shape[1:])
        for i, t in enumerate(range(start, end)):
            h *= self.decay[t][:, None, None]
            u = self.beta[t][:, None] * (self.v[t] - (h @ self.k[t][..., None])[..., 0])
            h += u[..., None] * self.k[t][:, None, :]
            out[i] = (h @ self.q[t][..., None])[..., 0]
        return out


def conv_of_prompts(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    conv_states: torch.Tensor,
    has_initial_state: torch.Tensor,
    cache_indices: torch.Tensor,
    query_start_loc: torch.Tensor,
    **_: Any,
) -> torch.Tensor:
    """The convolution over prompts, ours: x ``[D, N]``, conv_states ``[P, D, C]``; returns ``[D, N]``."""
    return (
        NaiveKernels()
        .conv_prefill(
            x.transpose(0, 1),
            conv_states.transpose(1, 2),
            weight,
            bias,
            query_start_loc=query_start_loc,
            state_indices=cache_indices,
            has_initial_state=has_initial_state,
        )
        .transpose(0, 1)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardLayer(LinearLayer):
    """Our linear layer with the release's code at its heart, or, where the release has it so, in its place."""

    theirs: Forward
    steps: Steps
    layer: Any

    @staticmethod
    def maker(theirs: Forward, steps: Steps) -> Callable[..., LinearLayer]:
        """What a loader builds linear layers with."""

        def make(*, config: ModelConfig, weights: LinearWeights, **more: Any) -> LinearLayer:
            layer = theirs.stand_in(config, weights)
            return ForwardLayer(
                config=config, weights=weights, theirs=theirs, steps=steps, layer=layer, **more
            )

        return make

    def __call__(self, x: torch.Tensor, batch: Batch) -> torch.Tensor:
        """x ``[N, hidden]`` -> ``[N, hidden]``; the tokens are fed in the order of the release's runner."""
        step = self.steps.of(batch)
        fed = x[step.order]
        with as_laid_out(self.cache.recurrent, self.theirs.layout) as pool:
            caches = (self.cache.conv, pool)
            result = self._whole(fed, step, caches) if self._is_whole else self._core_of(fed, step, caches)
        out = torch.empty_like(x)
        out[step.order] = result
        return out

    @property
    def _is_whole(self) -> bool:
        return self.theirs.layout.entry == "_forward"

    def _whole(self, x: torch.Tensor, step: Step, caches: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        output = torch.zeros_like(x)
        self.theirs.call(self.layer, step, caches, hidden_states=x, output=output)
        return output

    def _core_of(
        self, x: torch.Tensor, step: Step, caches: tuple[torch.Tensor, torch.Tensor]
    ) -> torch.Tensor:
        w, c = self.weights, self.config
        core = x.new_zeros(len(x), c.num_value_heads, c.value_head_dim)
        self.theirs.call(
            self.layer,
            step,
            caches,
            mixed_qkv=F.linear(x, w.in_proj_qkv),
            b=F.linear(x, w.in_proj_b),
            a=F.linear(x, w.in_proj_a),
            core_attn_out=core,
        )
        z = F.linear(x, w.in_proj_z).view_as(core)
        gated = self.kernels.gated_norm(core, z, w.norm, c.rms_eps)
        return F.linear(gated.flatten(1), w.out_proj)


def _projections(config: ModelConfig, w: LinearWeights) -> Mapping[str, Any]:
    """What ``_forward`` does around its core: projections grouped as in a checkpoint, norm, output."""
    heads = config.num_key_heads
    z = w.in_proj_z.view(heads, -1, config.hidden_size)
    q, k, v = w.in_proj_qkv.split([config.key_dim, config.key_dim, config.value_dim])
    parts = [part.view(heads, -1, config.hidden_size) for part in (q, k, v)]
    qkvz = torch.cat([*parts, z], dim=1).flatten(0, 1)
    gates = [part.view(heads, -1, config.hidden_size) for part in (w.in_proj_b, w.in_proj_a)]
    ba = torch.cat(gates, dim=1).flatten(0, 1)

    def norm(core: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        normed = F.rms_norm(core.float(), core.shape[-1:], w.norm.float(), config.rms_eps)
        return (normed * F.silu(z.float())).to(core.dtype)

    return {
        "in_proj": lambda x: (F.linear(x, torch.cat([qkvz, ba])), None),
        "in_proj_qkvz": lambda x: (F.linear(x, qkvz), None),
        "in_proj_ba": lambda x: (F.linear(x, ba), None),
        "projection_size_qkvz": len(qkvz),
        "projection_size_ba": len(ba),
        "norm": norm,
        "out_proj": lambda x: (F.linear(x, w.out_proj), None),
    }
