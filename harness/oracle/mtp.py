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
    router_gap: Array  # [k] as ``Position.router_gap``, of the head's own experts
    past: KeyValues  # what the head remembers then: what it read, and all drafts but the last


class Drafter:
    """The head over one request: reads it once, then drafts after any number of its tokens."""

    def __init__(self, oracle: Oracle, tokens: Sequence[int], hidden: Array) -> None:
        """hidden [T, hidden] is the target's output after its final norm for the first T of ``tokens`` [T + 1], T >= 1.

        Raises Unsupported if the checkpoint has no MTP head and ValueError if the two lengths do not fit.
        """
        self._weights = oracle.weights
        if self._weights.mtp is None:
            raise Unsupported("the checkpoint has no mtp.* tensors, so there is no MTP head to draft with")
        if not len(tokens) == len(hidden) + 1 >= 2:
            raise ValueError(f"{len(tokens)} tokens for {len(hidden)} hidden states: expected one token more")
        assert isinstance(self._weights.mtp.layer.mixer, Attention)
        self._ids = in_vocabulary(tokens, self._weights.config.vocab_size)[1:]
        self._given = hidden
        past = attention.blank(self._weights.mtp.layer.mixer)
        self._hidden, self._past, self._gap = predict(
            self._weights, self._weights.mtp, self._ids, hidden, past
        )

    def past(self, length: int) -> KeyValues:
        """What the head remembers after the first ``length`` positions."""
        return KeyValues(keys=self._past.keys[:length], values=self._past.values[:length])

    def after(self, count: int, k: int, along: Sequence[int] = ()) -> Drafts:
        """k drafts after the first ``count`` tokens (2 to T + 1), the last of which is not yet fed to the target.

        What is fed back is the argmax, or ``along``, as far as that goes.
        """
        last = count - 2
        return self._go_on(self._hidden[last], self._gap[last], self.past(last + 1), k, along)

    def after_other(self, count: int, k: int, past: KeyValues, read: int | None = None) -> Drafts:
        """The same, had the head remembered ``past`` [count - 2], or been given the hidden state at ``read``."""
        last = count - 2
        given = self._given[last if read is None else read]
        assert self._weights.mtp is not None
        hidden, past, gap = predict(
            self._weights, self._weights.mtp, self._ids[last : last + 1], given[None], past
        )
        return self._go_on(hidden[0], gap[0], past, k, ())

    def _go_on(self, hidden: Array, gap: float, past: KeyValues, k: int, along: Sequence[int]) -> Drafts:
        weights = self._weights
        assert weights.mtp is not None
        rows: list[Array] = []
        gaps: list[float] = []
        for j in range(k):
            if j:
                fed = along[j - 1] if j <= len(along) else rows[-1].argmax()
                outputs, past, gap_of = predict(weights, weights.mtp, np.array([fed]), hidden[None], past)
                hidden, gap = outputs[0], gap_of[0]
            rows.append(weights.lm_head @ hidden)
            gaps.append(gap)
        logits = np.stack(rows) if rows else np.zeros((0, weights.config.vocab_size))
        return Drafts(tokens=logits.argmax(axis=-1), logits=logits, router_gap=np.array(gaps), past=past)


def draft(oracle: Oracle, tokens: Sequence[int], hidden: Array, k: int) -> Drafts:
    """Drafts k tokens after ``tokens`` [T + 1], the last of which is sampled but not yet fed to the target.

    hidden [T, hidden] is the target's output after its final norm for the first T tokens, T >= 1. Raises
    Unsupported if the checkpoint has no MTP head and ValueError if the two lengths do not fit.
    """
    return Drafter(oracle, tokens, hidden).after(len(tokens), k)


def predict(
    weights: Weights, head: Head, ids: Ints, hidden: Array, past: KeyValues
) -> tuple[Array, KeyValues, Array]:
    """One pass of the head over T positions: ids [T], hidden [T, hidden].

    Returns its normed output [T, hidden], ``past`` with T more entries, and the router's gap [T].
    """
    eps, layer = weights.config.eps, head.layer
    assert isinstance(layer.mixer, Attention)
    embedded = rms_norm(weights.embedding[ids], head.embedding_norm, eps)
    x = np.concatenate([embedded, rms_norm(hidden, head.hidden_norm, eps)], axis=-1) @ head.fc.T
    mixed, past = attention.attend(rms_norm(x, layer.input_norm, eps), layer.mixer, past)
    x = x + mixed
    fed, routing = moe.mix(rms_norm(x, layer.post_norm, eps), layer.experts)
    return rms_norm(x + fed, head.norm, eps), past, routing.gap
