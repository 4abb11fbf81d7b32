"""The right request at the wrong time: too old, too young, never, or with tokens that do not count."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from harness.check.hypotheses.scene import REACH, Hypothesis, Scene, of, tokens
from harness.trace import Array


def wrong_age(scene: Scene) -> Iterator[Hypothesis]:
    """The state after fewer or more of the right tokens."""
    live = scene.live
    yield Hypothesis(
        cause="zero",
        words="the state is zero",
        conv=np.zeros_like(live.conv),
        recurrent=np.zeros_like(live.recurrent),
    )
    count, states = scene.count, scene.states()
    for other in range(max(count - REACH, 1), count + REACH + 1):
        if other in states and other != count:
            verb = "lags by" if other < count else "leads by"
            yield of(verb.split()[0], f"the state {verb} {tokens(abs(other - count))}", states[other])
    for row in scene.before:
        if row.state is not None and row.state.tokens_included in states:
            age = row.state.tokens_included
            if age < count - REACH:
                words = f"the state is a snapshot of {age} tokens, {count - age} tokens old"
                yield of("stale snapshot", words, states[age])
    yield from _cut_short(scene)


def of_rejected_drafts(scene: Scene) -> Iterator[Hypothesis]:
    """The row's drafts beyond the accepted ones, folded in one by one."""
    if scene.rejected:
        states = scene.reference.fork(scene.row.request, scene.count, scene.rejected).states
        for j in range(1, len(scene.rejected) + 1):
            words = f"the state includes {j} rejected draft{'s' * (j > 1)}"
            yield of("rejected drafts", words, states[scene.count + j])


def of_fillers(scene: Scene) -> Iterator[Hypothesis]:
    """Padding and placeholders folded in as if they were tokens: id 0, or -1, which is the last row of a table."""
    if scene.first is None:
        return
    last = scene.reference.oracle.config.vocab_size - 1
    for token, name in ((0, "token 0"), (last, f"token -1, which is {last}")):
        conv, recurrent = scene.live.conv[0], scene.live.recurrent[0]
        for j in range(1, REACH + 1):
            conv, recurrent = scene.first.after([token], conv, recurrent)
            words = f"the state includes {j} time{'s' * (j > 1)} the filler {name}"
            yield scene.in_first_layer("filler tokens", words, conv, recurrent)


def rounded(scene: Scene) -> Iterator[Hypothesis]:
    """The right numbers with fewer digits."""
    live = scene.live
    for name, cut in (("bfloat16", _bfloat16), ("float16", lambda x: x.astype(np.float16).astype(x.dtype))):
        yield Hypothesis(
            cause="rounded",
            words=f"the state is right but for rounding to {name}",
            conv=cut(live.conv),
            recurrent=cut(live.recurrent),
        )


def _cut_short(scene: Scene) -> Iterator[Hypothesis]:
    """A long row of which only the beginning was folded in."""
    if scene.first is None or len(scene.fed) <= REACH:
        return
    start = scene.states()[scene.start]
    fed = scene.first.read(scene.fed, start.conv[0])
    recurrent, history = start.recurrent[0], len(start.conv[0])
    for t in range(1, len(scene.fed) - REACH):
        recurrent = scene.first.step(recurrent, fed, t - 1)
        words = f"only the first {tokens(t)} of the row's {len(scene.fed)} were folded in"
        yield scene.in_first_layer("row cut short", words, fed.window[t : t + history], recurrent)


def _bfloat16(x: Array) -> Array:
    bits = x.astype(np.float32).view(np.uint32)
    even = bits + 0x7FFF + ((bits >> 16) & 1)
    nearest: Array = (even & np.uint32(0xFFFF0000)).view(np.float32).astype(x.dtype)
    return nearest
