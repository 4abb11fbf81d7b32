"""How an engine is set up: sizes, precision, speculation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

Layout = Literal["slots", "replay"]
"""How the linear layers roll back: by one state per token, or by one state and the tokens that follow it."""

NULL_SLOT = 0
"""The state slot and the KV block that nobody owns: padded rows point here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Everything about the engine that is not the model and not a decision of its ``Policy``.

    ``capture_sizes`` are the token counts that a captured step is padded to; empty: no padding. With ``graphs`` such a
    step is the replay of a CUDA graph, else it runs as it comes. ``regime`` says whether a step is planned before the
    one before it is over (``placeholder``) or behind it (``trim``).
    ``layout`` is what a request's states are kept in: a slot for every token of a verify row, or one slot whose state
    the next step brings up to date from a journal of the row.
    ``most_requests``: no more than so many will ever be there, so that no more slots are made; ``None``: any number.
    ``reverse_rows`` composes every batch in the opposite order, which must change nothing (A/A runs).
    """

    k: int = 3
    token_budget: int = 512
    max_model_len: int = 512
    max_num_seqs: int = 64
    most_requests: int | None = None
    regime: str = "trim"
    layout: Layout = "slots"
    prefix_caching: bool = False
    block_size: int = 16
    kv_blocks: int | None = None
    capture_sizes: tuple[int, ...] = ()
    graphs: bool = False
    drafter: str = "mtp"
    ngram_lengths: tuple[int, int] = (2, 4)
    sample_drafts: bool = False
    dtype: torch.dtype = torch.float32
    state_dtype: torch.dtype = torch.float32
    device: str = "cpu"
    reverse_rows: bool = False

    @property
    def slots_per_request(self) -> int:
        """State slots that a request owns."""
        return self.k + 1 if self.layout == "slots" else 1

    @property
    def num_slots(self) -> int:
        """State slots: those of every request, those of the prefix cache, and the null slot."""
        owners = min(self.max_num_seqs, self.most_requests or self.max_num_seqs)
        return 1 + owners * self.slots_per_request + self.num_snapshots

    @property
    def num_snapshots(self) -> int:
        """States that the prefix cache keeps."""
        return 2 * self.max_num_seqs if self.prefix_caching else 0

    @property
    def num_blocks(self) -> int:
        """KV blocks, the null block included: as told, or room for every request at full length, k in flight."""
        if self.kv_blocks is not None:
            return self.kv_blocks
        return 1 + self.max_num_seqs * -(-(self.max_model_len + self.k) // self.block_size)

    @property
    def blocks_per_request(self) -> int:
        """KV blocks that a request may own: those of its full length with k in flight, or all there are."""
        return min(-(-(self.max_model_len + self.k) // self.block_size), self.num_blocks - 1)

    def capture_size(self, num_tokens: int) -> int | None:
        """The smallest captured size that holds ``num_tokens``, or ``None``."""
        return min((size for size in self.capture_sizes if size >= num_tokens), default=None)
