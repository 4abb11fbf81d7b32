"""The grammar that a request asks for, in the engine's terms: a kind and a text."""

from __future__ import annotations

import json
import re
from typing import Any

from harness.serve.errors import ApiError
from harness.serve.protocol import ChatRequest, Generation, Schema, StructuredOutputs, Tool
from harness.serve.tools import CALL_BEGIN, CALL_END, TRIGGER

Grammar = tuple[str, str]
ANY_OBJECT: Schema = {"type": "object"}
OUTSIDE = re.compile(r'"\$ref"\s*:\s*"(?!#)[^"]*"')
"""A reference to another document."""


def grammar_of(request: Generation) -> Grammar | None:
    """From ``response_format``, ``structured_outputs`` or the tools; ApiError if they contradict each other."""
    asked = [
        grammar
        for grammar in (
            _of_format(request),
            _of_outputs(request.structured_outputs),
            _of_tools(request) if isinstance(request, ChatRequest) else None,
        )
        if grammar is not None
    ]
    if len(asked) > 1:
        raise ApiError(400, "response_format, structured_outputs and tools cannot be combined")
    return asked[0] if asked else None


def named_tool(request: ChatRequest) -> Tool | None:
    """The one tool that ``tool_choice`` names; ApiError if there is no such tool."""
    choice = request.tool_choice
    if choice is None or isinstance(choice, str):
        return None
    for tool in request.tools or ():
        if tool.function.name == choice.function.name:
            return tool
    raise ApiError(
        400, f"tool_choice names {choice.function.name!r}, which is none of the tools", param="tool_choice"
    )


def offers_tools(request: ChatRequest) -> bool:
    """Whether the model may call a tool."""
    return bool(request.tools) and request.tool_choice != "none"


def _of_format(request: Generation) -> Grammar | None:
    wanted = request.response_format
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return _schema(ANY_OBJECT)
    if wanted.json_schema is None:
        raise ApiError(400, "response_format of type json_schema needs json_schema", param="response_format")
    return _schema(wanted.json_schema.body)


def _of_outputs(outputs: StructuredOutputs | None) -> Grammar | None:
    if outputs is None:
        return None
    asked: list[Grammar] = []
    if outputs.json_ is not None:
        asked.append(_schema(outputs.json_))
    if outputs.regex is not None:
        asked.append(("regex", outputs.regex))
    if outputs.choice is not None:
        asked.append(("choice", json.dumps(outputs.choice)))
    if outputs.grammar is not None:
        asked.append(("ebnf", outputs.grammar))
    if len(asked) != 1:
        raise ApiError(
            400,
            f"structured_outputs needs exactly one of json, regex, choice and grammar, got {len(asked)}",
            param="structured_outputs",
        )
    return asked[0]


def _of_tools(request: ChatRequest) -> Grammar | None:
    """A named tool's answer is its arguments alone. Otherwise the answer is text in which calls may stand
    (``auto``), or one call (``required``), written as Qwen's templates teach it."""
    if request.tool_choice == "required" and not request.tools:
        raise ApiError(400, "tool_choice required needs tools", param="tool_choice")
    named = named_tool(request)
    if named is not None:
        return _schema(_parameters(named))
    if not offers_tools(request):
        return None
    required = request.tool_choice == "required"
    calls: dict[str, Any] = {
        "type": "triggered_tags",
        "triggers": [TRIGGER],
        "tags": [_tag(tool) for tool in request.tools or ()],
        "at_least_one": required,
        "stop_after_first": required or request.parallel_tool_calls is False,
    }
    return "structural_tag", json.dumps({"type": "structural_tag", "format": calls})


def _tag(tool: Tool) -> dict[str, Any]:
    content = {"type": "json_schema", "json_schema": _parameters(tool), "max_whitespace_cnt": 1}
    return {"begin": CALL_BEGIN.format(name=tool.function.name), "content": content, "end": CALL_END}


def _parameters(tool: Tool) -> Schema:
    parameters = tool.function.parameters
    if parameters is None:
        return ANY_OBJECT
    _schema(parameters)
    return parameters


def _schema(schema: Schema | str) -> Grammar:
    """A schema, or its text, which may still be no JSON. xgrammar takes what it cannot look up for anything at all."""
    text = schema if isinstance(schema, str) else json.dumps(schema)
    if (outside := OUTSIDE.search(text)) is not None:
        raise ApiError(400, f"a schema may refer to its own parts alone (#/...), got {outside[0][:80]}")
    return "json_schema", text
