"""The gated delta rule as a fold: one token after another, float64, no chunks and no slots.

    S  <-  exp(g) S                      forget
    u   =  beta (v - S k)                what the state got wrong about this key
    S  <-  S + u k^T                     write it down
    o   =  S q                           read

Yang, Kautz, Hatamizadeh: "Gated Delta Networks: Improving Mamba2 with Delta Rule" (arXiv 2412.06464).
The state is [V, K] per value head; decay comes before the error term. What surrounds the rule (convolution,
gates, gated norm) is Qwen3-Next's.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from harness.oracle.functions import Array, l2_norm, rms_norm, sigmoid, silu, softplus


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaNet:
    """Weights of one linear layer: H key heads, HV value heads, D = 2 H K + HV V channels ordered q, k, v."""

    qkv: Array  # [D, hidden]
    z: Array  # [HV * V, hidden]
    a: Array  # [HV, hidden]
    b: Array  # [HV, hidden]
    taps: Array  # [D, W], oldest input first
    A_log: Array  # [HV]
    dt_bias: Array  # [HV]
    norm: Array  # [V]
    out: Array  # [hidden, HV * V]
    key_heads: int
    eps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """All that a linear layer remembers of a request. The arrays are never written to."""

    conv: Array  # [W - 1, D] raw inputs of the convolution, oldest first
    recurrent: Array  # [HV, V, K]


def blank(layer: DeltaNet) -> Memory:
    """What a request remembers before its first token: zeros."""
    channels, width = layer.taps.shape
    value_heads, value_dim = len(layer.A_log), len(layer.norm)
    key_dim = (channels - value_heads * value_dim) // (2 * layer.key_heads)
    return Memory(conv=np.zeros((width - 1, channels)), recurrent=np.zeros((value_heads, value_dim, key_dim)))


def convolve(window: Array, taps: Array) -> Array:
    """Causal depthwise convolution, then silu. window [W - 1 + T, D], taps [D, W] -> [T, D]."""
    width = taps.shape[1]
    tokens = len(window) - width + 1
    total = np.zeros((tokens, window.shape[1]))
    for w in range(width):
        total += taps[:, w] * window[w : w + tokens]
    return silu(total)


def delta_rule(state: Array, q: Array, k: Array, v: Array, g: Array, beta: Array) -> tuple[Array, Array]:
    """One token. state [HV, V, K]; q, k [HV, K], normed and scaled; v [HV, V]; g, beta [HV].

    Returns the new state and the output [HV, V]; the old state is left as it was.
    """
    state = np.exp(g)[:, None, None] * state
    error = v - (state @ k[:, :, None])[:, :, 0]
    state += (beta[:, None] * error)[:, :, None] * k[:, None, :]
    return state, (state @ q[:, :, None])[:, :, 0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What T tokens bring to the recurrence of one layer."""

    window: Array  # [W - 1 + T, D] raw inputs of the convolution, those before included
    q: Array  # [T, HV, K], normed and scaled
    k: Array  # [T, HV, K], normed
    v: Array  # [T, HV, V]
    g: Array  # [T, HV]
    beta: Array  # [T, HV]


def read(x: Array, layer: DeltaNet, history: Array) -> Inputs:
    """The inputs of T tokens: x [T, hidden], after the layer's input norm; history [W - 1, D]."""
    tokens, heads, value_heads = len(x), layer.key_heads, len(layer.A_log)
    window = np.concatenate([history, x @ layer.qkv.T])
    mixed = convolve(window, layer.taps)
    key_width = (mixed.shape[1] - len(layer.z)) // 2
    q, k, v = np.split(mixed, [key_width, 2 * key_width], axis=1)

    def per_value_head(keys: Array) -> Array:  # [T, H * K] -> [T, HV, K]
        return np.repeat(l2_norm(keys.reshape(tokens, heads, -1)), value_heads // heads, axis=1)

    q, k = per_value_head(q), per_value_head(k)
    return Inputs(
        window=window,
        q=q / np.sqrt(q.shape[-1]),
        k=k,
        v=v.reshape(tokens, value_heads, -1),
        g=-np.exp(layer.A_log) * softplus(x @ layer.a.T + layer.dt_bias),
        beta=sigmoid(x @ layer.b.T),
    )


def fold(
    x: Array, layer: DeltaNet, memory: Memory, keep: Collection[int] = ()
) -> tuple[Array, dict[int, Memory]]:
    """Feeds T tokens into one linear layer.

    x is [T, hidden], after the layer's input norm. Returns the output [T, hidden] and the memory after as
    many of these tokens as ``keep`` says (0 to T), and always after T.
    """
    tokens, history = len(x), len(memory.conv)
    fed = read(x, layer, memory.conv)
    state, output = memory.recurrent, np.empty_like(fed.v)
    kept = {0: memory} if 0 in keep or not tokens else {}
    for t in range(tokens):
        state, output[t] = delta_rule(state, fed.q[t], fed.k[t], fed.v[t], fed.g[t], fed.beta[t])
        if (after := t + 1) in keep or after == tokens:
            kept[after] = Memory(conv=fed.window[after : after + history].copy(), recurrent=state)

    gated = rms_norm(output, layer.norm, layer.eps) * silu((x @ layer.z.T).reshape(output.shape))
    return gated.reshape(tokens, -1) @ layer.out.T, kept
