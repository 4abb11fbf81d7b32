"""Every scenario that is a little smaller than a given one, the boldest cuts first.

Hypothesis shrinks what it drew itself, choice by choice; a scenario may come from a seed on another machine, from a
file or from a case, so it is cut down as what it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from harness.errors import ScenarioError
from harness.scenario import Event, Request, Sampling, Scenario, Turn

PLAIN: dict[str, Any] = {
    "title": "",
    "events": (),
    "regime": "trim",
    "prefix_caching": False,
    "kv_blocks": None,
    "capture_sizes": (),
    "reverse_rows": False,
    "sample_drafts": False,
    "drafter": "mtp",
    "token_budget": 512,
    "block_size": 16,
    "must_observe": {},
    "documented": {},
    "passes": (),
}
PLAIN_REQUEST: dict[str, Any] = {
    "grammar": None,
    "reasoning_end": None,
    "sampling": Sampling(),
    "stop_token_ids": (),
    "stop": (),
    "ignore_eos": False,
    "arrival": 0,
}
"""Settings that a reader need not think about."""


def smaller(scenario: Scenario) -> Iterator[Scenario]:
    """Scenarios with a request, a turn, an event, a setting, a token or a draft less."""
    for request in scenario.requests:
        yield from _without(scenario, request)
    for name, plain in PLAIN.items():
        yield from _changed(scenario, **{name: plain})
    for i in range(len(scenario.events)):
        yield from _changed(scenario, events=_cut(scenario.events, i))
    for i, request in enumerate(scenario.requests):
        for changed in _requests(request):
            yield from _changed(scenario, requests=_put(scenario.requests, i, changed))
    script = scenario.script or {}
    for name, turns in script.items():
        for fewer in _turns(turns):
            yield from _changed(scenario, script={**script, name: fewer})
    yield from _fewer_drafts(scenario)
    for i, event in enumerate(scenario.events):
        for sooner in _sooner(event):
            yield from _changed(scenario, events=_put(scenario.events, i, sooner))


def _changed(scenario: Scenario, **changes: Any) -> Iterator[Scenario]:
    """The scenario with these changes, if they change anything and the rest still makes sense."""
    try:
        candidate = replace(scenario, **changes)
    except ScenarioError:
        return
    if candidate != scenario:
        yield candidate


def _without(scenario: Scenario, request: Request) -> Iterator[Scenario]:
    script = scenario.script and {
        name: turns for name, turns in scenario.script.items() if name != request.id
    }
    return _changed(
        scenario,
        requests=tuple(one for one in scenario.requests if one is not request),
        script=script,
        events=tuple(event for event in scenario.events if event.request != request.id),
    )


def _fewer_drafts(scenario: Scenario) -> Iterator[Scenario]:
    k = scenario.k - 1
    script = scenario.script and {
        name: tuple(_at_most(turn, k) for turn in turns) for name, turns in scenario.script.items()
    }
    events = tuple(replace(event, k=min(event.k, k)) for event in scenario.events)
    return _changed(scenario, k=k, script=script, events=events)


def _sooner(event: Event) -> Iterator[Event]:
    if event.step:
        yield replace(event, step=event.step - 1)


def _requests(request: Request) -> Iterator[Request]:
    for name, plain in PLAIN_REQUEST.items():
        yield replace(request, **{name: plain})
    length = len(request.prompt)
    for shorter in dict.fromkeys((1, length // 2, length - 1)):
        if 0 < shorter < length:
            yield replace(request, prompt=request.prompt[:shorter])
            yield replace(request, prompt=request.prompt[-shorter:])
    if request.arrival:
        yield replace(request, arrival=request.arrival - 1)
    for fewer in dict.fromkeys((request.max_tokens // 2, request.max_tokens - 1)):
        if fewer:
            yield replace(request, max_tokens=fewer)


def _turns(turns: Sequence[Turn]) -> Iterator[tuple[Turn, ...]]:
    for length in dict.fromkeys((1, len(turns) // 2, len(turns) - 1)):
        if 0 < length < len(turns):
            yield tuple(turns[:length])
    for i in range(1, len(turns) - 1):
        yield _cut(turns, i)
    for i, turn in enumerate(turns):
        if turn.drafts:
            yield _put(turns, i, _at_most(turn, 0))
            yield _put(turns, i, _at_most(turn, len(turn.drafts) - 1))
        if turn.accepted > 1:
            yield _put(turns, i, replace(turn, accepted=turn.accepted - 1))


def _at_most(turn: Turn, k: int) -> Turn:
    return replace(turn, drafts=turn.drafts[:k], accepted=min(turn.accepted, k + 1))


def _cut(items: Sequence[Any], i: int) -> tuple[Any, ...]:
    return (*items[:i], *items[i + 1 :])


def _put(items: Sequence[Any], i: int, item: Any) -> tuple[Any, ...]:
    return (*items[:i], item, *items[i + 1 :])
