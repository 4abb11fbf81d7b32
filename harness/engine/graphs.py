"""Captured steps as CUDA graphs: one for every size, captured when a step first has it, replayed ever after.

A graph reads the tensors that it was captured with, so a step's own are copied into them first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar

import torch

from harness.engine.batch import Batch
from harness.engine.model import Forward, HybridModel

Part = TypeVar("Part")


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """One graph, the tensors that it reads, and those that it leaves."""

    batch: Batch
    forward: Forward
    graph: torch.cuda.CUDAGraph | None  # None on a CPU, which runs the same code on the same tensors again


class Graphs:
    """A model's captured steps by their size in tokens; whatever is not captured runs as it comes."""

    def __init__(self, model: HybridModel) -> None:
        self._model = model
        self._captured: dict[int, Captured] = {}

    def forward(self, batch: Batch) -> Forward:
        """Run one step and update every cache, as ``HybridModel.forward`` does, and raise what that raises."""
        if batch.captured is None:
            return self._model.forward(batch)
        if batch.captured not in self._captured:
            self._captured[batch.captured] = self._capture(batch)
        mine = self._captured[batch.captured]
        for kept, new in zip(tensors(mine.batch), tensors(batch), strict=True):
            kept.copy_(new)
        if mine.graph is None:
            return self._model.forward(mine.batch)
        mine.graph.replay()
        return mapped(mine.forward, torch.clone)  # the next replay leaves its results in the same place

    def _capture(self, batch: Batch) -> Captured:
        """A graph for steps like this one.

        The step runs once before, so that kernels are compiled and a fault says what it has to say. Then no row has a
        token, so no state changes; keys and values go where the step itself will put them.
        """
        kept = mapped(batch, torch.clone)
        for tensor in tensors(kept.spec):
            tensor.zero_()
        if not batch.tokens.input_ids.is_cuda:
            return Captured(batch=kept, forward=self._model.forward(kept), graph=None)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._model.forward(kept)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=stream, capture_error_mode="thread_local"):
            forward = self._model.forward(kept)
        return Captured(batch=kept, forward=forward, graph=graph)

    @property
    def _pool(self) -> Any:
        """Memory that all graphs share: results are cloned before another one runs."""
        return next((one.graph.pool() for one in self._captured.values() if one.graph), None)


def tensors(value: object) -> Iterator[torch.Tensor]:
    """Every tensor of a batch or of a part of one, in the order of their declaration."""
    if isinstance(value, torch.Tensor):
        yield value
    elif is_dataclass(value):
        for field in fields(value):
            yield from tensors(getattr(value, field.name))


def mapped(value: Part, change: Callable[[torch.Tensor], torch.Tensor]) -> Part:
    """The same with other tensors."""
    if isinstance(value, torch.Tensor):
        return change(value)  # type: ignore[return-value]
    if is_dataclass(value) and not isinstance(value, type):
        parts = {field.name: mapped(getattr(value, field.name), change) for field in fields(value)}
        return replace(value, **parts)
    return value
