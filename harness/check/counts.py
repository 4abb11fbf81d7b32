"""Whose accepted count it was: a row that started from another column than a - 1 took its count from somewhere."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from harness.check.distance import relative_rms
from harness.check.hypotheses import Scene
from harness.check.reference import start_of
from harness.trace import RowTrace

FITS = 1e-4
"""Relative RMS up to which a state is that of a count: float32 is far below, a lost token far above."""


def reported_count(scene: Scene) -> tuple[str, str] | None:
    """A count that the trace itself shows to be wrong: the row's own, or the one that its state is read by."""
    row, after = scene.row, scene.row_after
    older = [max(r.accepted, 1) for r in [*scene.before, row]]
    full = [r.tokens for r in [*scene.before, row]]
    counts = (
        [] if row.prompt_tokens else [(row.previous_accepted, scene.accepted_before, older[:-2], full[-2:-1])]
    )
    counts += [(after.previous_accepted, older[-1], older[:-1], full[-1:])] if after else []
    for said, a, earlier, whole in counts:
        if said == a:
            continue
        words = f"the step before committed {a}, and it counted {said}"
        others = [r.request for r in scene.beside if r is not row and _committed_before(scene, r) == said]
        others += [name for name, r in scene.strangers().items() if r.accepted == said]  # the departed too
        if said < 1:
            return "accepted count out of range", words
        if said in whole:
            return "all drafts counted as accepted", words
        if said in earlier:
            return "accepted count one step old", f"{words}, as of an earlier step"
        if others:
            return "accepted count of another row", f"{words}, as of {others[0]}"
        return "accepted count wrong", words
    return None


def whose_count(scene: Scene, used: int) -> tuple[str, str] | None:
    """A more particular class for a row that started as if its step before had committed ``used`` tokens, and why."""
    return None if used == 1 else _of_which_rows(scene)  # column 0 is where every row without a count reads


def _of_which_rows(scene: Scene) -> tuple[str, str] | None:
    """Which other count explains the state of every verify row of the step; of one row that says nothing."""
    rows = [row for row in scene.beside if not row.prompt_tokens and row.state is not None]
    counts = [_committed_before(scene, row) for row in rows]
    fitting = [set(_fitting(scene, row)) for row in rows]
    if len(rows) < 2:
        return None
    for whose, used in (
        ("of the row before", [counts[0], *counts[:-1]]),
        ("of the row behind", [*counts[1:], counts[-1]]),
        ("of the row at its place from the end", counts[::-1]),
        ("of their own step before", [_committed_before(scene, row, steps=2) for row in rows]),
    ):
        if used != counts and all(u in fits for u, fits in zip(used, fitting, strict=True)):
            cause = "accepted count one step old" if "own" in whose else "accepted count of another row"
            return cause, f"every verify row of the step used the count {whose}"
    return None


def _fitting(scene: Scene, row: RowTrace) -> Iterator[int]:
    """The accepted counts that a row's state may come from, by the first linear layer."""
    before = _row_before(scene, row)
    if scene.first is None or before is None or row.state is None:
        return
    a, start = max(before.accepted, 1), start_of(row)
    history = scene.reference.known(scene.reference.histories[row.request])
    fed, refused = history[start : row.num_computed], scene.rejected_by(before)
    for used in range(1, a + len(refused) + 1):
        age = start - max(a - used, 0)
        state = scene.reference.replay(row.request, also=[age]).states.get(age)
        if state is None:
            continue
        tokens = [*refused[: max(used - a, 0)], *fed]
        _, recurrent = scene.first.after(tokens, state.conv[0], state.recurrent[0])
        if relative_rms(row.state.recurrent[0], recurrent, (0, 1, 2)) < FITS:
            yield used


def _committed_before(scene: Scene, row: RowTrace, steps: int = 1) -> int:
    before = _row_before(scene, row, steps)
    return max(before.accepted, 1) if before else 1


def _row_before(scene: Scene, row: RowTrace, steps: int = 1) -> RowTrace | None:
    """The request's row of so many of its steps before this one."""
    rows = (
        other
        for step in reversed(scene.trace.steps)
        if step.index < scene.step
        for other in step.rows
        if other.request == row.request and not other.discarded
    )
    return next(islice(rows, steps - 1, None), None)
