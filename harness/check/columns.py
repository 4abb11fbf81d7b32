"""A convolution history read column by column: whose token, or which token of the vocabulary, each column holds."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from harness.check.distance import relative_rms
from harness.check.hypotheses import REACH, Scene
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
        for row in scene.beside
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
    words = f"the columns hold {' '.join(names)}, expected {' '.join(expected)}"
    if "zeros" in names:
        return "zero", f"a part of the history is zero: {words}"
    if "unwritten" in names:
        return "unwritten memory", f"memory that nobody wrote is in the history: {words}"
    if any(name.startswith("token ") for name in names):
        return "wrong token", f"tokens that were not the row's were fed: {words}"
    if all(name.startswith(f"{request}[") for name in names):
        return "tokens out of order", f"tokens of the request are mixed: {words}"
    return "rows mixed", f"tokens of several rows are mixed: {words}"


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
