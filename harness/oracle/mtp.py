"""The multi-token-prediction head as a drafter without a past: fresh, over the committed prefix.

Position i sees the embedding of token i + 1 and the target's hidden state of token i, at rotary position i.
The first draft comes from the last position. Each further draft feeds the previous one back, with the head's
own output in place of the target's hidden state. (vLLM's Qwen3NextMultiTokenPredictor, after DeepSeek-V3.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from harness.errors import Unsupported
from harness.oracle import attention, moe
from harness.oracle.attention import Attention, KeyValues
from harness.oracle.functions import Array, Ints, rms_norm
from harness.oracle.model import Oracle, in_vocabulary
from harness.oracle.weights import Head, Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafts:
    """k drafts and the logits that each was the argmax of."""

    tokens: Ints  # [k] argmax at every step; equal logits go to the smaller id
    logits: Array  # [k, vocab]


def draft(oracle: Oracle, tokens: Sequence[int], hidden: Array, k: int) -> Drafts:
    """Drafts k tokens after ``tokens`` [T + 1], the last of which is sampled but not yet fed to the target.

    hidden [T, hidden] is the target's output after its final norm for the first T tokens, T >= 1. Raises
    Unsupported if the checkpoint has no MTP head and ValueError if the two lengths do not fit.
    """
    weights = oracle.weights
    if weights.mtp is None:
        raise Unsupported("the checkpoint has no mtp.* tensors, so there is no MTP head to draft with")
    if not len(tokens) == len(hidden) + 1 >= 2:
        raise ValueError(f"{len(tokens)} tokens for {len(hidden)} hidden states: expected one token more")
    assert isinstance(weights.mtp.layer.mixer, Attention)
    past = attention.blank(weights.mtp.layer.mixer)
    ids = in_vocabulary(tokens, weights.config.vocab_size)[1:]
    rows: list[Array] = []
    for _ in range(k):
        hidden, past = predict(weights, weights.mtp, ids, hidden, past)
        hidden = hidden[-1:]
        rows.append(weights.lm_head @ hidden[0])
        ids = np.array([rows[-1].argmax()])
    logits = np.stack(rows) if rows else np.zeros((0, weights.config.vocab_size))
    return Drafts(tokens=logits.argmax(axis=-1), logits=logits)


def predict(
    weights: Weights, head: Head, ids: Ints, hidden: Array, past: KeyValues
) -> tuple[Array, KeyValues]:
    """One pass of the head over T positions: ids [T], hidden [T, hidden] -> its normed output [T, hidden]."""
    eps, layer = weights.config.eps, head.layer
    assert isinstance(layer.mixer, Attention)
    embedded = rms_norm(weights.embedding[ids], head.embedding_norm, eps)
    x = np.concatenate([embedded, rms_norm(hidden, head.hidden_norm, eps)], axis=-1) @ head.fc.T
    mixed, past = attention.attend(rms_norm(x, layer.input_norm, eps), layer.mixer, past)
    x = x + mixed
    x = x + moe.mix(rms_norm(x, layer.post_norm, eps), layer.experts)[0]
    return rms_norm(x, head.norm, eps), past
