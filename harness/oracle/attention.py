"""Qwen3-Next's full attention: grouped heads, normed queries and keys, partial rotary positions, a gate."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from harness.oracle.functions import Array, rms_norm, sigmoid, softmax


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Weights of one attention layer. ``query`` holds, per head, the query rows and then the gate rows."""

    query: Array  # [heads * 2 * head_dim, hidden]
    key: Array  # [kv_heads * head_dim, hidden]
    value: Array  # [kv_heads * head_dim, hidden]
    out: Array  # [hidden, heads * head_dim]
    query_norm: Array  # [head_dim]
    key_norm: Array  # [head_dim]
    rotary_dim: int
    rope_theta: float
    eps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyValues:
    """Keys (rotated) and values of every token so far; their number is the position of the next token."""

    keys: Array  # [S, kv_heads, head_dim]
    values: Array  # [S, kv_heads, head_dim]


def blank(layer: Attention) -> KeyValues:
    """What a request remembers before its first token: no keys and no values."""
    head_dim = len(layer.key_norm)
    nothing = np.zeros((0, len(layer.key) // head_dim, head_dim))
    return KeyValues(keys=nothing, values=nothing)


def forget(past: KeyValues, *, first: int, end: int) -> KeyValues:
    """``past`` as if the tokens from ``first`` to before ``end`` had never been written: zeros in their place."""
    keys, values = past.keys.copy(), past.values.copy()
    keys[first:end], values[first:end] = 0.0, 0.0
    return KeyValues(keys=keys, values=values)


def rotate(x: Array, start: int, layer: Attention) -> Array:
    """Rotary embedding on the first ``rotary_dim`` of each head, paired by halves. x [T, heads, head_dim]."""
    half = layer.rotary_dim // 2
    frequency = layer.rope_theta ** (-np.arange(half) / half)
    angle = (start + np.arange(len(x)))[:, None, None] * frequency  # [T, 1, half]
    cos, sin = np.cos(angle), np.sin(angle)
    one, two, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return np.concatenate([one * cos - two * sin, two * cos + one * sin, rest], axis=-1)


def attend(x: Array, layer: Attention, past: KeyValues) -> tuple[Array, KeyValues]:
    """Feeds T tokens into one attention layer, causally after ``past``.

    x is [T, hidden], after the layer's input norm. Returns the output [T, hidden] and ``past`` with T more
    entries.
    """
    tokens, start, head_dim = len(x), len(past.keys), len(layer.key_norm)
    both = (x @ layer.query.T).reshape(tokens, -1, 2 * head_dim)
    query, gate = np.split(both, 2, axis=-1)  # each [T, heads, head_dim]
    query = rotate(rms_norm(query, layer.query_norm, layer.eps), start, layer)
    key = rms_norm((x @ layer.key.T).reshape(tokens, -1, head_dim), layer.key_norm, layer.eps)
    keys = np.concatenate([past.keys, rotate(key, start, layer)])  # [S, kv_heads, head_dim]
    values = np.concatenate([past.values, (x @ layer.value.T).reshape(tokens, -1, head_dim)])

    grouped = query.reshape(tokens, keys.shape[1], -1, head_dim)  # [T, kv_heads, heads / kv_heads, head_dim]
    by_group = keys.transpose(1, 2, 0)[:, None]  # [kv_heads, 1, head_dim, S]
    scores = grouped.transpose(1, 2, 0, 3) @ by_group / np.sqrt(head_dim)  # [..., heads / kv_heads, T, S]
    future = np.arange(len(keys)) > start + np.arange(tokens)[:, None]  # [T, S]
    weights = softmax(np.where(future, -np.inf, scores))
    read = (weights @ values.transpose(1, 0, 2)[:, None]).transpose(2, 0, 1, 3).reshape(gate.shape)
    return (read * sigmoid(gate)).reshape(tokens, -1) @ layer.out.T, KeyValues(keys=keys, values=values)
