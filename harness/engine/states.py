"""The recurrent states of requests across all linear layers: looked at, filed, taken over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from harness.engine.linear_layer import LinearCache
from harness.engine.model import HybridModel
from harness.engine.request import EngineRequest
from harness.errors import EngineError


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveState:
    """A request's live state in every linear layer, after ``tokens_included`` of its tokens."""

    conv: torch.Tensor  # [L, W - 1, D]
    recurrent: torch.Tensor  # [L, HV, V, K]
    tokens_included: int


class States:
    """The caches of the L linear layers. A request's column j: slot j of the recurrent pool, and the convolution
    history that begins at column j of its first slot's line."""

    def __init__(self, model: HybridModel) -> None:
        self._caches: list[LinearCache] = [layer.cache for layer in model.linear_layers.values()]
        self._history = model.config.conv_width - 1

    def live(self, request: EngineRequest) -> LiveState:
        """The state that the request's next step will start from, as the engine understands it; EngineError where its
        accepted count names none."""
        column = request.num_accepted - 1
        if not 0 <= column < len(request.slots):
            raise EngineError(f"column {column} lies outside 0..{len(request.slots) - 1}")
        return LiveState(
            conv=torch.stack([self._line(cache, request.slots, column) for cache in self._caches]),
            recurrent=torch.stack([cache.recurrent[request.slots[column]] for cache in self._caches]),
            tokens_included=request.num_computed,
        )

    def save(self, slots: Sequence[int], column: int, to: int, column_of: Callable[[int, int], int]) -> None:
        """File a request's column as a snapshot; ``column_of(column, layer)`` is what each layer copies."""
        for layer, cache in enumerate(self._caches):
            mine = column_of(column, layer)
            cache.conv[to, : self._history] = self._line(cache, slots, mine)
            cache.recurrent[to] = cache.recurrent[slots[mine]]

    def restore(self, snapshot: int, slots: Sequence[int]) -> None:
        """Start a request from a snapshot: its column 0."""
        for cache in self._caches:
            cache.conv[slots[0], : self._history] = cache.conv[snapshot, : self._history]
            cache.recurrent[slots[0]] = cache.recurrent[snapshot]

    def _line(self, cache: LinearCache, slots: Sequence[int], column: int) -> torch.Tensor:
        return cache.conv[slots[0], column : column + self._history]
