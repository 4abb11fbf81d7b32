"""States that known mistakes would have left, built from the reference alone.

A hypothesis is a whole state, so one list serves every layer and tensor. Where a mistake changes what deeper layers are
fed, only the first linear layer is told exactly: a diagnosis looks at the earliest coordinate, which is there.

scene        the wrong row and all that ran; what a hypothesis is
first_layer  the first linear layer alone, for mistakes inside a row
age          the right request at the wrong time
start        what the row started from
update       what was folded in
place        another request, layer, head or column
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.check.hypotheses.age import of_fillers, of_rejected_drafts, rounded, wrong_age
from harness.check.hypotheses.place import wrong_owner, wrong_place
from harness.check.hypotheses.scene import REACH, Hypothesis, Scene
from harness.check.hypotheses.start import wrong_start
from harness.check.hypotheses.update import wrong_update

__all__ = ["REACH", "Hypothesis", "Scene", "hypotheses"]


def hypotheses(scene: Scene) -> Iterator[Hypothesis]:
    """All of them, the simplest first."""
    yield from wrong_age(scene)
    yield from of_rejected_drafts(scene)
    yield from wrong_owner(scene)
    if scene.is_sane:
        yield from wrong_start(scene)
    yield from wrong_place(scene)
    if scene.is_sane:
        yield from wrong_update(scene)
    yield from of_fillers(scene)
    yield from rounded(scene)
