"""The server's own counters against what the client saw; what is left when everybody has gone."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from harness.exchange import Exchange, Fate, Snapshot
from harness.live.finding import Finding
from harness.live.transcript import Transcript
from harness.verdict import Verdict

GENERATED = "vllm:generation_tokens_total"
PROMPTS = "vllm:prompt_tokens_total"
DRAFTS = "vllm:spec_decode_num_drafts_total"
DRAFTED = "vllm:spec_decode_num_draft_tokens_total"
ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
PER_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
SUCCESS = "vllm:request_success_total"
POSITION = re.compile(re.escape(PER_POSITION) + r"\[(\d+)\]")
RUNNING, WAITING, MEMORY = (
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
)
DROP = 0.7
"""Acceptance of the same requests may not fall to less than this share: they are greedy, and alone both times."""
ENOUGH = 30
"""Drafts from which on an acceptance rate says something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A leg in which every request came to its end, and by how much each counter grew in it."""

    leg: str
    grown: Mapping[str, float]
    answers: Sequence[Exchange]

    @property
    def cut(self) -> int:
        """Tokens behind a stop text in the run that holds it, which servers may count (vLLM does): k each at most.
        Where no ids come nobody sees how long runs are, and the server says what k is."""
        longest = max((size for e in self.answers for size in e.answer.chunks), default=0)
        k = longest - 1 if longest else sum(POSITION.fullmatch(name) is not None for name in self.grown)
        return k * sum(bool(e.ask.stop) for e in self.answers)

    @property
    def rate(self) -> float:
        """Accepted drafts of all drafts."""
        drafted = self.grown.get(DRAFTED, 0)
        return self.grown.get(ACCEPTED, 0) / drafted if drafted else 0.0


def windows(transcript: Transcript) -> list[Window]:
    """From one snapshot to the next."""
    found = []
    for before, after in pairwise(transcript.snapshots):
        answers = list(transcript.of(after.when))
        asked = sum(ask.leg == after.when for ask in transcript.asked.values())
        if len(answers) == asked and {e.answer.fate for e in answers} == {Fate.COMPLETE}:
            grown = {name: value - before.values.get(name, 0.0) for name, value in after.values.items()}
            found.append(Window(leg=after.when, grown=grown, answers=answers))
    return found


def counters(transcript: Transcript) -> Finding:
    """Totals agree, nothing runs backwards, acceptance is possible, and the same for the same requests."""
    check = "counters"
    if unable := _unable(transcript, check):
        return unable
    whole = windows(transcript)
    wrong = _backwards(transcript)
    for window in whole:
        wrong += [*_totals(window), *_acceptance(window)]
    wrong += _drop(whole)
    if not wrong and not whole:
        return Finding(
            check=check, verdict=Verdict.INCONCLUSIVE, told="in no leg did every request come to its end"
        )
    return Finding(
        check=check,
        verdict=Verdict.FAIL if wrong else Verdict.PASS,
        told=wrong[0] if wrong else f"counters are what the client saw in {len(whole)} legs{_rates(whole)}",
        worst="; ".join(wrong[1:]),
    )


def memory(transcript: Transcript) -> Finding:
    """Behind each leg nobody runs, nobody waits, and the cache is as full as before."""
    check = "memory"
    if unable := _unable(transcript, check):
        return unable
    begin = transcript.snapshot("begin")
    assert begin is not None
    behind = [s for s in transcript.snapshots if s.when not in ("begin", "death") and s.values]
    if not behind:
        return Finding(check=check, verdict=Verdict.INCONCLUSIVE, told="no leg came to its end")
    for snapshot in behind:
        left = {
            name: value - begin.values.get(name, 0.0)
            for name, value in snapshot.values.items()
            if name in (RUNNING, WAITING, MEMORY) and value - begin.values.get(name, 0.0) > 1e-9
        }
        if left:
            told = ", ".join(f"{name.removeprefix('vllm:')} +{value:g}" for name, value in left.items())
            return Finding(
                check=check, verdict=Verdict.FAIL, told=f"behind {snapshot.when}, when all had gone: {told}"
            )
    return Finding(check=check, verdict=Verdict.PASS, told="everything is given back behind each leg")


def _unable(transcript: Transcript, check: str) -> Finding | None:
    if not transcript.offer.metrics:
        return Finding(
            check=check,
            verdict=Verdict.UNSUPPORTED,
            told=transcript.offer.lacks.get("metrics", "no /metrics"),
        )
    begin = transcript.snapshot("begin")
    if begin is None or GENERATED not in begin.values:
        return Finding(check=check, verdict=Verdict.UNSUPPORTED, told=f"/metrics has no {GENERATED}")
    if len(transcript.snapshots) < 2:
        return Finding(check=check, verdict=Verdict.INCONCLUSIVE, told="the audit ended before")
    return _strangers(transcript, begin, check)


def _strangers(transcript: Transcript, begin: Snapshot, check: str) -> Finding | None:
    """Counters of a server that has other users say nothing about ours."""
    last = next(s for s in reversed(transcript.snapshots) if s.values or s is begin)
    ended = last.values.get(SUCCESS, 0.0) - begin.values.get(SUCCESS, 0.0)
    asked = sum(ask.leg != "probe" for ask in transcript.asked.values())
    if ended > asked:
        told = f"others use this server: {ended:g} requests ended in it, {asked} were ours"
        return Finding(check=check, verdict=Verdict.UNSUPPORTED, told=told)
    if there := sum(begin.values.get(name, 0.0) for name in (RUNNING, WAITING)):
        told = f"others use this server, or it lets nobody go: {there:g} were there before anything was asked"
        return Finding(check=check, verdict=Verdict.INCONCLUSIVE, told=told)
    return None


def _backwards(transcript: Transcript) -> list[str]:
    """Counters that went down, and values below zero."""
    found, before = [], dict[str, float]()
    for snapshot in transcript.snapshots:
        for name, value in snapshot.values.items():
            if value < 0:
                found.append(f"{name} is {value:g} ({snapshot.when})")
            elif re.search(r"_total(\[\d+\])?$", name) and value < before.get(name, 0):
                found.append(f"{name} went from {before[name]:g} to {value:g} ({snapshot.when})")
        before |= snapshot.values
    return found


def _totals(window: Window) -> list[str]:
    """The server must have counted the tokens that it sent, and those that it was sent."""
    found = []
    came = [e.answer.completion_tokens or len(e.answer.tokens) for e in window.answers]
    prompts = [e.answer.prompt_tokens or len(e.answer.prompt) for e in window.answers]
    sent, read = sum(came), sum(prompts)  # 0 of an answer: neither ids nor usage came
    grown = window.grown.get(GENERATED, 0)
    if all(came) and not sent <= grown <= sent + window.cut:
        found.append(f"{window.leg}: {GENERATED} grew by {grown:g}, {sent} tokens came")
    if all(prompts) and PROMPTS in window.grown and window.grown[PROMPTS] != read:
        found.append(f"{window.leg}: {PROMPTS} grew by {window.grown[PROMPTS]:g}, prompts had {read}")
    return found


def _acceptance(window: Window) -> list[str]:
    """Accepted at most drafted, positions fall and add up, and accepted drafts were sent."""
    if DRAFTS not in window.grown:
        return []
    leg, found = window.leg, []
    positions = sorted(int(m[1]) for name in window.grown if (m := POSITION.fullmatch(name)))
    places = [window.grown[f"{PER_POSITION}[{position}]"] for position in positions]
    accepted, drafted, drafts = (
        window.grown.get(ACCEPTED, 0),
        window.grown.get(DRAFTED, 0),
        window.grown[DRAFTS],
    )
    if accepted > drafted:
        found.append(f"{leg}: {accepted:g} drafts accepted of {drafted:g}")
    if places and drafted > len(places) * drafts:
        found.append(f"{leg}: {drafted:g} drafts in {drafts:g} rows of {len(places)} at most")
    if places and sum(places) != accepted:
        found.append(f"{leg}: {accepted:g} drafts accepted, by position {sum(places):g}")
    if places != sorted(places, reverse=True):
        found.append(f"{leg}: a later position is accepted more often: {places}")
    came = [len(e.answer.tokens) or e.answer.completion_tokens or 0 for e in window.answers]
    sent = sum(came)
    if all(came) and accepted > sent + len(places) * len(window.answers):  # a stop cuts the last run
        found.append(f"{leg}: {accepted:g} drafts accepted, {sent} tokens came in all")
    return found


def _drop(found: list[Window]) -> list[str]:
    """The same greedy requests, alone both times, must do as well behind the crowds."""
    rates = [w.rate for w in found if w.leg in ("solo", "again") and w.grown.get(DRAFTED, 0) >= ENOUGH]
    if len(rates) == 2 and rates[1] < DROP * rates[0]:
        return [
            f"acceptance of the same requests fell from {rates[0]:.0%} to {rates[1]:.0%} behind the crowds"
        ]
    return []


def _rates(found: Sequence[Window]) -> str:
    drafted = sum(w.grown.get(DRAFTED, 0) for w in found)
    accepted = sum(w.grown.get(ACCEPTED, 0) for w in found)
    return f"; {accepted / drafted:.0%} of {drafted:g} drafts accepted" if drafted else "; no drafts"
