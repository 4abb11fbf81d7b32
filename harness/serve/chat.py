"""Messages as a prompt, by the model's own chat template."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from harness.errors import ModelError
from harness.serve.errors import ApiError
from harness.serve.protocol import Message, Tool


class ChatTemplate:
    """``chat_template.jinja``, or ``chat_template`` of ``tokenizer_config.json``, rendered as transformers does."""

    def __init__(self, folder: Path) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.globals["raise_exception"] = _refuse
        environment.filters["tojson"] = lambda value, **options: json.dumps(
            value, ensure_ascii=False, **options
        )
        self._template = environment.from_string(_read(folder))

    def render(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> str:
        """The prompt of the assistant's next message; ApiError if the template refuses these messages."""
        try:
            return self._template.render(
                messages=[_plain(message) for message in messages],
                tools=[tool.model_dump(exclude_none=True) for tool in tools] or None,
                add_generation_prompt=True,
            )
        except (TemplateError, TypeError) as error:
            raise ApiError(
                400, f"the chat template refuses these messages: {error}", param="messages"
            ) from None


def _read(folder: Path) -> str:
    alone = folder / "chat_template.jinja"
    if alone.is_file():
        return alone.read_text(encoding="utf-8")
    settings = folder / "tokenizer_config.json"
    try:
        return str(json.loads(settings.read_text(encoding="utf-8"))["chat_template"])
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"{settings}: expected a chat_template: {error!r}") from None


def _plain(message: Message) -> dict[str, Any]:
    """A message as templates read it: its content one string, empty where a tool was called."""
    content = message.content or ""
    text = content if isinstance(content, str) else "".join(part.text for part in content)
    return {**message.model_dump(exclude_none=True), "content": text}


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)
