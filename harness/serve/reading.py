"""From the engine's tokens to the parts of an answer: text without its stop, an echoed prompt in front."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from harness.serve.answers import Head, Piece
from harness.serve.logprobs import TokenLogprob
from harness.serve.loop import Delta, Stream
from harness.serve.text import AnswerText, Texts


class Reading:
    """One answer being read. ``echo`` is the prompt's text where the answer begins with it; ``drops``: no token was
    wanted, and the one that the engine cannot do without is left out."""

    def __init__(
        self,
        stream: Stream,
        texts: Texts,
        stops: Sequence[str],
        *,
        echo: str | None = None,
        drops: bool = False,
    ) -> None:
        self.num_tokens = 0
        self._stream = stream
        self._text = AnswerText(texts, stops)
        self._echo = echo
        self._drops = drops

    async def pieces(self) -> AsyncIterator[Piece]:
        """The parts of the answer; the first one comes when the prompt is done."""
        first = True
        async for delta in self._stream.deltas():
            if first and self._echo is not None:
                yield self._echoed(self._echo)
            first = False
            yield self._answered(delta)
            if self._drops:
                return

    def head(self) -> Head:
        """About the prompt; complete with the first piece."""
        return Head(prompt=self._stream.request.prompt, prompt_logprobs=self._prompt_logprobs())

    def usage(self) -> dict[str, int]:
        """Tokens so far."""
        prompt = len(self._stream.request.prompt)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": self.num_tokens,
            "total_tokens": prompt + self.num_tokens,
        }

    def _answered(self, delta: Delta) -> Piece:
        if self._drops:
            return Piece(text="", tokens=(), finish_reason="length")
        self.num_tokens += len(delta.tokens)
        return Piece(
            text=self._text.feed(delta.tokens, delta.finish_reason),
            tokens=delta.tokens,
            logprobs=delta.logprobs,
            finish_reason=delta.finish_reason,
        )

    def _echoed(self, text: str) -> Piece:
        scored = self._stream.most_logprobs is not None
        tokens = self._stream.request.prompt
        logprobs = self._prompt_logprobs() if scored else ()
        return Piece(text=text, tokens=tokens, logprobs=logprobs, echoed=len(tokens))

    def _prompt_logprobs(self) -> tuple[TokenLogprob | None, ...]:
        """One place for each token of the prompt; nothing comes before the first."""
        return (None, *self._stream.prompt_logprobs)
