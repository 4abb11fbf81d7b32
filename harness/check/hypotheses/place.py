"""The right numbers in the wrong place: another request's, another layer's, another head's."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from harness.check.hypotheses.scene import Hypothesis, Scene, of, tokens


def wrong_owner(scene: Scene) -> Iterator[Hypothesis]:
    """Another request's state, alive or dead."""
    here = {row.request for step in scene.trace.steps if step.index == scene.step for row in step.rows}
    for name, row in scene.strangers().items():
        assert row.state is not None
        states = scene.reference.replay(name).states
        if row.state.tokens_included in states:
            cause, word = ("another request", "") if name in here else ("former owner", "the departed ")
            words = f"the state belongs to {word}request {name}"
            yield of(cause, words, states[row.state.tokens_included])


def wrong_place(scene: Scene) -> Iterator[Hypothesis]:
    """The right numbers in the wrong layer, head, or orientation."""
    live = scene.reference.replay(scene.row.request).states[scene.count]
    layers = len(live.conv)
    for shift in range(1, layers):
        yield Hypothesis(
            cause="another layer",
            words=f"the state belongs to the linear layer {shift} further on",
            conv=np.roll(live.conv, -shift, axis=0),
            recurrent=np.roll(live.recurrent, -shift, axis=0),
        )
    for shift in range(1, live.recurrent.shape[1]):
        yield Hypothesis(
            cause="heads rotated",
            words=f"the heads are rotated by {shift}",
            conv=live.conv,
            recurrent=np.roll(live.recurrent, shift, axis=1),
        )
    if live.recurrent.shape[2] == live.recurrent.shape[3]:
        transposed = live.recurrent.swapaxes(2, 3)
        yield Hypothesis(
            cause="transposed", words="the state is transposed", conv=live.conv, recurrent=transposed
        )
    for shift in range(1, live.conv.shape[1]):
        for amount, side in ((shift, "later"), (-shift, "earlier")):
            yield Hypothesis(
                cause="window shifted",
                words=f"the convolution window begins {tokens(shift)} {side}",
                conv=np.roll(live.conv, amount, axis=1),
                recurrent=live.recurrent,
            )
