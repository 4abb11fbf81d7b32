"""Verify steps: both layouts beside vLLM's kernel, over drafts, batch sizes, accepted counts and mixed rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from harness.bench.gpu.clock import microseconds
from harness.bench.gpu.upstream import Upstream, gates_of
from harness.bench.gpu.work import HV, Rows, V, counts
from harness.engine.kernels import gdn, replay

BATCHES = (1, 4, 16, 64, 256, 512)
DRAFTS = tuple(range(8))


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """One line of the table: times in us, shares of the copy bandwidth by the bytes that a layout needs."""

    what: str
    drafts: int
    batch: int
    vllm: float
    slots: float
    replay: float
    slots_bytes: int
    replay_bytes: int


class Verify:
    """Times verify steps; ``random`` draws everything."""

    def __init__(self, upstream: Upstream, random: torch.Generator) -> None:
        self._upstream = upstream
        self._random = random

    def table(self, drafts: Sequence[int], batches: Sequence[int]) -> Iterator[Verified]:
        """Uniform rows of k + 1 tokens, accepted counts uniform in 1 .. k + 1."""
        for k in drafts:
            for B in batches:
                yield self.line("uniform rows", k, [k + 1] * B, counts(B, k, self._random))

    def extremes(self, batch: int = 64) -> Iterator[Verified]:
        """Nothing accepted beyond the bonus token, and everything."""
        for k in (1, 3, 5):
            yield self.line("all accept 1", k, [k + 1] * batch, [1] * batch)
            yield self.line("all accept k + 1", k, [k + 1] * batch, [k + 1] * batch)

    def mixed(self, batches: Sequence[int] = (64, 256)) -> Iterator[tuple[Verified, Verified]]:
        """Rows of 1 .. k + 1 tokens, and a uniform batch of as many rows and tokens."""
        for k in (2, 4):
            for B in batches:
                B -= B % (k + 1)
                lengths = [1 + b % (k + 1) for b in range(B)]
                order = torch.randperm(B, generator=self._random, device="cuda").tolist()
                accepted = counts(B, k, self._random)
                mixed = self.line("mixed rows", k, [lengths[b] for b in order], accepted)
                yield mixed, self.line("uniform rows", k, [k // 2 + 1] * B, accepted)

    def half(self, batches: Sequence[int] = (64, 256)) -> Iterator[Verified]:
        """States in bfloat16."""
        for B in batches:
            yield self.line("bfloat16 state", 3, [4] * B, counts(B, 3, self._random), torch.bfloat16)

    def line(
        self,
        what: str,
        k: int,
        lengths: Sequence[int],
        accepted: Sequence[int],
        state_dtype: torch.dtype = torch.float32,
    ) -> Verified:
        """One set of rows in both layouts, and as vLLM does it."""
        many = Rows.draw(lengths, accepted, k, k + 1, self._random, state_dtype)
        vllm, slots, slots_bytes = self._vllm(many), self._slots(many), many.bytes_needed("slots")
        del many
        one = Rows.draw(lengths, accepted, k, 1, self._random, state_dtype)
        return Verified(
            what=what,
            drafts=k,
            batch=len(lengths),
            vllm=vllm,
            slots=slots,
            replay=self._replay(one),
            slots_bytes=slots_bytes,
            replay_bytes=one.bytes_needed("replay"),
        )

    def _vllm(self, rows: Rows) -> float:
        q, k, v = (x.contiguous() for x in rows.tokens.qkv())
        gates = gates_of(rows.tokens.g, rows.tokens.beta)
        loc = {"query_start_loc": rows.query_start_loc, "num_accepted_tokens": rows.num_accepted_tokens}
        return microseconds(
            [
                lambda slots=slots: self._upstream.verify(  # type: ignore[misc]
                    q, k, v, gates, rows.state, {**loc, "state_indices": slots}
                )
                for slots in rows.slots
            ]
        )

    def _slots(self, rows: Rows) -> float:
        t = rows.tokens
        out = t.x.new_zeros(len(t.x), HV, V)
        launches = [
            gdn.verify_launch(
                *t.qkv(),
                t.g,
                t.beta,
                out,
                rows.state,
                query_start_loc=rows.query_start_loc,
                state_indices=slots,
                num_accepted_tokens=rows.num_accepted_tokens,
            )
            for slots in rows.slots
        ]
        return microseconds([launch.run for launch in launches])

    def _replay(self, rows: Rows) -> float:
        t = rows.tokens
        out, journal = t.x.new_zeros(len(t.x), HV, V), rows.journal(self._random)
        launches = [
            replay.replay_launch(
                *t.qkv(),
                t.g,
                t.beta,
                out,
                rows.state,
                journal,
                query_start_loc=rows.query_start_loc,
                state_indices=slots[:, 0],
                num_accepted_tokens=rows.num_accepted_tokens,
                turns=torch.zeros_like(rows.num_accepted_tokens),
            )
            for slots in rows.slots
        ]
        return microseconds([launch.run for launch in launches])
