"""What should have happened: the oracle folded over the tokens that each request really committed."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from harness.oracle.model import Fold, Oracle, Replay, State
from harness.scenario import Scenario
from harness.trace import RowTrace, Trace


class ReferenceBook:
    """Replays of the oracle, kept per token history: variants that commit the same tokens share them."""

    def __init__(self, oracle: Oracle) -> None:
        self.oracle = oracle
        self._replays: dict[tuple[int, ...], Replay] = {}

    def replay(self, tokens: Sequence[int], counts: Collection[int]) -> Replay:
        """The oracle over ``tokens``, with its state after each of ``counts`` tokens."""
        key = tuple(tokens)
        kept = self._replays.get(key)
        if kept is None or not set(counts) <= set(kept.states):
            wanted = set(counts) | (set(kept.states) if kept else set())
            kept = self._replays[key] = self.oracle.fold().extend(key, keep_states_at=wanted)
        return kept

    def forget(self) -> None:
        """Drop the replays of a scenario that is done; states are large."""
        self._replays.clear()


class Reference:
    """One trace's requests beside the oracle."""

    def __init__(self, book: ReferenceBook, scenario: Scenario, trace: Trace) -> None:
        self._book = book
        self.histories = {request.id: list(request.prompt) for request in scenario.requests}
        counts: dict[str, set[int]] = {request.id: set() for request in scenario.requests}
        for step in trace.steps:
            for row in step.rows:
                if row.discarded:
                    continue
                self.histories[row.request] += row.committed
                if row.state is not None:
                    counts[row.request].add(row.state.tokens_included)
        self._counts = {
            name: {count for count in wanted if 0 <= count <= len(self.known(self.histories[name]))}
            for name, wanted in counts.items()
        }

    @property
    def oracle(self) -> Oracle:
        """Who says what should have happened."""
        return self._book.oracle

    def known(self, tokens: Sequence[int]) -> Sequence[int]:
        """The tokens before the first that is not in the vocabulary: a suspect may have committed a placeholder."""
        size = self._book.oracle.config.vocab_size
        stray = next((i for i, token in enumerate(tokens) if not 0 <= token < size), len(tokens))
        return tokens[:stray]

    def replay(self, request: str, also: Collection[int] = ()) -> Replay:
        """The oracle over all known tokens of a request; states at every recorded count, and at ``also``."""
        history = self.known(self.histories[request])
        more = {count for count in also if 0 <= count <= len(history)}
        return self._book.replay(history, self._counts[request] | more)

    def fork(self, request: str, count: int, tokens: Sequence[int]) -> Replay:
        """The oracle over the first ``count`` tokens of a request and then known ``tokens``, a state after each."""
        fold = self._folded(request, count)
        return fold.extend(tokens, keep_states_at=range(count, count + len(tokens) + 1))

    def from_empty(self, request: str, count: int, tokens: Sequence[int]) -> State:
        """The state after ``tokens`` where the linear layers had forgotten the first ``count`` tokens."""
        return self._after(self._book.oracle.fold().state(), request, count, tokens)

    def from_stranger(self, owner: str, age: int, request: str, count: int, tokens: Sequence[int]) -> State:
        """The same, where they held the state of ``owner`` after ``age`` tokens instead."""
        return self._after(self._folded(owner, age).state(), request, count, tokens)

    def _after(self, state: State, request: str, count: int, tokens: Sequence[int]) -> State:
        changed = self._folded(request, count).with_state(state)
        changed.extend(tokens)
        return changed.state()

    def _folded(self, request: str, count: int) -> Fold:
        fold = self._book.oracle.fold()
        if count:
            fold.extend(self.histories[request][:count])
        return fold


def start_of(row: RowTrace) -> int:
    """Tokens in cache before a row that counts."""
    return row.num_computed - (row.prompt_tokens or row.accepted)


def accepted_counts(row: RowTrace) -> list[int]:
    """For each accepted position of a row with logits, the number of tokens that its logits should have seen."""
    if row.logits is None or row.discarded:
        return []
    if row.prompt_tokens:
        return [row.num_computed]
    return list(range(row.num_computed - row.accepted + 1, row.num_computed + 1))
