"""From a checkpoint folder to a model with caches: weights once, caches for every engine."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path

import torch

from harness.engine.attention_layer import AttentionLayer, AttentionWeights, KVCache
from harness.engine.config import EngineConfig
from harness.engine.grammars import Vocabulary
from harness.engine.guards import guarded
from harness.engine.kernels.base import Kernels
from harness.engine.kernels.journal import Journal
from harness.engine.linear_layer import LinearCache, LinearLayer, LinearWeights
from harness.engine.model import Block, HybridModel, MTPHead
from harness.engine.moe import MoEWeights
from harness.engine.policy import Policy
from harness.errors import ModelError
from harness.models.checkpoint import Checkpoint
from harness.models.config import FULL, ModelConfig


class Loader:
    """An opened model folder; weights are read when first asked for and then shared by every engine of their dtype."""

    def __init__(
        self, folder: Path, *, device: str = "cpu", linear_layer: Callable[..., LinearLayer] = LinearLayer
    ) -> None:
        self.folder = folder
        self._linear_layer = linear_layer
        self.checkpoint = Checkpoint.open(folder)
        self.config: ModelConfig = self.checkpoint.config
        self._device = device
        self._weights: dict[tuple[str, torch.dtype], torch.Tensor] = {}

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The tokenizer as the grammar library sees it."""
        return Vocabulary.load(self.folder)

    def model(self, engine: EngineConfig, policy: Policy, kernels: Kernels) -> HybridModel:
        """The target model with empty caches."""
        return HybridModel(
            config=self.config,
            embedding=self._get("model.embed_tokens.weight", engine.dtype),
            blocks=tuple(
                self._block(f"model.layers.{i}.", kind, engine, policy, kernels)
                for i, kind in enumerate(self.config.layer_types)
            ),
            norm=self._get("model.norm.weight", engine.dtype),
            lm_head=self._get("lm_head.weight", engine.dtype),
            policy=policy,
        )

    def head(self, engine: EngineConfig, policy: Policy, kernels: Kernels) -> MTPHead | None:
        """The MTP head with an empty cache, ``None`` where the checkpoint holds none; ModelError if it has more layers
        than the one that was ever published."""
        if not self.config.num_mtp_layers:
            return None
        if self.config.num_mtp_layers > 1:
            raise ModelError(
                f"{self.folder}: its MTP head has {self.config.num_mtp_layers} layers; only 1 is supported",
                hint="choose another checkpoint",
            )
        return MTPHead(
            config=self.config,
            norm_embedding=self._get("mtp.pre_fc_norm_embedding.weight", engine.dtype),
            norm_hidden=self._get("mtp.pre_fc_norm_hidden.weight", engine.dtype),
            fc=self._get("mtp.fc.weight", engine.dtype),
            block=self._block("mtp.layers.0.", FULL, engine, policy, kernels),
            norm=self._get("mtp.norm.weight", engine.dtype),
        )

    def _block(self, prefix: str, kind: str, engine: EngineConfig, policy: Policy, kernels: Kernels) -> Block:
        mixer: LinearLayer | AttentionLayer
        if kind == FULL:
            mixer = AttentionLayer(
                config=self.config,
                weights=self._attention(f"{prefix}self_attn.", engine.dtype),
                cache=self._kv_cache(engine),
                policy=policy,
            )
        else:
            mixer = self._linear_layer(
                config=self.config,
                weights=self._linear(f"{prefix}linear_attn.", engine.dtype),
                cache=self._linear_cache(engine),
                kernels=kernels,
                policy=policy,
            )
        return Block(
            mixer=mixer,
            input_norm=self._get(f"{prefix}input_layernorm.weight", engine.dtype),
            post_norm=self._get(f"{prefix}post_attention_layernorm.weight", engine.dtype),
            moe=self._moe(f"{prefix}mlp.", engine.dtype),
            config=self.config,
        )

    def _attention(self, prefix: str, dtype: torch.dtype) -> AttentionWeights:
        names = ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm")
        return AttentionWeights(**{name: self._get(f"{prefix}{name}.weight", dtype) for name in names})

    def _linear(self, prefix: str, dtype: torch.dtype) -> LinearWeights:
        """The checkpoint interleaves per key head: [q | k | v | z] and [b | a], each with its value heads.

        Gates stay float32, since exp(A_log) in bf16 is off by a percent (vllm#37810).
        """
        c = self.config
        group = c.num_value_heads // c.num_key_heads
        values = group * c.value_head_dim
        qkvz = self._get(f"{prefix}in_proj_qkvz.weight", dtype).view(c.num_key_heads, -1, c.hidden_size)
        q, k, v, z = (
            part.flatten(0, 1) for part in qkvz.split([c.key_head_dim, c.key_head_dim, values, values], dim=1)
        )
        ba = self._get(f"{prefix}in_proj_ba.weight", dtype).view(c.num_key_heads, 2, group, c.hidden_size)
        return LinearWeights(
            in_proj_qkv=torch.cat([q, k, v]),
            in_proj_z=z,
            in_proj_b=ba[:, 0].flatten(0, 1),
            in_proj_a=ba[:, 1].flatten(0, 1),
            conv=self._get(f"{prefix}conv1d.weight", dtype).squeeze(1),
            A_log=self._get(f"{prefix}A_log", torch.float32),
            dt_bias=self._get(f"{prefix}dt_bias", torch.float32),
            norm=self._get(f"{prefix}norm.weight", dtype),
            out_proj=self._get(f"{prefix}out_proj.weight", dtype),
        )

    def _moe(self, prefix: str, dtype: torch.dtype) -> MoEWeights:
        gate_up, down = (f"{prefix}experts.gate_up", dtype), (f"{prefix}experts.down", dtype)
        if gate_up not in self._weights:
            stacked = self.checkpoint.experts(prefix)
            self._weights[gate_up] = stacked.gate_up.to(self._device, dtype)
            self._weights[down] = stacked.down.to(self._device, dtype)
        shared = f"{prefix}shared_expert."
        return MoEWeights(
            router=self._get(f"{prefix}gate.weight", dtype),
            gate_up=self._weights[gate_up],
            down=self._weights[down],
            shared_gate_up=torch.cat(
                [self._get(f"{shared}gate_proj.weight", dtype), self._get(f"{shared}up_proj.weight", dtype)]
            ),
            shared_down=self._get(f"{shared}down_proj.weight", dtype),
            shared_gate=self._get(f"{prefix}shared_expert_gate.weight", dtype),
        )

    def _linear_cache(self, engine: EngineConfig) -> LinearCache:
        c = self.config
        line = (engine.num_slots, c.conv_width - 1 + engine.k, c.conv_dim)
        state = (engine.num_slots, c.num_value_heads, c.value_head_dim, c.key_head_dim)
        return LinearCache(
            conv=guarded(line, engine.dtype, engine.device),
            recurrent=guarded(state, engine.state_dtype, engine.device),
            journal=self._journal(engine) if engine.layout == "replay" else None,
        )

    def _journal(self, engine: EngineConfig) -> Journal:
        c, halves = self.config, (engine.num_slots, 2, engine.k + 1)
        return Journal(
            k=guarded((*halves, c.num_key_heads, c.key_head_dim), engine.dtype, engine.device),
            writes=guarded((*halves, c.num_value_heads, c.value_head_dim), torch.float32, engine.device),
            g=guarded((*halves, c.num_value_heads), torch.float32, engine.device),
        )

    def _kv_cache(self, engine: EngineConfig) -> KVCache:
        size = engine.block_size
        shape = (engine.num_blocks * size, self.config.num_kv_heads, self.config.head_dim)
        return KVCache(
            keys=guarded(shape, engine.dtype, engine.device, rows=size),
            values=guarded(shape, engine.dtype, engine.device, rows=size),
            block_size=size,
        )

    def _get(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        """A weight on the device, in this dtype."""
        if (name, dtype) not in self._weights:
            self._weights[name, dtype] = self.checkpoint.tensor(name).to(self._device, dtype)
        return self._weights[name, dtype]
