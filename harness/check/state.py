"""State first: convolution history and recurrent state of every request, layer and head, after every step."""

from __future__ import annotations

from collections.abc import Iterator
from math import isinf

import numpy as np

from harness.check.distance import conv_error, logits_error, recurrent_error
from harness.check.gauge import NEAR_TIE, Gauge, Gauges
from harness.check.reference import Reference, accepted_counts, start_of
from harness.trace import Array, Coordinate, RowTrace, Trace
from harness.verdict import Divergence, Evidence, Verdict, worst


def check_state(trace: Trace, reference: Reference, gauges: Gauges) -> Evidence:
    """Live state against the oracle's after as many tokens as the target says are included."""
    found: list[Divergence] = []
    compared = 0
    for step, row in _rows(trace):
        if row.state is None or row.discarded:
            continue
        compared += 1
        found += _state_divergences(step, row, trace, reference, gauges)
    return _evidence(
        "state", found, compared, "states of a request after a step", gauges.state, reference, trace
    )


def check_logits(trace: Trace, reference: Reference, gauge: Gauge) -> Evidence:
    """Logits of every accepted position, before the grammar's mask."""
    found: list[Divergence] = []
    compared = 0
    for step, row in _rows(trace):
        replay = reference.replay(row.request)
        counts = [count for count in accepted_counts(row) if 1 <= count <= len(replay.logits)]
        counts = counts[: 0 if row.logits is None else len(row.logits)]
        if row.logits is None or not counts:
            continue
        compared += len(counts)
        expected = replay.logits[[count - 1 for count in counts]]  # [a, vocab]
        errors = logits_error(row.logits[: len(counts)], expected)
        worst_position = int(errors.argmax())
        allowed = float(gauge.thresholds[0])
        if _exceeds(errors[worst_position], allowed):
            where = Coordinate(step=step, request=row.request, tensor="logits")
            message = f"logits after {counts[worst_position]} tokens differ"
            found.append(
                Divergence(
                    kind="logits",
                    at=where,
                    message=message,
                    error=float(errors[worst_position]),
                    threshold=allowed,
                )
            )
    return _evidence("logits", found, compared, "accepted positions", gauge, reference, trace)


def _state_divergences(
    step: int, row: RowTrace, trace: Trace, reference: Reference, gauges: Gauges
) -> Iterator[Divergence]:
    assert row.state is not None
    count = row.state.tokens_included
    states = reference.replay(row.request).states
    if count not in states:  # more than there are, or after a token that no vocabulary has
        where = Coordinate(step=step, request=row.request, tensor="tokens_included")
        yield Divergence(
            kind="ledger", at=where, message=f"the state claims {count} tokens, which are not there"
        )
        return
    conv = conv_error(row.state.conv, states[count].conv)  # [L]
    recurrent_allowed = gauges.recurrent.thresholds.reshape(row.state.recurrent.shape[:2])  # [L, HV]
    least = np.broadcast_to(gauges.least, recurrent_allowed.size).reshape(recurrent_allowed.shape)
    recurrent = recurrent_error(row.state.recurrent, states[count].recurrent, least)  # [L, HV]
    conv_allowed = gauges.conv.thresholds
    for index, layer in enumerate(trace.linear_layers):
        if _exceeds(conv[index], conv_allowed[index]):
            yield Divergence(
                kind="state",
                at=Coordinate(step=step, request=row.request, layer=layer, tensor="conv"),
                message=f"convolution history after {count} tokens differs",
                error=float(conv[index]),
                threshold=float(conv_allowed[index]),
            )
        with np.errstate(invalid="ignore"):
            head = int((recurrent[index] / recurrent_allowed[index]).argmax())
        if _exceeds(recurrent[index, head], recurrent_allowed[index, head]):
            yield Divergence(
                kind="state",
                at=Coordinate(step=step, request=row.request, layer=layer, tensor="recurrent", head=head),
                message=f"recurrent state after {count} tokens differs",
                error=float(recurrent[index, head]),
                threshold=float(recurrent_allowed[index, head]),
            )


def _exceeds(error: float, allowed: float) -> bool:
    """Whether an error is too large; NaN and infinities, which count as an infinite error, always are."""
    return bool(error > allowed or isinf(error))


def _evidence(
    check: str,
    found: list[Divergence],
    compared: int,
    what: str,
    gauge: Gauge,
    reference: Reference,
    trace: Trace,
) -> Evidence:
    broken = [divergence.error is not None and isinf(divergence.error) for divergence in found]
    verdicts = [
        Verdict.FAIL
        if never or not _after_router_tie(divergence, trace, reference, gauge)
        else Verdict.NEAR_TIE
        for divergence, never in zip(found, broken, strict=True)
    ]
    verdict = worst(verdicts) if found else Verdict.PASS
    places = {(divergence.at.step, divergence.at.request) for divergence in found}
    summary = f"{compared} {what} compared, {len(places)} differ"
    if not compared:
        verdict, summary = Verdict.INCONCLUSIVE, f"no {what} to compare"
    elif not gauge.decides and not any(broken):
        verdict = Verdict.INCONCLUSIVE
        summary += f"; signal is only {gauge.ratio:.1f} times the noise"
    return Evidence(
        check=check, verdict=verdict, summary=summary, divergences=tuple(found), compared=compared
    )


def _after_router_tie(divergence: Divergence, trace: Trace, reference: Reference, gauge: Gauge) -> bool:
    """Whether the first differing expert choice that this place follows from was a near tie in the oracle."""
    replay = reference.replay(divergence.at.request)
    logits = divergence.at.layer < 0  # what follows from every layer
    for step, start, routing in _choices_before(divergence, trace, reference):
        for offset, chosen in enumerate(routing):
            if not 0 <= start + offset < len(replay.routing):
                return False
            expected = replay.routing[start + offset]
            for layer in range(len(expected)):
                if step == divergence.at.step and not logits and layer >= divergence.at.layer:
                    continue
                if set(chosen[layer]) != set(expected[layer]):
                    return bool(replay.router_gap[start + offset][layer] < NEAR_TIE * gauge.largest_noise)
    return False


def _choices_before(
    divergence: Divergence, trace: Trace, reference: Reference
) -> Iterator[tuple[int, int, Array]]:
    """(step, tokens in cache before, experts of the tokens that count) of all rows that a place may follow from: those
    of its request since it last began, and whoever fed the tokens that it took from the prefix cache then."""
    request = divergence.at.request
    rows = [(s, row) for s, row in _rows(trace) if s <= divergence.at.step and not row.discarded]
    begins = [(s, row.cached) for s, row in rows if row.request == request and (row.cached or row.resumed)]
    begun, cached = max(begins, default=(-1, 0))
    for step, row in rows:
        start = start_of(row)
        mine = row.request == request and step >= begun
        end = row.num_computed if mine else min(row.num_computed, cached)
        histories = reference.histories
        lent = step < begun and start < end and histories[row.request][:end] == histories[request][:end]
        if row.routing is not None and (mine or lent):
            yield step, start, row.routing[: max(end - start, 0)]


def _rows(trace: Trace) -> Iterator[tuple[int, RowTrace]]:
    for step in trace.steps:
        for row in step.rows:
            yield step.index, row


def judge_tensors(trace: Trace, reference: Reference, gauges: Gauges) -> list[Evidence]:
    """State and logits evidence of a trace."""
    return [check_state(trace, reference, gauges), check_logits(trace, reference, gauges.logits)]
