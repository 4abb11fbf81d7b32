"""The row's own tokens are right; what it started from is not."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from harness.check.hypotheses.scene import REACH, Hypothesis, Scene, of, tokens
from harness.check.poison import unwritten

ALL_AGES = 128
"""Up to so many tokens every age of a request is tried as a start; beyond, the recorded and the near ones."""

FILLS = [float(step << exponent) for exponent in range(3) for step in range(128, 256)]
"""Numbers that unwritten places may hold; which of them a trace's slots do, ``unwritten`` says."""


def wrong_start(scene: Scene) -> Iterator[Hypothesis]:
    """Another column than a - 1, nothing, another request, another age, memory that nobody wrote."""
    request, start, fed = scene.row.request, scene.start, scene.fed
    if not scene.row.prompt_tokens:
        yield from _wrong_count(scene)
    if start:
        yield of(
            "started from zero",
            "the row started from an empty state",
            scene.reference.from_empty(request, start, fed),
        )
    for name, row in scene.strangers().items():
        assert row.state is not None
        own = scene.reference.from_stranger(name, row.state.tokens_included, request, start, fed)
        yield of("started from another request", f"the row started from the state of request {name}", own)
    if scene.first is not None:
        yield from _from_another_age(scene)
        yield from _from_an_unread_journal(scene)
        yield from _from_rejected_drafts(scene)
        yield from _from_unwritten_memory(scene)


def _wrong_count(scene: Scene) -> Iterator[Hypothesis]:
    """The states that the step before left for other accepted counts than a."""
    request, start, fed, a = scene.row.request, scene.start, scene.fed, scene.accepted_before
    for lost in _lost(scene):
        replay = scene.reference.fork(request, start - lost, fed)
        plural = "s" * (lost > 1)
        words = f"the state lost the last {lost} accepted token{plural} before this step"
        state = replay.states[start - lost + len(fed)]
        yield of("lost accepted tokens", words, state, used=a - lost)
    refused = scene.rejected_by(scene.before[-1]) if scene.before else []
    for j in range(1, len(refused) + 1):
        replay = scene.reference.fork(request, start, [*refused[:j], *fed])
        words = f"the row started after {j} draft{'s' * (j > 1)} that the step before had rejected"
        state = replay.states[start + j + len(fed)]
        yield of("started after rejected drafts", words, state, used=a + j)


def _lost(scene: Scene) -> range:
    """How many tokens a verify row loses that starts from a lesser count than a."""
    most = max(scene.accepted_before, scene.row.previous_accepted)
    return range(1, 0 if scene.row.prompt_tokens else min(most, scene.start + 1))


def _from_another_age(scene: Scene) -> Iterator[Hypothesis]:
    """The row started from an older or a later state of its own request."""
    assert scene.first is not None
    start = scene.start
    recorded = {row.state.tokens_included for row in scene.before if row.state is not None}
    near = range(max(start - REACH, 1), start + REACH + 1)
    ages = range(1, scene.count + REACH) if scene.count < ALL_AGES else [*near, *recorded]
    states = scene.states(*ages)
    since = max((i for i, row in enumerate(scene.before) if row.resumed or row.cached), default=0)
    resumed = scene.row.resumed or any(row.resumed for row in scene.before[since:])
    known = {0, start, *(start - lost for lost in _lost(scene))}
    for age in sorted(set(states) - known, key=lambda age: abs(age - start)):
        if scene.row.cached:
            cause = "snapshot of another boundary"
            words = f"a prefix hit of {scene.row.cached} tokens started from the state after {age}"
        elif resumed and scene.row.prompt_tokens and age > start:
            cause = "resumed from its old state"
            words = f"fed again from token {start} on, the row started from the state after {age}"
        elif age < start:
            cause = "started from a stale state"
            words = f"the row started from the state after {age} tokens, {start - age} old"
        else:
            cause = "started from a later state"
            words = f"the row started from the state after {age} tokens, {age - start} ahead"
        state = states[age]
        yield scene.in_first_layer(
            cause, words, *scene.first.after(scene.fed, state.conv[0], state.recurrent[0])
        )


def _from_an_unread_journal(scene: Scene) -> Iterator[Hypothesis]:
    """The tokens that the step before left to be replayed were not, while the convolution's line is up to date."""
    assert scene.first is not None
    lost = scene.accepted_before
    if scene.row.prompt_tokens or not 0 < lost <= scene.start:
        return
    line, behind = scene.states()[scene.start], scene.states(scene.start - lost)[scene.start - lost]
    words = f"the recurrent state lacks {tokens(lost)} that the step before accepted, and the convolution does not"
    yield scene.in_first_layer(
        "lost accepted tokens", words, *scene.first.after(scene.fed, line.conv[0], behind.recurrent[0])
    )


def _from_rejected_drafts(scene: Scene) -> Iterator[Hypothesis]:
    """A prefix hit whose snapshot was taken while rejected drafts were in the state."""
    if not scene.row.cached:
        return
    assert scene.first is not None
    rows = [row for step in scene.trace.steps if step.index < scene.step for row in step.rows]
    for row in rows:
        refused = [] if row.discarded or row.state is None else scene.rejected_by(row)
        if not refused or not 0 <= scene.start - row.num_computed <= len(refused):
            continue
        state = scene.reference.replay(row.request).states.get(row.num_computed)
        if state is None:
            continue
        for j in range(1, len(refused) + 1):
            conv, recurrent = scene.first.after(refused[:j], state.conv[0], state.recurrent[0])
            words = f"the snapshot was taken of request {row.request} after {j} of its rejected drafts"
            yield scene.in_first_layer(
                "snapshot with rejected drafts", words, *scene.first.after(scene.fed, conv, recurrent)
            )


def _from_unwritten_memory(scene: Scene) -> Iterator[Hypothesis]:
    """The row started from a slot that holds what it was filled with before the run."""
    assert scene.first is not None
    right = scene.states()[scene.start]
    conv, recurrent = right.conv[0], right.recurrent[0]
    own = {0, *(slot for step in scene.trace.steps for row in step.rows for slot in row.slots)}
    cause = "started from unwritten memory"
    for value in FILLS:
        if (slot := unwritten(value)) in own:
            words = f"the row started from slot {slot}, which nobody had written ({value:g} everywhere)"
            dirty = np.full_like(recurrent, value)
            yield scene.in_first_layer(cause, words, *scene.first.after(scene.fed, conv, dirty))
            line = np.full_like(conv, value)
            yield scene.in_first_layer(cause, words, *scene.first.after(scene.fed, line, dirty))
