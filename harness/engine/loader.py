"""From a checkpoint folder to a model with caches: weights once, caches for every engine."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

import torch

from harness.engine.attention_layer import AttentionLayer, AttentionWeights, KVCache
from harness.engine.config import EngineConfig
from harness.engine.grammars import Vocabulary
from harness.engine.kernels.base import Kernels
from harness.engine.linear_layer import LinearCache, LinearLayer, LinearWeights
from harness.engine.model import Block, HybridModel, MTPHead
from harness.engine.moe import MoEWeights
from harness.engine.policy import Policy
from harness.models.checkpoint import Checkpoint
from harness.models.config import FULL, ModelConfig


class Loader:
    """An opened model folder; weights are read when first asked for and then shared by every engine built on them."""

    def __init__(self, folder: Path, *, dtype: torch.dtype = torch.float32, device: str = "cpu") -> None:
        self.folder = folder
        self.checkpoint = Checkpoint.open(folder)
        self.config: ModelConfig = self.checkpoint.config
        self._dtype = dtype
        self._device = device
        self._weights: dict[str, torch.Tensor] = {}

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The tokenizer as the grammar library sees it."""
        return Vocabulary.load(self.folder)

    def model(self, engine: EngineConfig, policy: Policy, kernels: Kernels) -> HybridModel:
        """The target model with empty caches."""
        return HybridModel(
            config=self.config,
            embedding=self._get("model.embed_tokens.weight"),
            blocks=tuple(
                self._block(f"model.layers.{i}.", kind, engine, policy, kernels)
                for i, kind in enumerate(self.config.layer_types)
            ),
            norm=self._get("model.norm.weight"),
            lm_head=self._get("lm_head.weight"),
        )

    def head(self, engine: EngineConfig, policy: Policy, kernels: Kernels) -> MTPHead | None:
        """The MTP head with an empty cache, ``None`` where the checkpoint holds none."""
        if not self.config.num_mtp_layers:
            return None
        return MTPHead(
            config=self.config,
            norm_embedding=self._get("mtp.pre_fc_norm_embedding.weight"),
            norm_hidden=self._get("mtp.pre_fc_norm_hidden.weight"),
            fc=self._get("mtp.fc.weight"),
            block=self._block("mtp.layers.0.", FULL, engine, policy, kernels),
            norm=self._get("mtp.norm.weight"),
        )

    def _block(self, prefix: str, kind: str, engine: EngineConfig, policy: Policy, kernels: Kernels) -> Block:
        mixer: LinearLayer | AttentionLayer
        if kind == FULL:
            mixer = AttentionLayer(
                config=self.config,
                weights=self._attention(f"{prefix}self_attn."),
                cache=self._kv_cache(engine),
            )
        else:
            mixer = LinearLayer(
                config=self.config,
                weights=self._linear(f"{prefix}linear_attn."),
                cache=self._linear_cache(engine),
                kernels=kernels,
                policy=policy,
            )
        return Block(
            mixer=mixer,
            input_norm=self._get(f"{prefix}input_layernorm.weight"),
            post_norm=self._get(f"{prefix}post_attention_layernorm.weight"),
            moe=self._moe(f"{prefix}mlp."),
            config=self.config,
        )

    def _attention(self, prefix: str) -> AttentionWeights:
        names = ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm")
        return AttentionWeights(**{name: self._get(f"{prefix}{name}.weight") for name in names})

    def _linear(self, prefix: str) -> LinearWeights:
        """The checkpoint interleaves per key head: [q | k | v | z] and [b | a], each with its value heads."""
        c = self.config
        group = c.num_value_heads // c.num_key_heads
        values = group * c.value_head_dim
        qkvz = self._get(f"{prefix}in_proj_qkvz.weight").view(c.num_key_heads, -1, c.hidden_size)
        q, k, v, z = (
            part.flatten(0, 1) for part in qkvz.split([c.key_head_dim, c.key_head_dim, values, values], dim=1)
        )
        ba = self._get(f"{prefix}in_proj_ba.weight").view(c.num_key_heads, 2, group, c.hidden_size)
        return LinearWeights(
            in_proj_qkv=torch.cat([q, k, v]),
            in_proj_z=z,
            in_proj_b=ba[:, 0].flatten(0, 1),
            in_proj_a=ba[:, 1].flatten(0, 1),
            conv=self._get(f"{prefix}conv1d.weight").squeeze(1),
            A_log=self._get(f"{prefix}A_log", torch.float32),
            dt_bias=self._get(f"{prefix}dt_bias", torch.float32),
            norm=self._get(f"{prefix}norm.weight"),
            out_proj=self._get(f"{prefix}out_proj.weight"),
        )

    def _moe(self, prefix: str) -> MoEWeights:
        key = f"{prefix}experts"
        if f"{key}.gate_up" not in self._weights:
            gate_up, down = self.checkpoint.experts(prefix)
            self._weights[f"{key}.gate_up"] = gate_up.to(self._device, self._dtype)
            self._weights[f"{key}.down"] = down.to(self._device, self._dtype)
        shared = f"{prefix}shared_expert."
        return MoEWeights(
            router=self._get(f"{prefix}gate.weight"),
            gate_up=self._weights[f"{key}.gate_up"],
            down=self._weights[f"{key}.down"],
            shared_gate_up=torch.cat(
                [self._get(f"{shared}gate_proj.weight"), self._get(f"{shared}up_proj.weight")]
            ),
            shared_down=self._get(f"{shared}down_proj.weight"),
            shared_gate=self._get(f"{prefix}shared_expert_gate.weight"),
        )

    def _linear_cache(self, engine: EngineConfig) -> LinearCache:
        c = self.config
        return LinearCache(
            conv=torch.zeros(
                engine.num_slots,
                c.conv_width - 1 + engine.k,
                c.conv_dim,
                dtype=engine.dtype,
                device=engine.device,
            ),
            recurrent=torch.zeros(
                engine.num_slots,
                c.num_value_heads,
                c.value_head_dim,
                c.key_head_dim,
                dtype=engine.state_dtype,
                device=engine.device,
            ),
        )

    def _kv_cache(self, engine: EngineConfig) -> KVCache:
        shape = (engine.num_blocks * engine.block_size, self.config.num_kv_heads, self.config.head_dim)
        return KVCache(
            keys=torch.zeros(shape, dtype=engine.dtype, device=engine.device),
            values=torch.zeros(shape, dtype=engine.dtype, device=engine.device),
            block_size=engine.block_size,
        )

    def _get(self, name: str, dtype: torch.dtype | None = None) -> torch.Tensor:
        """A weight in the engine's dtype; gates stay float32, since exp(A_log) in bf16 is off by a percent (#37810)."""
        if name not in self._weights:
            self._weights[name] = self.checkpoint.tensor(name).to(self._device, dtype or self._dtype)
        return self._weights[name]
