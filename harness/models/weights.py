"""Weights of the tiny model: random, except where a property of the model has to be designed in.

The residual stream (128 values) has three parts, and each is there for a reason:

* ``BIAS``, one constant value: stands in for the biases Qwen3-Next does not have. It opens the output gates and gives all
  queries and keys a common direction, so that a recurrent head reads a fading average of what it stored.
* ``CODE``: ``lm_head`` gives every token a random code; an embedding is the weighted sum of its successors' codes. That makes the
  table of successors visible in the logits without any training.
* ``TOPIC``: only layers write here, mostly the recurrent ones. It sways the choice among the successors, hence a wrong
  recurrent state changes tokens, and the hidden state is worth something to the MTP head.
"""

from __future__ import annotations

import math

import numpy as np

from harness.models.bfloat16 import Float32, rounded
from harness.models.presets import Dimensions, Preset
from harness.models.successors import Successors

BIAS, CODE, TOPIC = slice(0, 1), slice(1, 97), slice(97, 128)

HALF_LIVES = (3.0, 12.0, 32.0, 500.0)
"""Tokens until a value head forgets half its state; every recurrent layer has all four, in its own order."""

FLOAT32 = frozenset({"A_log", "dt_bias"})
"""Kept in float32 on disk, as inference engines hold them."""

Tensors = dict[str, Float32]


def draw(dims: Dimensions, preset: Preset, successors: Successors, rng: np.random.Generator) -> Tensors:
    """All tensors by their Hugging Face names; every value is exactly representable in bfloat16."""
    return {name: rounded(value) for name, value in _Painter(dims, preset, rng).model(successors).items()}


class _Painter:
    """Draws every tensor from one generator, in a fixed order."""

    def __init__(self, dims: Dimensions, preset: Preset, rng: np.random.Generator) -> None:
        self._dims, self._preset, self._rng = dims, preset, rng

    def model(self, successors: Successors) -> Tensors:
        hidden = self._dims.hidden
        tensors = self._vocabulary(successors)
        for index, kind in enumerate(self._dims.layer_types):
            prefix = f"model.layers.{index}."
            if kind == "linear_attention":
                tensors |= self._recurrent(prefix + "linear_attn.", turn=index)
            else:
                tensors |= self._attention(prefix + "self_attn.")
            tensors |= self._experts(prefix + "mlp.") | self._norms(prefix)
        tensors["model.norm.weight"] = self._uniform(hidden, spread=0.05)
        return tensors | self._drafter()

    def _vocabulary(self, successors: Successors) -> Tensors:
        """Codes in ``lm_head``, sums of successors' codes in the embedding; padded rows stay zero."""
        dims, preset = self._dims, self._preset
        width = CODE.stop - CODE.start
        codes = self._signs(len(successors), width)
        embedding, head = np.zeros((2, dims.vocab, dims.hidden))
        for token, following in enumerate(successors):
            code = preset.identity * self._signs(width)
            for weight, successor in zip(preset.preference, following, strict=False):
                code = code + weight * codes[successor]
            embedding[token, CODE] = code / math.sqrt(math.fsum(code * code) / width)
        embedding[: len(successors), BIAS] = 1.0
        head[: len(successors), CODE] = codes * (preset.strength / width)
        topics = self._signs(len(successors), TOPIC.stop - TOPIC.start)
        head[: len(successors), TOPIC] = topics * (preset.topic_weight * preset.strength / width)
        return {"model.embed_tokens.weight": embedding, "lm_head.weight": head}

    def _recurrent(self, prefix: str, *, turn: int) -> Tensors:
        """One gated-delta-rule mixer. Rows of both input projections are grouped per key head: [q | k | v v | z z]."""
        dims = self._dims
        per_key = dims.value_heads // dims.key_heads
        channels = 2 * dims.key_heads * dims.key_dim + dims.value_heads * dims.value_dim
        groups = []
        for _ in range(dims.key_heads):
            shared = self._uniform(dims.key_dim, spread=0.6)
            groups += [
                self._biased(dims.key_dim, bias=shared),
                self._biased(dims.key_dim, bias=shared),
                self._biased(per_key * dims.value_dim, bias=0.0),
                self._biased(per_key * dims.value_dim, bias=1.5),
            ]
        half_lives = np.roll(HALF_LIVES, turn)
        rates = np.where(half_lives < 8, 2.0, 1.0)
        gates = self._biased(2 * dims.value_heads, bias=0.0) * 0.4
        taps = self._uniform(channels, 1, dims.conv_width, spread=0.2) + np.array([0.1, 0.2, 0.3, 0.8])
        return {
            prefix + "in_proj_qkvz.weight": np.concatenate(groups),
            prefix + "in_proj_ba.weight": gates,
            prefix + "conv1d.weight": taps,
            prefix + "A_log": np.array([math.log(rate) for rate in rates]),
            # softplus(dt_bias) * A = ln 2 / half-life, the decay of a token whose projection a is zero.
            prefix + "dt_bias": np.array(
                [
                    math.log(math.expm1(math.log(2) / life / rate))
                    for life, rate in zip(half_lives, rates, strict=True)
                ]
            ),
            prefix + "norm.weight": 1.0 + self._uniform(dims.value_dim, spread=0.1),
            prefix + "out_proj.weight": self._output(
                dims.value_heads * dims.value_dim, code=self._preset.code_mix, topic=self._preset.topic_mix
            ),
        }

    def _attention(self, prefix: str) -> Tensors:
        dims, mix = self._dims, self._preset.code_mix
        return {
            prefix + "q_proj.weight": self._biased(2 * dims.query_heads * dims.head_dim, bias=0.0),
            prefix + "k_proj.weight": self._biased(dims.kv_heads * dims.head_dim, bias=0.0),
            prefix + "v_proj.weight": self._biased(dims.kv_heads * dims.head_dim, bias=0.0),
            prefix + "o_proj.weight": 2 * self._output(dims.query_heads * dims.head_dim, code=mix, topic=mix),
            prefix + "q_norm.weight": self._uniform(dims.head_dim, spread=0.1),
            prefix + "k_norm.weight": self._uniform(dims.head_dim, spread=0.1),
        }

    def _experts(self, prefix: str) -> Tensors:
        dims = self._dims
        tensors = {
            prefix + "gate.weight": self._biased(dims.experts, bias=0.0),
            prefix + "shared_expert_gate.weight": self._biased(1, bias=0.0),
        }
        for expert in [f"experts.{i}." for i in range(dims.experts)] + ["shared_expert."]:
            tensors[f"{prefix}{expert}gate_proj.weight"] = self._biased(dims.expert_width, bias=0.0)
            tensors[f"{prefix}{expert}up_proj.weight"] = self._biased(dims.expert_width, bias=0.0)
            tensors[f"{prefix}{expert}down_proj.weight"] = 2 * self._output(
                dims.expert_width, code=self._preset.code_mix, topic=self._preset.code_mix
            )
        return tensors

    def _norms(self, prefix: str) -> Tensors:
        return {
            prefix + "input_layernorm.weight": self._uniform(self._dims.hidden, spread=0.05),
            prefix + "post_attention_layernorm.weight": self._uniform(self._dims.hidden, spread=0.05),
        }

    def _drafter(self) -> Tensors:
        """The MTP head: ``fc`` keeps the embedding and adds the hidden state's topic to it, plus some random mixing."""
        hidden = self._dims.hidden
        from_hidden = self._preset.draft_noise * self._biased(hidden, bias=0.0)
        from_hidden[TOPIC, TOPIC] += self._preset.draft_topic * np.eye(TOPIC.stop - TOPIC.start)
        from_hidden[BIAS] = 0.0
        layer = "mtp.layers.0."
        return {
            "mtp.fc.weight": np.concatenate([np.eye(hidden), from_hidden], axis=1),
            "mtp.norm.weight": self._uniform(hidden, spread=0.05),
            "mtp.pre_fc_norm_hidden.weight": self._uniform(hidden, spread=0.05),
            "mtp.pre_fc_norm_embedding.weight": self._uniform(hidden, spread=0.05),
            **self._attention(layer + "self_attn."),
            **self._experts(layer + "mlp."),
            **self._norms(layer),
        }

    def _output(self, inputs: int, *, code: float, topic: float) -> Float32:
        """A projection [hidden, inputs] back to the stream that leaves the constant alone."""
        weight = self._uniform(self._dims.hidden, inputs, spread=1.0) / math.sqrt(inputs)
        weight[BIAS], weight[CODE], weight[TOPIC] = 0.0, weight[CODE] * code, weight[TOPIC] * topic
        return weight

    def _biased(self, outputs: int, *, bias: float | Float32) -> Float32:
        """A projection [outputs, hidden] with unit spread whose constant input adds ``bias``."""
        weight = self._uniform(outputs, self._dims.hidden, spread=1.0) / math.sqrt(self._dims.hidden)
        weight[:, 0] = bias
        return weight

    def _uniform(self, *shape: int, spread: float) -> Float32:
        """Zero mean, standard deviation ``spread``. Uniform: unlike a normal draw it needs no library logarithm."""
        return (2.0 * self._rng.random(shape) - 1.0) * (math.sqrt(3.0) * spread)

    def _signs(self, *shape: int) -> Float32:
        return 2.0 * self._rng.integers(0, 2, shape) - 1.0
