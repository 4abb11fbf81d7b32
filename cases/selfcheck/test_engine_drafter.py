"""The engine's MTP drafter remembers what was committed and nothing else: a fresh head on the same prefix agrees."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from harness import Lab, Request, Scenario, Trace
from harness.check.distance import logits_error
from harness.engine.config import EngineConfig
from harness.engine.engine import Engine
from harness.engine.guided import Grammars
from harness.engine.kernels import NaiveKernels
from harness.engine.loader import Loader
from harness.engine.policy import POLICY, Policy
from harness.engine.request import EngineRequest
from harness.engine.sampler import SamplingParams
from harness.engine.variants import variant
from harness.oracle.model import Oracle, Replay
from harness.oracle.mtp import Drafter, draft
from harness.targets.embedded import EmbeddedTarget
from harness.trace import Array, RowTrace

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
NEAR_TIE = 1e-4
"""Two drafts whose logits differ by less, relative to the logits' RMS, may be chosen either way in float32."""
LAW = 1e-5
"""Relative RMS of a drafter's law in float32."""


@pytest.fixture(scope="module", params=["peaked", "flat"])
def folder(request: pytest.FixtureRequest) -> Path:
    found: Path = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="module")
def oracle(folder: Path) -> Oracle:
    return Oracle.load(folder)


@pytest.fixture(scope="module")
def target(folder: Path) -> EmbeddedTarget:
    return EmbeddedTarget(loader=Loader(folder), policy=POLICY)


def drafting_rows(trace: Trace, request: Request) -> Iterator[tuple[RowTrace, int]]:
    """Rows with proposals, and how many tokens of the request were known when they were drafted."""
    known = len(request.prompt)
    for row in (row for step in trace.steps for row in step.rows if row.request == request.id):
        if row.proposed:
            yield row, known
        known += row.accepted


def wrong_drafts(
    oracle: Oracle, request: Request, trace: Trace, replay: Replay, tokens: list[int]
) -> tuple[int, list[str]]:
    """Drafts compared with a fresh head's, and those that differ by more than a near tie."""
    compared, wrong = 0, []
    for row, known in drafting_rows(trace, request):
        fresh = draft(oracle, tokens[:known], replay.hidden[: known - 1], len(row.proposed))
        for j, (seen, expected) in enumerate(zip(row.proposed, fresh.tokens.tolist(), strict=True)):
            compared += 1
            if seen == expected:
                continue
            logits = fresh.logits[j]
            gap = float(logits[expected] - logits[seen])
            if gap > NEAR_TIE * float(np.sqrt(np.square(logits).mean())):
                wrong.append(
                    f"{request.id} after {known} tokens, draft {j}: {seen}, not {expected} ({gap:.2g})"
                )
            break  # what follows a near tie follows from it
    return compared, wrong


@pytest.mark.parametrize("k", [1, 3, 8])
def test_every_draft_is_that_of_a_fresh_head_on_the_committed_prefix(
    folder: Path, oracle: Oracle, target: EmbeddedTarget, k: int
) -> None:
    requests = Lab(folder, FIXTURES).mixed_requests(6, max_tokens=32, every=2)
    scenario = Scenario(name="drafts", requests=tuple(requests), k=k, token_budget=23)
    trace = target.run(scenario)
    assert trace.crash is None, trace.crash
    compared, rollbacks = 0, 0
    for request in requests:
        tokens = [*request.prompt, *trace.completions[request.id].tokens]
        some, wrong = wrong_drafts(oracle, request, trace, oracle.fold().extend(tokens), tokens)
        assert wrong == []
        compared += some
    for row in (row for step in trace.steps for row in step.rows):
        rollbacks += 0 < row.accepted < len(row.kept) + 1
    assert compared > 50
    assert rollbacks >= 8, "few drafts were rejected, so little could have leaked"


def test_drafts_do_not_depend_on_what_the_drafters_memory_held_before(folder: Path) -> None:
    """Stale keys of another request, of a rejected draft, or of nothing at all: never read."""

    def drafts(fill: float) -> list[tuple[str, tuple[int, ...]]]:
        config = EngineConfig(k=3, max_num_seqs=2, max_model_len=96)
        loader, parts = Loader(folder), (config, POLICY, NaiveKernels())
        head = loader.head(*parts)
        assert head is not None
        cache = head.block.mixer.cache
        for tensor in (cache.keys, cache.values):
            tensor.fill_(fill)
        engine = Engine(loader.model(*parts), head, Grammars(loader.vocabulary), config, POLICY)
        lab = Lab(folder, FIXTURES)
        for i in range(4):  # two after two, so that blocks are used again
            engine.add(EngineRequest(id=f"r{i}", prompt=lab.prompt(5 + 7 * i), max_tokens=20))
        seen = []
        while step := engine.step():
            seen += [(row.request.id, tuple(row.before.proposed)) for row in step.rows]
        return seen

    clean = drafts(0.0)
    assert sum(len(proposed) for _, proposed in clean) > 60
    assert drafts(float("nan")) == drafts(1e30) == clean


def test_drafts_written_ahead_fit_at_the_end_of_the_model_length(
    target: EmbeddedTarget, folder: Path
) -> None:
    """With k = 8 the head writes beyond max_model_len; those drafts are cut, and no block is missing."""
    prompt = Lab(folder, FIXTURES).prompt(27)
    request = Request(id="r0", prompt=prompt, max_tokens=64, ignore_eos=True)
    for length in range(30, 35):
        trace = target.run(Scenario(name="end", requests=(request,), k=8, max_model_len=length))
        assert trace.crash is None, trace.crash
        assert len(trace.completions["r0"].tokens) == length - len(prompt)
        assert all(row.num_computed < length for step in trace.steps for row in step.rows)


def fresh_logits(oracle: Oracle, tokens: list[int], drafts: list[int]) -> Array:
    """[n, vocab] what a fresh head says on the committed ``tokens`` and then on each of ``drafts`` but the last."""
    hidden = oracle.fold().extend(tokens[:-1]).hidden
    return Drafter(oracle, tokens, hidden).after(len(tokens), len(drafts), along=drafts).logits


def off(law: Array, logits: Array) -> float:
    """Relative RMS between a law and logits, after what softmax takes away: worst row of [n, vocab]."""
    seen, expected = (x - x.mean(axis=-1, keepdims=True) for x in (np.log(law), logits))
    return float(logits_error(seen, expected).max())


def errors_of_laws(folder: Path, oracle: Oracle, policy: Policy) -> tuple[list[float], int]:
    """Error of every row of sampled drafts, and the number of drafts that were rejected on the way."""
    config = EngineConfig(k=3, token_budget=23, sample_drafts=True)
    loader, parts = Loader(folder), (config, policy, NaiveKernels())
    grammars = Grammars(loader.vocabulary)
    engine = Engine(loader.model(*parts), loader.head(*parts), grammars, config, policy)
    for i, request in enumerate(Lab(folder, FIXTURES).mixed_requests(4, max_tokens=20)):
        sampling = SamplingParams(temperature=1.0, seed=i)
        engine.add(EngineRequest(id=request.id, prompt=request.prompt, max_tokens=20, sampling=sampling))
    errors, rejected = [], 0
    while step := engine.step():
        for row in step.rows:
            rejected += max(len(row.kept) + 1 - len(row.committed), 0) if not row.in_prompt else 0
            if row.request.draft_probs is not None:
                law = row.request.draft_probs.double().numpy()
                errors.append(off(law, fresh_logits(oracle, row.request.tokens, row.request.proposed)))
    return errors, rejected


def test_sampled_drafts_are_drawn_from_the_law_of_a_fresh_head(oracle: Oracle, folder: Path) -> None:
    errors, rejected = errors_of_laws(folder, oracle, POLICY)
    print(f"{len(errors)} rows of drafts, {rejected} rejected: largest relative RMS {max(errors):.2g}")
    assert len(errors) > 20
    assert rejected > 20
    assert max(errors) < LAW


def test_a_head_that_keeps_its_guesses_is_found_out(oracle: Oracle, folder: Path) -> None:
    errors, _ = errors_of_laws(folder, oracle, variant("drafter-reads-one-token"))
    assert max(errors) > 100 * LAW
