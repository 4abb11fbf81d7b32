"""The work that is timed, at Qwen3-Next's sizes: random rows, and pools several times the L2 cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.bench.gpu.clock import l2_bytes
from harness.engine.kernels.journal import Journal
from harness.engine.kernels.samples import QWEN3_NEXT

H, HV, K, V, D = QWEN3_NEXT.H, QWEN3_NEXT.HV, QWEN3_NEXT.K, QWEN3_NEXT.V, QWEN3_NEXT.D
STATE = HV * V * K  # elements
ROTATED = 4  # times the L2 cache


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """What recurrences take for N packed tokens: q, k, v as views of the convolution's output, and the gates."""

    x: Tensor  # [N, D]
    g: Tensor  # [N, HV]
    beta: Tensor  # [N, HV]

    @classmethod
    def draw(cls, count: int, random: torch.Generator, dtype: torch.dtype = torch.bfloat16) -> Tokens:
        """Random tokens on the GPU."""
        g = -normal(random, count, HV).exp() * 0.3
        return cls(x=normal(random, count, D).to(dtype), g=g, beta=normal(random, count, HV).sigmoid())

    def qkv(self) -> tuple[Tensor, Tensor, Tensor]:
        """q, k [N, H, K] and v [N, HV, V]."""
        q, k, v = self.x.split([H * K, H * K, HV * V], 1)
        return q.unflatten(1, (H, K)), k.unflatten(1, (H, K)), v.unflatten(1, (HV, V))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Rows of a verify step over a pool, once for every set of slots that the pool is rotated through."""

    lengths: tuple[int, ...]
    accepted: tuple[int, ...]
    drafts: int
    tokens: Tokens
    state: Tensor  # [P, HV, V, K]
    slots: tuple[Tensor, ...]  # of every set [B, k + 1], or [B, 1] for layout replay
    query_start_loc: Tensor  # [B + 1]
    num_accepted_tokens: Tensor  # [B]

    @classmethod
    def draw(
        cls,
        lengths: Sequence[int],
        accepted: Sequence[int],
        drafts: int,
        slots_per_row: int,
        random: torch.Generator,
        state_dtype: torch.dtype = torch.float32,
    ) -> Rows:
        """Random tokens, states and slots for these rows."""
        B = len(lengths)
        length = torch.tensor([0, *lengths], dtype=torch.int32)
        sets = rotations(B * slots_per_row * STATE * state_dtype.itemsize)
        P = 1 + sets * B * slots_per_row
        slot = 1 + torch.randperm(P - 1, generator=random, device="cuda").int()
        state = torch.empty(P, HV, V, K, device="cuda", dtype=state_dtype)
        return cls(
            lengths=tuple(lengths),
            accepted=tuple(accepted),
            drafts=drafts,
            tokens=Tokens.draw(sum(lengths), random),
            state=state.normal_(generator=random),
            slots=tuple(slot.view(sets, B, slots_per_row)),
            query_start_loc=length.cumsum(0).int().cuda(),
            num_accepted_tokens=torch.tensor(list(accepted), dtype=torch.int32).cuda(),
        )

    def journal(self, random: torch.Generator) -> Journal:
        """A journal full of random tokens for every slot."""
        halves = len(self.state), 2, self.drafts + 1
        return Journal(
            k=normal(random, *halves, H, K).bfloat16(),
            writes=normal(random, *halves, HV, V) * K**-0.5,
            g=-normal(random, *halves, HV).exp() * 0.3,
        )

    def bytes_needed(self, layout: str) -> int:
        """Bytes that a layout has to move: its states, and what it reads and writes of each token."""
        states = STATE * self.state.element_size()
        token = 2 * (2 * H * K + HV * V) + 8 * HV  # q, k, v in bfloat16 and two float32 gates
        moved = sum(self.lengths) * (token + 2 * HV * V)  # and the outputs
        if layout == "slots":
            return moved + states * (len(self.lengths) + sum(self.lengths))
        logged = 2 * H * K + 4 * HV * V + 4 * HV  # keys in bfloat16; what they wrote, and decays
        return moved + 2 * states * len(self.lengths) + logged * (sum(self.lengths) + sum(self.accepted))


def normal(random: torch.Generator, *size: int) -> Tensor:
    """Normal numbers on the GPU."""
    return torch.randn(size, generator=random, device="cuda")


def rotations(touched: int) -> int:
    """Sets of slots so that together they are ``ROTATED`` times the L2 cache."""
    return max(1, -(-ROTATED * l2_bytes() // touched))


def counts(B: int, drafts: int, random: torch.Generator) -> list[int]:
    """Accepted counts, uniform in 1 .. drafts + 1."""
    return torch.randint(1, drafts + 2, (B,), generator=random, device="cuda").tolist()
