"""A guide that knows how long it has kept the engine's thread."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor

from harness.engine.guided import Guide


class TimedGuide(Guide):
    """``seconds`` of a processor so far. A grammar may pass its rehearsal and grow dear later: masks under
    ``s ::= s s | "a"`` cost the square of the answer's length."""

    seconds = 0.0

    def accept(
        self, committed: Sequence[int], drafts: Sequence[int] = (), prompt: Sequence[int] = ()
    ) -> bool:
        """As ``Guide.accept``."""
        with self._timed():
            return super().accept(committed, drafts, prompt)

    def validate(self, drafts: Sequence[int]) -> int:
        """As ``Guide.validate``."""
        with self._timed():
            return super().validate(drafts)

    def fill_masks(self, drafts: Sequence[int], masks: Tensor, first_row: int = 0) -> None:
        """As ``Guide.fill_masks``."""
        with self._timed():
            super().fill_masks(drafts, masks, first_row)

    @contextmanager
    def _timed(self) -> Iterator[None]:
        start = time.thread_time()  # of this thread alone: a busy machine is nobody's fault
        try:
            yield
        finally:
            self.seconds += time.thread_time() - start
