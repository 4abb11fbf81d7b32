"""From what a benchmark asks to what is sent: the one place where data meets a wire format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.bench.data.ask import Ask, Guide, GuideKind
from harness.bench.load.call import Call, chat, completion
from harness.errors import UsageError

_FIELDS = {
    GuideKind.JSON_SCHEMA: "json",
    GuideKind.REGEX: "regex",
    GuideKind.CHOICE: "choice",
    GuideKind.GRAMMAR: "grammar",
}


def calls_of(asks: Sequence[Ask], model: str, *, as_chat: bool = False, **more: Any) -> tuple[Call, ...]:
    """Calls of a completions or chat endpoint with vLLM's ``structured_outputs``; ``more``: fields of every body.

    Raises:
        UsageError: token ids for a chat endpoint, which takes text alone.
    """
    return tuple(_call(ask, model, as_chat, more) for ask in asks)


def _call(ask: Ask, model: str, as_chat: bool, more: dict[str, Any]) -> Call:
    fields: dict[str, Any] = dict(more)
    if ask.guide is not None:
        fields["structured_outputs"] = told_of(ask.guide)
    if ask.ignore_eos:
        fields["ignore_eos"] = True
    if ask.seed is not None:
        fields["seed"] = ask.seed
    guide = ask.guide.name if ask.guide else None
    if not as_chat:
        return completion(ask.id, model, ask.prompt, ask.max_tokens, guide=guide, **fields)
    if not isinstance(ask.prompt, str):
        raise UsageError(
            f"request {ask.id}: saw token ids for a chat endpoint, expected text",
            hint="draw prompts as text, or send them to the completions endpoint",
        )
    return chat(ask.id, model, ask.prompt, ask.max_tokens, guide=guide, **fields)


def told_of(guide: Guide) -> dict[str, Any]:
    """A guide as vLLM's ``structured_outputs`` has it."""
    return {_FIELDS[guide.kind]: list(guide.rule) if guide.kind is GuideKind.CHOICE else guide.rule}
