"""The recurrent states of requests across all linear layers: looked at, filed, taken over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from harness.engine.kernels.naive import fold_journal
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
    """The caches of the L linear layers. A request's column j is slot j of the recurrent pool, or the state in its only
    slot and the first j + 1 tokens of its journal; and the convolution history from column j of its line on."""

    def __init__(self, model: HybridModel) -> None:
        self._caches: list[LinearCache] = [layer.cache for layer in model.linear_layers.values()]
        self._history = model.config.conv_width - 1

    def live(self, request: EngineRequest) -> LiveState:
        """The state that the request's next step will start from, as the engine understands it; EngineError where its
        accepted count names none."""
        column = request.num_accepted - 1
        columns = self._caches[0].conv.shape[1] - self._history + 1
        if not 0 <= column < columns:
            raise EngineError(f"column {column} lies outside 0..{columns - 1}")
        return LiveState(
            conv=torch.stack([self._line(cache, request, column) for cache in self._caches]),
            recurrent=torch.stack([_recurrent(cache, request, column) for cache in self._caches]),
            tokens_included=request.num_computed,
        )

    def save(
        self, request: EngineRequest, column: int, to: int, column_of: Callable[[int, int], int]
    ) -> None:
        """File a request's column as a snapshot; ``column_of(column, layer)`` is what each layer copies."""
        for layer, cache in enumerate(self._caches):
            mine = column_of(column, layer)
            cache.conv[to, : self._history] = self._line(cache, request, mine)
            cache.recurrent[to] = _recurrent(cache, request, mine)

    def restore(self, snapshot: int, request: EngineRequest) -> None:
        """Start a request from a snapshot: its column 0."""
        slot = request.slots[0]
        for cache in self._caches:
            cache.conv[slot, : self._history] = cache.conv[snapshot, : self._history]
            cache.recurrent[slot] = cache.recurrent[snapshot]

    def _line(self, cache: LinearCache, request: EngineRequest, column: int) -> torch.Tensor:
        return cache.conv[request.slots[0], column : column + self._history]


def _recurrent(cache: LinearCache, request: EngineRequest, column: int) -> torch.Tensor:
    """``[HV, V, K]``; of a journal that is to be replayed in float32 at least, as the next step will have it."""
    if cache.journal is None:
        return cache.recurrent[request.slots[column]]
    slot, turn, tokens = (
        torch.tensor([n], device=cache.recurrent.device)
        for n in (request.slots[0], request.turn, column + 1 if request.has_journal else 0)
    )
    state = cache.recurrent[slot]
    state = state.to(torch.promote_types(state.dtype, torch.float32))
    fold_journal(state, cache.journal, slot, turn, tokens)
    return state[0]
