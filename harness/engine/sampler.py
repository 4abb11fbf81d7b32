"""Verification sampling: drafts in, committed tokens out, and the target's law kept.

Leviathan et al. 2023 (arXiv 2211.17192) and Chen et al. 2023 (arXiv 2302.01318). A row holds the pending token
and ``n`` drafts; the target gives ``n + 1`` laws ``p``, of which the last is for the token behind all drafts:

    accept draft i while u_i < p_i(d_i) / q_i(d_i)
    first rejection at i:  recovered token from  max(p_i - q_i, 0), normalised
    none rejected:         bonus token from      p_n

A draft without a law (argmax or prompt lookup) has a point mass for ``q``. A placeholder was never drafted, so
its ``q`` is zero everywhere: it cannot be accepted, and its recovered token comes from ``p_i`` itself.

A draft that was drawn and then refused by the grammar counts as rejected, whether it is cut from the row or leaves a
placeholder there: its place was chosen by chance, and a plain draw from ``p`` would give what the grammar allows and
the drafter likes a second chance. So the token in the place of the first refused draft is a recovered one. A refused
draft without a law (argmax) was no matter of chance and has no such effect.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite

import torch
from torch import Tensor

from harness.errors import EngineError, UsageError

PLACEHOLDER = -1
"""Id of a draft that was refused after its place in the batch had been promised (asynchronous scheduling)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How a request turns logits into a law. ``temperature`` 0 is greedy; ``top_k`` 0 and ``top_p`` 1 cut nothing."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0.0 <= self.temperature < float("inf"):
            raise UsageError(f"temperature must be finite and at least 0, got {self.temperature}")
        if self.top_k < 0:
            raise UsageError(f"top_k must be at least 0 (0 keeps every token), got {self.top_k}")
        if not 0.0 < self.top_p <= 1.0:
            raise UsageError(f"top_p must be in (0, 1], got {self.top_p}")

    @property
    def is_greedy(self) -> bool:
        """Whether the best token is taken: at 0, and as in vLLM just above, where a division would overflow."""
        return self.temperature < 1e-5


# Decisions: where the known bugs live.


def is_draft(drafts: Tensor) -> Tensor:
    """[n] ids -> [n] bool. A placeholder is never accepted and never used as an index (vllm#46533)."""
    return drafts != PLACEHOLDER


def acceptance(p_draft: Tensor, q_draft: Tensor) -> Tensor:
    """[n] target and draft probability of each draft -> [n] probability of accepting it.

    A draft that its own law calls impossible is accepted if the target allows it; 0 / 0 is NaN, which rejects.
    """
    return (p_draft / q_draft).clamp(max=1.0)


def residual_law(p: Tensor, q: Tensor) -> Tensor:
    """[vocab] laws where a draft was rejected -> [vocab] law of the recovered token."""
    excess = (p - q).clamp(min=0.0)
    mass = excess.sum()
    # p == q up to rounding: a rejection is then a rounding accident, and p is the law to keep.
    return excess / mass if mass > 0.0 else p


def refused_law(p: Tensor, q: Tensor) -> Tensor:
    """[vocab] laws where the grammar refused the draft that was drawn -> [vocab] law of the token in its place."""
    return residual_law(p, q)


def bonus_law(p: Tensor, q: Tensor | None) -> Tensor:
    """[vocab] target law behind all drafts, the last draft's law (None without drafts) -> the bonus token's law."""
    return p


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerDecisions:
    """Every choice of this module that can be wrong; a fault is ``dataclasses.replace(CORRECT_SAMPLER, ...)``."""

    is_draft: Callable[[Tensor], Tensor] = is_draft
    acceptance: Callable[[Tensor, Tensor], Tensor] = acceptance
    residual_law: Callable[[Tensor, Tensor], Tensor] = residual_law
    refused_law: Callable[[Tensor, Tensor], Tensor] = refused_law
    bonus_law: Callable[[Tensor, Tensor | None], Tensor] = bonus_law


CORRECT_SAMPLER = SamplerDecisions()


def target_probs(logits: Tensor, params: SamplingParams) -> Tensor:
    """[R, vocab] logits, forbidden tokens at -inf -> [R, vocab] laws after temperature, top-k and top-p, in that order.

    Greedy parameters put all mass on the argmax. Of equal logits the lower id ranks first. A row without a finite
    best logit becomes NaN: that is an error only if a token has to come from it. float32 at least.
    """
    scores = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if params.is_greedy:
        best, token = scores.max(dim=-1, keepdim=True)  # [R, 1]
        return _point_mass(token[:, 0], scores).where(best.isfinite(), torch.nan)
    # An infinite divisor, which is what float32 makes of 1e39, would turn a forbidden token's -inf into NaN.
    temperature = min(params.temperature, torch.finfo(scores.dtype).max)
    probs = (scores / temperature).softmax(dim=-1)
    if params.top_k == 0 and params.top_p == 1.0:
        return probs
    order = scores.argsort(dim=-1, descending=True, stable=True)  # [R, vocab]
    ranked = probs.gather(-1, order)
    if params.top_k:
        ranked[:, params.top_k :] = 0.0
        ranked = ranked / ranked.sum(dim=-1, keepdim=True)
    # A token stays if the ones before it have not reached top_p; so the first always stays, even where float32 makes 0
    # of top_p.
    stays = ranked.cumsum(dim=-1) - ranked < params.top_p
    stays[:, 0] = True
    ranked = ranked.where(stays, 0.0)
    return torch.zeros_like(probs).scatter(-1, order, ranked / ranked.sum(dim=-1, keepdim=True))


def verify_greedy(logits: Tensor, drafts: Sequence[int]) -> list[int]:
    """[n + 1, vocab] logits and n drafts -> the argmax tokens up to and including the first that is not the draft.

    Raises:
        EngineError: not one row more than drafts, a draft outside the vocabulary, or a token has to come from a
            row without a finite best logit.
    """
    _check_rows(logits, drafts)
    best, tokens = logits.max(dim=-1)  # [n + 1]
    committed: list[int] = []
    for score, token, draft in zip(best.tolist(), tokens.tolist(), [*drafts, PLACEHOLDER], strict=True):
        if not isfinite(score):
            raise EngineError(
                f"row {len(committed)} of {len(drafts) + 1} has no token to give: best logit {score}"
            )
        committed.append(token)
        if token != draft:
            break
    return committed


def verify_stochastic(
    p: Tensor,
    drafts: Sequence[int],
    q: Tensor | None,
    generator: torch.Generator,
    decisions: SamplerDecisions = CORRECT_SAMPLER,
    refused: Tensor | None = None,
) -> list[int]:
    """[n + 1, vocab] target laws, n drafts and their [n, vocab] laws (None: point masses) -> 1 to n + 1 tokens.

    Drafts may end in placeholders; those need no laws, and have none that counts. ``refused`` is the [vocab] law of the
    first draft that was drawn but refused by the grammar: behind the drafts, or in the place of the first placeholder.
    Draws n + 1 uniforms whatever happens to the drafts: n for acceptance, one for the last token.

    Raises:
        EngineError: not one row of p more than drafts, too few or too many rows of q, a draft outside the vocabulary,
            or no law for the last token.
    """
    _check_rows(p, drafts)
    n = len(drafts)
    known = drafts.index(PLACEHOLDER) if PLACEHOLDER in drafts else n
    if q is not None and not known <= len(q) <= n:
        raise EngineError(f"{n} drafts need as many rows of draft probabilities, got {len(q)}")
    u = torch.rand(n + 1, generator=generator, dtype=torch.float64)
    accepted = _count_accepted(p, drafts, q, u[:n], decisions)
    if accepted == known and refused is not None:
        law = decisions.refused_law(p[known], refused)
    elif accepted < n:
        law = decisions.residual_law(p[accepted], _draft_law(p, drafts, q, accepted))
    else:
        law = decisions.bonus_law(p[n], _draft_law(p, drafts, q, n - 1) if n else None)
    return [*drafts[:accepted], _draw(law, float(u[n]))]


def sample_draft(logits: Tensor, params: SamplingParams, generator: torch.Generator) -> tuple[int, Tensor]:
    """[vocab] drafter logits -> a draft and the [vocab] law it was drawn from. Draws one uniform."""
    law = target_probs(logits[None], params)[0]
    return _draw(law, float(torch.rand(1, generator=generator, dtype=torch.float64))), law


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampler:
    """What the engine calls once per request and step. Only the request's own generator is drawn from, so that
    the company a request keeps in a batch does not change its tokens."""

    decisions: SamplerDecisions = CORRECT_SAMPLER

    def sample(
        self,
        logits: Tensor,
        drafts: Sequence[int],
        q: Tensor | None,
        params: SamplingParams,
        generator: torch.Generator,
        refused: Tensor | None = None,
    ) -> list[int]:
        """A request's [n + 1, vocab] block of masked logits -> 1 to n + 1 committed tokens.

        ``refused``: see ``verify_stochastic``.
        """
        if params.is_greedy:
            return verify_greedy(logits, drafts)
        return verify_stochastic(target_probs(logits, params), drafts, q, generator, self.decisions, refused)


def _count_accepted(
    p: Tensor, drafts: Sequence[int], q: Tensor | None, u: Tensor, decisions: SamplerDecisions
) -> int:
    ids = torch.tensor(list(drafts), dtype=torch.int64)  # [n]
    proposed = decisions.is_draft(ids)
    index = ids.clamp(min=0).to(p.device)[:, None]
    p_draft = p[:-1].gather(-1, index)[:, 0].cpu()
    q_draft = torch.ones_like(p_draft)
    if q is not None:
        q_draft[: len(q)] = q.gather(-1, index[: len(q)])[:, 0].cpu()
    q_draft[ids == PLACEHOLDER] = 0.0
    accept = proposed & (u < decisions.acceptance(p_draft, q_draft))  # [n]
    return int(accept.long().cumprod(dim=0).sum())


def _draft_law(p: Tensor, drafts: Sequence[int], q: Tensor | None, i: int) -> Tensor:
    if drafts[i] == PLACEHOLDER:
        return torch.zeros_like(p[i])
    return _point_mass(torch.tensor(drafts[i], device=p.device), p[i]) if q is None else q[i]


def _point_mass(tokens: Tensor, like: Tensor) -> Tensor:
    """[...] ids -> [..., vocab] laws, all mass on the id."""
    return torch.zeros_like(like).scatter(-1, tokens[..., None], 1.0)


def _draw(law: Tensor, u: float) -> int:
    """Inverse of the cumulative law at ``u`` in [0, 1). Rounding may leave it short of ``u``: then the last token that
    has mass, never one without."""
    cumulative = law.double().cumsum(dim=-1).cpu()  # [vocab]
    if not cumulative[-1] > 0.0:
        raise EngineError(f"no token to draw: the law has mass {float(cumulative[-1])}")
    last = int(torch.searchsorted(cumulative, cumulative[-1]))
    return min(int(torch.searchsorted(cumulative, u, right=True)), last)


def _check_rows(rows: Tensor, drafts: Sequence[int]) -> None:
    count, vocab = rows.shape
    if count != len(drafts) + 1:
        raise EngineError(f"{len(drafts)} drafts need {len(drafts) + 1} rows, got {count}")
    if not all(PLACEHOLDER <= draft < vocab for draft in drafts):
        raise EngineError(f"drafts must lie in [{PLACEHOLDER}, {vocab}), got {list(drafts)}")
