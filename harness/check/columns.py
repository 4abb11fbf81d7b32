"""A convolution history read column by column: whose token, or which token of the vocabulary, each column holds."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from harness.check.distance import relative_rms
from harness.check.hypotheses import REACH, Scene
from harness.check.hypotheses.scene import tokens
from harness.check.poison import unwritten
from harness.check.reference import start_of
from harness.trace import Array, RowTrace

MOST_NUMBERS = 10**8
"""Numbers in the inputs of a whole vocabulary up to which a column is looked up there."""


def read_columns(scene: Scene, layer: int, columns: Array, threshold: float) -> tuple[str, str] | None:
    """Class and words of a history ``[W - 1, D]`` that no single mistake explains; ``None``: it is unreadable."""
    request, count, width = scene.row.request, scene.count, len(columns)
    expected = [f"{request}[{index}]" for index in range(count - width, count)]
    library = {
        f"{row.request}[{index}]": column
        for row in [*scene.strangers().values(), *scene.beside]
        for index, column in _inputs(scene, row, layer)
    }
    before = range(count - width, 0)  # of a history that is shorter than the window
    library |= {f"{request}[{index}]": np.zeros_like(columns[0]) for index in before}
    held = [
        _among(library, column, right, threshold)
        or _constant(column)
        or (_in_vocabulary(scene, column, threshold) if layer == 0 else None)
        for column, right in zip(columns, expected, strict=True)
    ]
    if any(name is None for name in held):
        return None
    names = [str(name) for name in held]
    return _told(scene, names, expected)


def _told(scene: Scene, held: list[str], expected: list[str]) -> tuple[str, str]:
    words = f"the columns hold {' '.join(held)}, expected {' '.join(expected)}"
    own = f"{scene.row.request}["
    fed = min(scene.row.num_computed - scene.start, len(held))
    lead = len([name for name in held if name == "unwritten"]) if held[0] == "unwritten" else 0
    rest, end = held[lead:], held[-1].removeprefix(own).rstrip("]")
    if lead and rest and end.isdigit() and rest == _run(own, int(end), len(rest)):
        lag = scene.count - 1 - int(end)
        if lag:
            return "lags", f"the state lags by {tokens(lag)}, and began in memory that nobody wrote: {words}"
        if lead == len(held) - fed:
            return (
                "started from unwritten memory",
                f"memory that nobody wrote stands before its tokens: {words}",
            )
    if "unwritten" in held:
        return "unwritten memory", f"memory that nobody wrote is in the history: {words}"
    if "zeros" in held:
        return "zero", f"a part of the history is zero: {words}"
    strangers = [name for name in held if not name.startswith((own, "token "))]
    begins_wrongly = fed < len(held) and held[-fed:] == expected[-fed:] and len(strangers) == len(held) - fed
    if begins_wrongly and scene.row.cached:
        hit = f"a prefix hit of {scene.row.cached} tokens"
        return "snapshot of another boundary", f"{hit} started from a state of another place: {words}"
    if begins_wrongly:
        return "started from another request", f"another request's tokens stand before its own: {words}"
    if any(name.startswith("token ") for name in held):
        return "wrong token", f"tokens that were not the row's were fed: {words}"
    if not strangers:
        return "tokens out of order", f"tokens of the request are mixed: {words}"
    return "rows mixed", f"tokens of several rows are mixed: {words}"


def _run(own: str, end: int, length: int) -> list[str]:
    return [f"{own}{index}]" for index in range(end - length + 1, end + 1)]


def _among(library: dict[str, Array], column: Array, right: str, threshold: float) -> str | None:
    # equal tokens have equal inputs in the first layer: of several that fit, the right one is meant
    residual, _, name = min((_residual(column, c), n != right, n) for n, c in library.items())
    return name if residual <= threshold else None


def _constant(column: Array) -> str | None:
    value = float(column[0])
    if not (column == value).all():
        return None
    return "zeros" if not value else "unwritten" if unwritten(value) is not None else None


def _in_vocabulary(scene: Scene, column: Array, threshold: float) -> str | None:
    size = scene.reference.oracle.config.vocab_size
    if scene.first is None or size * len(column) > MOST_NUMBERS:
        return None
    distances = relative_rms(scene.first.columns(range(size)), column[None], (1,))
    token = int(distances.argmin())
    return f"token {token}" if distances[token] <= threshold else None


def _inputs(scene: Scene, row: RowTrace, layer: int) -> Iterator[tuple[int, Array]]:
    """(place in the request's tokens, convolution input ``[D]``) of its last tokens up to the step, drafts included."""
    count, reference = row.num_computed, scene.reference
    first = max(min(count - REACH, start_of(row)), 0)
    states = reference.replay(row.request, also=range(first, count + 1)).states
    for index in range(first, count):
        if index + 1 in states:
            yield index, states[index + 1].conv[layer][-1]
    if rejected := scene.rejected_by(row):
        fork = reference.fork(row.request, count, rejected).states
        for j in range(1, len(rejected) + 1):
            yield count + j - 1, fork[count + j].conv[layer][-1]


def _residual(seen: Array, expected: Array) -> float:
    return float(relative_rms(expected, seen, (0,)))
