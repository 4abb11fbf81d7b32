"""The whole hybrid model for one request, in float64: what every engine is compared with.

    fold = Oracle.load(folder).fold()
    replay = fold.extend(prompt)         many tokens at once, layer by layer
    position = fold.push(token)          one more

A fold goes forwards only. Whoever needs to know what would have happened takes a ``copy`` first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from harness.errors import ScenarioError
from harness.oracle import attention, gdn, moe
from harness.oracle.attention import Attention, KeyValues
from harness.oracle.functions import Array, Ints, rms_norm
from harness.oracle.gdn import DeltaNet, Memory
from harness.oracle.weights import Config, Weights, read_weights


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The recurrent half of a request's memory, L linear layers in order."""

    conv: Array  # [L, W - 1, D] raw convolution inputs, oldest first, channels in the order q, k, v
    recurrent: Array  # [L, HV, V, K]


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """What the model says after one token."""

    logits: Array  # [vocab]
    hidden: Array  # [hidden] after the final norm: what the MTP head is given
    routing: Ints  # [num_layers, top_k] expert ids, largest weight first
    router_gap: Array  # [num_layers] probability of the last expert in minus that of the first one out


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What the model says after each of T tokens."""

    logits: Array  # [T, vocab]
    hidden: Array  # [T, hidden]
    routing: Ints  # [T, num_layers, top_k]
    router_gap: Array  # [T, num_layers]
    states: dict[int, State]  # by number of tokens folded since the request began

    def __getitem__(self, t: int) -> Position:
        return Position(
            logits=self.logits[t],
            hidden=self.hidden[t],
            routing=self.routing[t],
            router_gap=self.router_gap[t],
        )


class Oracle:
    """A checkpoint, ready to be folded over any number of requests."""

    def __init__(self, weights: Weights) -> None:
        self.weights = weights

    @classmethod
    def load(cls, folder: Path | str) -> Oracle:
        """Reads a checkpoint folder. Raises ModelError."""
        return cls(read_weights(Path(folder)))

    @property
    def config(self) -> Config:
        return self.weights.config

    def fold(self) -> Fold:
        """A new request, before its first token."""
        return Fold(self.weights, [blank(layer.mixer) for layer in self.weights.layers], count=0)


def blank(mixer: DeltaNet | Attention) -> Memory | KeyValues:
    """What a layer remembers before the first token."""
    return gdn.blank(mixer) if isinstance(mixer, DeltaNet) else attention.blank(mixer)


class Fold:
    """One request: the memory of every layer after ``count`` tokens."""

    def __init__(self, weights: Weights, memory: Sequence[Memory | KeyValues], *, count: int) -> None:
        self._weights = weights
        self._memory = list(memory)
        self.count = count

    def push(self, token: int) -> Position:
        """Feeds one token. Raises ScenarioError if it is not in the vocabulary."""
        return self.extend([token])[0]

    def extend(self, tokens: Sequence[int], keep_states_at: Collection[int] = ()) -> Replay:
        """Feeds T tokens; equal to T pushes, and much faster.

        ``keep_states_at`` are counts of tokens since the request began, from the present ``count`` to
        ``count`` + T, after which the state is to be reported. Raises ScenarioError on a token outside the
        vocabulary and ValueError on a count that this call does not pass.
        """
        start, end = self.count, self.count + len(tokens)
        if stray := [count for count in keep_states_at if not start <= count <= end]:
            raise ValueError(f"states asked for after {stray} tokens; this call goes from {start} to {end}")
        ids = in_vocabulary(tokens, self._weights.config.vocab_size)
        keep = {count - start for count in keep_states_at}
        linear: list[dict[int, Memory]] = []
        routings: list[moe.Routing] = []

        x = self._weights.embedding[ids]  # [T, hidden]
        for index, layer in enumerate(self._weights.layers):
            before = self._memory[index]
            normed = rms_norm(x, layer.input_norm, self._weights.config.eps)
            if isinstance(layer.mixer, DeltaNet):
                assert isinstance(before, Memory)
                mixed, kept = gdn.fold(normed, layer.mixer, before, keep)
                linear.append(kept)
                self._memory[index] = kept[len(ids)]
            else:
                assert isinstance(before, KeyValues)
                mixed, self._memory[index] = attention.attend(normed, layer.mixer, before)
            x = x + mixed
            fed, routing = moe.mix(rms_norm(x, layer.post_norm, self._weights.config.eps), layer.experts)
            routings.append(routing)
            x = x + fed

        self.count = end
        hidden = rms_norm(x, self._weights.norm, self._weights.config.eps)
        return Replay(
            logits=hidden @ self._weights.lm_head.T,
            hidden=hidden,
            routing=np.stack([routing.experts for routing in routings], axis=1),
            router_gap=np.stack([routing.gap for routing in routings], axis=1),
            states={start + offset: gather([kept[offset] for kept in linear]) for offset in sorted(keep)},
        )

    def state(self) -> State:
        """A copy of the recurrent state as it is now."""
        return gather([memory for memory in self._memory if isinstance(memory, Memory)])

    def with_state(self, state: State) -> Fold:
        """A fold with the same attention memory and position whose linear layers remember ``state`` instead.

        Given the state of an earlier count it behaves as an engine that reads a stale slot.
        """
        rows = iter(zip(state.conv, state.recurrent, strict=True))
        memory: list[Memory | KeyValues] = []
        for old in self._memory:
            if isinstance(old, Memory):
                conv, recurrent = next(rows)
                memory.append(Memory(conv=conv.copy(), recurrent=recurrent.copy()))
            else:
                memory.append(old)
        return Fold(self._weights, memory, count=self.count)

    def with_attention(self, change: Callable[[KeyValues], KeyValues]) -> Fold:
        """A fold at the same point whose attention layers remember what ``change`` makes of their keys and values."""
        memory = [old if isinstance(old, Memory) else change(old) for old in self._memory]
        return Fold(self._weights, memory, count=self.count)

    def copy(self) -> Fold:
        """An independent fold at the same point; cheap, because memories are never written to."""
        return Fold(self._weights, self._memory, count=self.count)


def gather(memories: Sequence[Memory]) -> State:
    """The memories of L linear layers as one state."""
    return State(
        conv=np.stack([memory.conv for memory in memories]),
        recurrent=np.stack([memory.recurrent for memory in memories]),
    )


def in_vocabulary(tokens: Sequence[int], vocab_size: int) -> Ints:
    """tokens as an array [T]. A placeholder of -1 must not quietly index the last row of the embedding."""
    ids = np.asarray(tokens, dtype=np.int64).reshape(-1)
    if stray := [(i, int(token)) for i, token in enumerate(ids) if not 0 <= token < vocab_size]:
        index, token = stray[0]
        raise ScenarioError(f"token {token} at index {index} is not in the vocabulary of {vocab_size}")
    return ids
