"""A step's tokens, packed row after row, with what full attention needs to place and see them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from harness.engine.config import NULL_SLOT, EngineConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedTokens:
    """N tokens of B rows. Padded tokens stand at the end, belong to no row and write to the null block.

    ``longest`` and ``context`` are counted on the host, so that attention waits for nobody. In a captured step they,
    like every shape, follow from N alone: rows without tokens make B as large as it may be.
    """

    input_ids: torch.Tensor  # [N]
    positions: torch.Tensor  # [N]
    query_start_loc: torch.Tensor  # [B + 1]
    context_lens: torch.Tensor  # [B], tokens in cache before the step
    block_table: torch.Tensor  # [B, blocks]
    kv_places: torch.Tensor  # [N], block * block_size + offset
    longest: int  # tokens of the longest row, at most
    context: int  # tokens that any row has in cache behind the step, at most


def pack(
    blocks: Sequence[Sequence[int]],
    input_ids: Sequence[Sequence[int]],
    starts: Sequence[int],
    config: EngineConfig,
    *,
    longest: int,
    padded_tokens: int = 0,
    captured: bool = False,
) -> PackedTokens:
    """Row i feeds ``input_ids[i]`` to the request that owns ``blocks[i]``, from position ``starts[i]`` on."""
    size, lengths = config.block_size, [len(ids) for ids in input_ids]
    padding = [NULL_SLOT] * padded_tokens
    positions = [[start + j for j in range(len(ids))] for start, ids in zip(starts, input_ids, strict=True)]
    places = [
        [mine[position // size] * size + position % size for position in row]
        for mine, row in zip(blocks, positions, strict=True)
    ]
    num_rows, widest = len(blocks), max((len(mine) for mine in blocks), default=0)
    context = max((start + length for start, length in zip(starts, lengths, strict=True)), default=0)
    if captured:
        num_rows, widest = min(sum(lengths) + padded_tokens, config.max_num_seqs), config.blocks_per_request
        longest, context = config.k + 1, widest * size
    empty = num_rows - len(blocks)
    table = [[*mine, *[NULL_SLOT] * (widest - len(mine))] for mine in (*blocks, *[()] * empty)]

    def tensor(values: object) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.long, device=config.device)

    return PackedTokens(
        input_ids=tensor([i for row in input_ids for i in row] + padding),
        positions=tensor([position for row in positions for position in row] + padding),
        query_start_loc=boundaries([*lengths, *[0] * empty], config.device),
        context_lens=tensor([*starts, *[0] * empty]),
        block_table=tensor(table).view(num_rows, widest),
        kv_places=tensor([place for row in places for place in row] + padding),
        longest=longest,
        context=context,
    )


def boundaries(lengths: Sequence[int], device: str) -> torch.Tensor:
    """``query_start_loc [B + 1]`` of rows packed one after the other."""
    return torch.tensor([0, *lengths], device=device).cumsum(0).to(torch.int32)
