"""What verification may commit: Leviathan, Kalman, Matias (2023) and Chen et al. (2023), as exact probabilities.

A row of n drafts has n + 1 target rows. Walking from the left, draft x is accepted with probability
min(1, p(x) / q(x)); at the first refusal one token is drawn from the residual max(p - q, 0), and if nothing was
refused one more token is drawn from the last row. Whatever the drafter, what is committed is distributed as p.

A draft of -1 stands for a token that the grammar took away: p gives that token nothing, so it is never accepted.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from harness.oracle.functions import Array, softmax
from harness.oracle.grammar import Mask


def accept_greedy(argmax: Sequence[int], drafts: Sequence[int]) -> list[int]:
    """The tokens that a greedy target commits: its own choices, as far as the drafts foresaw them, and one more.

    argmax [n + 1] holds the target's choice in every row, drafts [n]. Raises ValueError if the lengths do not fit.
    """
    if len(argmax) != len(drafts) + 1:
        raise ValueError(f"{len(drafts)} drafts need {len(drafts) + 1} target rows, not {len(argmax)}")
    accepted = 0
    while accepted < len(drafts) and drafts[accepted] == argmax[accepted]:
        accepted += 1
    return list(argmax[: accepted + 1])


def transform_logits(
    logits: Array,
    *,
    temperature: float,
    top_k: int | None = None,
    top_p: float | None = None,
    allowed: Mask | None = None,
) -> Array:
    """The target's law after everything that a request may ask for: logits [..., V] -> probabilities [..., V].

    In this order: the grammar's mask (``allowed``, broadcast over the rows; it must leave something), temperature,
    the ``top_k`` largest (with all that tie with the last of them; 0 and -1 mean all), the fewest that together
    reach ``top_p`` (ties go to the smaller id). Temperature 0 puts everything on the largest logit, ties again to
    the smaller id.
    """
    logits = np.asarray(logits, dtype=np.float64)
    if allowed is not None:
        logits = np.where(allowed, logits, -np.inf)
    if temperature == 0:
        return one_hot(logits.argmax(axis=-1), logits.shape[-1])
    logits = logits / temperature
    if top_k is not None and 0 < top_k < logits.shape[-1]:
        last_in = np.sort(logits, axis=-1)[..., -top_k, None]
        logits = np.where(logits < last_in, -np.inf, logits)
    p = softmax(logits)
    if top_p is not None and top_p < 1:
        order = np.argsort(-p, axis=-1, kind="stable")
        ranked = np.take_along_axis(p, order, axis=-1)
        needed = ranked.cumsum(axis=-1) - ranked < top_p  # those before it do not reach top_p yet
        keep = np.zeros(p.shape, dtype=np.bool_)
        np.put_along_axis(keep, order, needed, axis=-1)
        p = np.where(keep, p, 0.0)
        p = p / p.sum(axis=-1, keepdims=True)
    return p


def committed_law(p: Array, q: Array | None, drafts: Sequence[int]) -> Array:
    """What may happen to a row with these drafts: law [n + 1, V], summing to 1.

    law[a, x] is the probability that exactly the first a drafts are accepted and x is committed after them.
    p [n + 1, V] are the target's rows; q [n, V] are the laws the drafts were drawn from, or None for a drafter that
    is certain. Raises ValueError if the shapes do not fit, or on a draft that its own law excludes.
    """
    n, vocab = len(drafts), p.shape[-1]
    if p.shape != (n + 1, vocab) or (q is not None and q.shape != (n, vocab)):
        raise ValueError(f"{n} drafts do not fit p {p.shape} and q {None if q is None else q.shape}")
    law = np.zeros((n + 1, vocab))
    reached = 1.0
    for a, draft in enumerate(drafts):
        drawn_from = one_hot(draft, vocab) if q is None else q[a]
        if draft >= 0 and drawn_from[draft] == 0:
            raise ValueError(f"draft {draft} at index {a} has probability 0 under the law it was drawn from")
        accepted = min(1.0, p[a, draft] / drawn_from[draft]) if draft >= 0 else 0.0
        residual = np.maximum(p[a] - drawn_from, 0.0)
        if accepted < 1 and residual.any():
            law[a] = reached * (1 - accepted) * residual / residual.sum()
        reached *= accepted
    law[n] = reached * p[n]
    return law


def first_token_law(law: Array, drafts: Sequence[int]) -> Array:
    """The distribution [V] of the first token that a row commits, given ``committed_law``'s law [n + 1, V]."""
    first: Array = law[0].copy()
    if len(drafts) and drafts[0] >= 0:
        first[drafts[0]] += law[1:].sum()
    return first


def one_hot(token: npt.ArrayLike, vocab: int) -> Array:
    """Certainty: token [...] -> [..., vocab]. A placeholder of -1 is certain of nothing."""
    certain: Array = np.equal(np.arange(vocab), np.asarray(token)[..., None]).astype(np.float64)
    return certain
