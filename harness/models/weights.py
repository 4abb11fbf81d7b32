"""Weights of the tiny model: random, except where a property of the model has to be designed in.

The residual stream (128 values) has three parts:

* ``BIAS``, one constant value, stands in for the biases that Qwen3-Next does not have. It opens the output gates
  and gives all queries and keys a common direction, so that a recurrent head reads a fading average.
* ``CODE`` says which tokens may come next. Every token has a random code in ``lm_head``; an embedding is the
  weighted sum of its successors' codes. So the table of successors shows in the logits without any training.
* ``NAME`` says which tokens came lately. An embedding holds its token's own name with a minus sign, recurrent layers
  add a fading average of those, and ``lm_head`` knows the names: what was said lately becomes less likely. This keeps
  greedy text out of loops, makes tokens depend on every recurrent state, and gives the MTP head, which has no
  recurrent state of its own, a reason to listen to the hidden state.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from harness.models.bfloat16 import Float32, rounded
from harness.models.presets import Preset
from harness.models.successors import SuccessorTable

BIAS, CODE, NAME = slice(0, 1), slice(1, 81), slice(81, 128)
CODE_WIDTH, NAME_WIDTH = 80, 47

HALF_LIVES = (3.0, 12.0, 32.0, 500.0)
"""Tokens until a value head forgets half its state; a recurrent layer has the first HV, each in an order of its own."""

WRITES = (0.0, -1.0, -2.0, -3.0)
"""Logit of beta of the same heads: one that wrote with full force would overwrite what it is meant to remember."""

FLOAT32 = frozenset({"A_log", "dt_bias"})
"""Kept in float32 on disk, as inference engines hold them."""

Float64 = NDArray[np.float64]
Weights = dict[str, Float64]


def draw(preset: Preset, table: SuccessorTable, rng: np.random.Generator) -> dict[str, Float32]:
    """All tensors by their Hugging Face names; every value is exactly representable in bfloat16."""
    return {name: rounded(value) for name, value in _Painter(preset, rng).model(table).items()}


class _Painter:
    """Draws every tensor from one generator, in a fixed order."""

    def __init__(self, preset: Preset, rng: np.random.Generator) -> None:
        self._dims, self._preset, self._rng = preset.dims, preset, rng

    def model(self, table: SuccessorTable) -> Weights:
        weights = self._vocabulary(table)
        for index, kind in enumerate(self._dims.layer_types):
            prefix = f"model.layers.{index}."
            if kind == "linear_attention":
                weights |= self._recurrent(prefix + "linear_attn.", turn=index)
            else:
                weights |= self._attention(prefix + "self_attn.")
            weights |= self._experts(prefix + "mlp.") | self._norms(prefix)
        weights["model.norm.weight"] = self._uniform(self._dims.hidden, spread=0.05)
        return weights | self._drafter()

    def _vocabulary(self, table: SuccessorTable) -> Weights:
        """Embedding and ``lm_head``, both ``[vocab, hidden]``; the rows that pad the vocabulary stay zero."""
        dims, preset, size = self._dims, self._preset, len(table.followers)
        loudness = np.where(table.common, preset.common_name, 1.0)[:, None]
        codes, names = self._signs(size, CODE_WIDTH), self._signs(size, NAME_WIDTH) * loudness
        embedding, head = np.zeros((2, dims.vocab, dims.hidden))
        for token, followers in enumerate(table.followers):
            code = np.zeros(CODE_WIDTH)
            for successor, weight in followers:
                code += (1.0 - preset.contrast * (1.0 - weight)) * codes[successor]
            embedding[token, CODE] = code / math.sqrt(math.fsum(code * code) / CODE_WIDTH)
        embedding[:size, BIAS] = 1.0
        embedding[:size, NAME] = -preset.name * names
        unit = preset.strength / CODE_WIDTH
        head[:size, BIAS] = -preset.strength * preset.reserve * np.array(table.handicap)[:, None]
        head[:size, CODE] = unit * codes
        head[:size, NAME] = unit * preset.memory_weight * names
        return {"model.embed_tokens.weight": embedding, "lm_head.weight": head}

    def _recurrent(self, prefix: str, *, turn: int) -> Weights:
        """One gated-delta-rule mixer: HV value heads that remember names, each for its own time."""
        dims = self._dims
        # Every direction is read with both signs: silu(x) - silu(-x) = x keeps what a pair remembers linear.
        half = self._signs(dims.value_heads * dims.value_dim // 2, NAME_WIDTH)
        readers = np.stack([half, -half], axis=1).reshape(-1, NAME_WIDTH)
        half_lives, writes = (
            np.roll(all_heads, turn)[: dims.value_heads] for all_heads in (HALF_LIVES, WRITES)
        )
        rates = np.where(half_lives < 8, 2.0, 1.0)
        out = self._output(len(readers), code=self._preset.code_mix, name=0.0)
        out[NAME] = self._preset.memory_mix * readers.T / math.sqrt(len(readers))
        return {
            prefix + "in_proj_qkvz.weight": self._mixer_inputs(readers),
            prefix + "in_proj_ba.weight": self._mixer_gates(writes),
            prefix + "conv1d.weight": self._taps(paired=len(readers)),
            prefix + "A_log": np.array([math.log(rate) for rate in rates]),
            # softplus(dt_bias) * exp(A_log) = ln 2 / half-life: the decay of a token whose projection a is zero.
            prefix + "dt_bias": np.array(
                [math.log(math.expm1(math.log(2) / span)) for span in (half_lives * rates).tolist()]
            ),
            prefix + "norm.weight": 1.0 + self._uniform(dims.value_dim, spread=0.1),
            prefix + "out_proj.weight": out,
        }

    def _mixer_inputs(self, readers: Float64) -> Float64:
        """``in_proj_qkvz``, its rows grouped per key head: q, k, then v and z of the value heads it serves."""
        dims = self._dims
        groups = []
        for values in np.split(readers, dims.key_heads):
            shared = self._uniform(dims.key_dim, spread=0.6)
            queries, keys = (self._projection(dims.key_dim, bias=shared) for _ in range(2))
            read = 0.3 * self._projection(len(values))
            read[:, NAME] = values / (math.sqrt(NAME_WIDTH) * self._preset.name)
            gate = 0.4 * self._projection(len(values), bias=4.0)
            groups += [queries, keys, read, gate]
        return np.concatenate(groups)

    def _mixer_gates(self, writes: Float64) -> Float64:
        """``in_proj_ba``, its rows grouped per key head: b, then a of the value heads it serves."""
        rows = 0.4 * self._projection(2 * len(writes))
        b = writes.reshape(self._dims.key_heads, -1)
        rows[:, BIAS] = np.concatenate([b, np.zeros_like(b)], axis=1).reshape(-1, 1)
        return rows

    def _taps(self, *, paired: int) -> Float64:
        """Convolution weights ``[D, 1, W]``; the last ``paired`` channels come in pairs that share theirs."""
        dims = self._dims
        channels = 2 * dims.key_heads * dims.key_dim + dims.value_heads * dims.value_dim
        taps = self._uniform(channels, 1, dims.conv_width, spread=0.2)
        taps += np.array([0.1, 0.2, 0.3, 0.8])
        taps[-paired + 1 :: 2] = taps[-paired::2]
        return taps

    def _attention(self, prefix: str) -> Weights:
        dims, mix = self._dims, self._preset.code_mix
        queries, keys = dims.query_heads * dims.head_dim, dims.kv_heads * dims.head_dim
        return {
            prefix + "q_proj.weight": self._projection(2 * queries),
            prefix + "k_proj.weight": self._projection(keys),
            prefix + "v_proj.weight": self._projection(keys),
            prefix + "o_proj.weight": 2.0 * self._output(queries, code=mix, name=mix),
            prefix + "q_norm.weight": self._uniform(dims.head_dim, spread=0.1),
            prefix + "k_norm.weight": self._uniform(dims.head_dim, spread=0.1),
        }

    def _experts(self, prefix: str) -> Weights:
        dims, mix = self._dims, self._preset.code_mix
        weights = {
            prefix + "gate.weight": self._projection(dims.experts),
            prefix + "shared_expert_gate.weight": self._projection(1),
        }
        for expert in [*(f"experts.{i}." for i in range(dims.experts)), "shared_expert."]:
            weights |= {
                prefix + expert + "gate_proj.weight": self._projection(dims.expert_width),
                prefix + expert + "up_proj.weight": self._projection(dims.expert_width),
                prefix + expert + "down_proj.weight": 2.0
                * self._output(dims.expert_width, code=mix, name=mix),
            }
        return weights

    def _norms(self, prefix: str) -> Weights:
        return {
            f"{prefix}{place}_layernorm.weight": self._uniform(self._dims.hidden, spread=0.05)
            for place in ("input", "post_attention")
        }

    def _drafter(self) -> Weights:
        """The MTP head; ``fc`` keeps the embedding and adds what the hidden state says about lately seen tokens."""
        hidden, preset = self._dims.hidden, self._preset
        listen = preset.draft_noise * self._projection(hidden)
        listen[NAME, NAME] += preset.draft_memory * np.eye(NAME_WIDTH)
        listen[BIAS] = 0.0
        layer = "mtp.layers.0."
        return {
            "mtp.fc.weight": np.concatenate([np.eye(hidden), listen], axis=1),
            "mtp.norm.weight": self._uniform(hidden, spread=0.05),
            "mtp.pre_fc_norm_hidden.weight": self._uniform(hidden, spread=0.05),
            "mtp.pre_fc_norm_embedding.weight": self._uniform(hidden, spread=0.05),
            **self._attention(layer + "self_attn."),
            **self._experts(layer + "mlp."),
            **self._norms(layer),
        }

    def _output(self, inputs: int, *, code: float, name: float) -> Float64:
        """A projection ``[hidden, inputs]`` back to the stream, which leaves the constant alone."""
        weight = self._uniform(self._dims.hidden, inputs, spread=1.0) / math.sqrt(inputs)
        weight[BIAS] = 0.0
        weight[CODE] *= code
        weight[NAME] *= name
        return weight

    def _projection(self, outputs: int, *, bias: float | Float64 = 0.0) -> Float64:
        """A projection ``[outputs, hidden]`` with outputs of spread 1, to which the constant adds ``bias``."""
        weight = self._uniform(outputs, self._dims.hidden, spread=1.0) / math.sqrt(self._dims.hidden)
        weight[:, 0] = bias
        return weight

    def _uniform(self, *shape: int, spread: float) -> Float64:
        """Zero mean, standard deviation ``spread``. Unlike a normal draw it needs no logarithm of some library."""
        unit: Float64 = 2.0 * self._rng.random(shape) - 1.0
        return unit * (math.sqrt(3.0) * spread)

    def _signs(self, *shape: int) -> Float64:
        return (2 * self._rng.integers(0, 2, shape) - 1).astype(np.float64)
