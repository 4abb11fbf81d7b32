"""Bodies that nobody should send, each with the statuses that are right for it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from grammars import BAD_SCHEMAS, ENDLESS, HEAVY, ODD_SCHEMAS

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
TYPE = {"content-type": "application/json"}
REFUSED = frozenset({400})
EITHER = frozenset({200, 400})  # a server may do it or refuse it, at once and without harm


@dataclass(frozen=True, slots=True, kw_only=True)
class Hostile:
    """One request."""

    name: str
    content: bytes
    path: str = COMPLETIONS
    method: str = "POST"
    headers: dict[str, str] = field(default_factory=lambda: TYPE)
    right: frozenset[int] = REFUSED


Draw = Callable[[random.Random, str], Hostile]


def plain(model: str, **more: Any) -> dict[str, Any]:
    """A completion that is answered at once."""
    return {"model": model, "prompt": "The river", "max_tokens": 4, "temperature": 0, **more}


def chat(model: str, **more: Any) -> dict[str, Any]:
    """A chat that is answered at once."""
    return {"model": model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, **more}


def draw(rng: random.Random, model: str) -> Hostile:
    """One of all kinds."""
    return rng.choice(KINDS)(rng, model)


def _torn(rng: random.Random, model: str) -> Hostile:
    content = bytearray(_dump(rng.choice((plain, chat))(model)))
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(len(content))
        match rng.randrange(3):
            case 0:
                del content[place : place + rng.randint(1, 5)]
            case 1:
                content.insert(place, rng.randrange(256))
            case _:
                content[place] = rng.choice(b'{}[]",:\\\x00\xff0')
    return Hostile(name="torn JSON", content=bytes(content), right=frozenset({200, 400, 404}))


def _cut(rng: random.Random, model: str) -> Hostile:
    content = _dump(plain(model))
    return Hostile(name="cut JSON", content=content[: rng.randrange(1, len(content))])


def _no_utf8(rng: random.Random, model: str) -> Hostile:
    wrong = rng.choice(
        (b"\xff\xfe", b"\xc3\x28", b"\xed\xa0\x80", b"\xf8\x88\x80\x80\x80", b"\\ud800", b"\\udfff\\ud800")
    )
    return Hostile(name="no Unicode", content=_dump(plain(model)).replace(b"The river", b"The" + wrong))


NUMBERS = (
    "max_tokens temperature top_p top_k seed logprobs prompt_logprobs n best_of presence_penalty"
    " frequency_penalty repetition_penalty"
).split()
WRONG_NUMBERS = (
    "NaN",
    "Infinity",
    "-Infinity",
    "1e999",
    "-1e999",
    "-5",
    "9" * 400,
    "9" * 6000,
    '"1"',
    "[]",
    "1.5.2",
)


def _number(rng: random.Random, model: str) -> Hostile:
    name, value = rng.choice(NUMBERS), rng.choice(WRONG_NUMBERS)
    content = _dump({**plain(model), name: "?"}).replace(b'"?"', value.encode())
    right = frozenset({200}) if (name, value) == ("seed", "-5") else REFUSED
    return Hostile(name=f"number {value[:9]}", content=content, right=right)


EXTREMES = {
    "temperature": (5e-324, 1e-45, 1e-6, 1e38, 1e39, 1.7e308),
    "top_p": (5e-324, 1e-45, 1e-30, 0.9999999999999999),
    "top_k": (-1, 1, 2**31),
    "seed": (-(2**63), 2**63 - 1),
    "logprobs": (0, 20),
    "max_tokens": (0, 1),
}


def _extreme(rng: random.Random, model: str) -> Hostile:
    values = {name: rng.choice(values) for name, values in EXTREMES.items() if rng.random() < 0.5}
    guided = {"structured_outputs": {"regex": "[a-c]+"}} if rng.random() < 0.5 else {}
    content = _dump(plain(model, **{"temperature": 1, **values, **guided}))
    return Hostile(name="extreme", content=content, right=frozenset({200}))


# What is right for each field; every other kind of value is wrong.
FIELDS = {
    "model": "s", "prompt": "sl", "max_tokens": "i", "temperature": "if", "top_p": "if", "top_k": "i", "seed": "i",
    "stop": "sl", "stop_token_ids": "l", "ignore_eos": "b", "stream": "b", "stream_options": "o", "logprobs": "i",
    "response_format": "o", "structured_outputs": "o", "return_token_ids": "b", "echo": "b", "user": "s", "n": "i",
}  # fmt: skip
VALUES = {"s": "x", "i": 3, "f": 0.5, "b": True, "o": {"x": 1}, "l": [{"x": [None]}]}


def _wrong_type(rng: random.Random, model: str) -> Hostile:
    name = rng.choice(sorted(FIELDS))
    kind = rng.choice([kind for kind in VALUES if kind not in FIELDS[name]])
    return Hostile(name=f"type of {name}", content=_dump({**plain(model), name: VALUES[kind]}))


def _double(rng: random.Random, model: str) -> Hostile:
    name, value = rng.choice(list(plain(model).items()))
    content = _dump(plain(model))[:-1] + b"," + _dump({name: value})[1:]
    return Hostile(name="double key", content=content)


def _unknown(rng: random.Random, model: str) -> Hostile:
    name = "".join(rng.choices("abcxyz_é€😀\u0000$.", k=rng.randint(1, 40)))
    nested = {"stream_options": {name: 1}, "structured_outputs": {"regex": "a", name: 1}}
    where = rng.choice(({name: 1}, *({key: value} for key, value in nested.items())))
    return Hostile(name="unknown field", content=_dump(plain(model, **where)))


def _long(rng: random.Random, model: str) -> Hostile:
    count = rng.randint(5_000, 60_000)
    body: dict[str, Any]
    match rng.randrange(3):
        case 0:
            body = plain(model, prompt="word " * count)
        case 1:
            body = plain(model, prompt=[5] * count)
        case _:
            return Hostile(
                name="long chat",
                path=CHAT,
                content=_dump(chat(model, messages=[{"role": "user", "content": "é" * count}])),
            )
    return Hostile(name="long prompt", content=_dump(body))


def _large(rng: random.Random, model: str) -> Hostile:
    return Hostile(
        name="large body",
        content=_dump(plain(model, prompt="x" * rng.randint(2**20, 2**22))),
        right=frozenset({413}),
    )


def _token(rng: random.Random, model: str) -> Hostile:
    wrong = rng.choice((-1, -(2**63), 50_000_000, 2**31, 2**63, 2**80, 1.5, True, None, "5"))
    path, body = rng.choice(
        ((COMPLETIONS, plain(model, prompt=[5, wrong])), ("/detokenize", {"tokens": [wrong]}))
    )
    return Hostile(name=f"token {wrong}", path=path, content=_dump(body))


def _deep(rng: random.Random, model: str) -> Hostile:
    depth = rng.choice((200, 900, 5000, 60_000))
    inner = rng.choice((b"[" * depth + b"]" * depth, b'{"a":' * depth + b"1" + b"}" * depth))
    place = rng.choice(("prompt", "stop", "response_format", "unknown", "messages"))
    content = _dump({**plain(model), place: "?"}).replace(b'"?"', inner)
    return Hostile(name="deep body", content=content)


def _deep_calls(rng: random.Random, model: str) -> Hostile:
    depth = rng.choice((50, 500, 900, 20_000))
    message = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"function": {"name": "f", "arguments": "?"}}],
    }
    content = _dump(chat(model, messages=[message])).replace(b'"?"', b"[" * depth + b"]" * depth)
    return Hostile(name="deep tool call", path=CHAT, content=content, right=EITHER)


def _odd_calls(rng: random.Random, model: str) -> Hostile:
    call: Any = rng.choice(
        (
            {},
            {"function": None},
            {"function": {}},
            {"function": {"name": 5}},
            {"function": []},
            {"id": {}, "type": []},
        )
    )
    messages = [{"role": rng.choice(("assistant", "user", "tool")), "content": None, "tool_calls": [call]}]
    return Hostile(
        name="odd tool call", path=CHAT, content=_dump(chat(model, messages=messages)), right=EITHER
    )


def _schema(rng: random.Random, model: str) -> Hostile:
    right = rng.choice((REFUSED, EITHER))
    schema = rng.choice(BAD_SCHEMAS if right is REFUSED else ODD_SCHEMAS)
    way = rng.randrange(3)
    if way == 0:
        body, path = plain(model, structured_outputs={"json": schema}), COMPLETIONS
    elif way == 1:
        wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        body, path = chat(model, response_format=wanted), CHAT
    else:
        tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
        body, path = chat(model, tools=[tool], tool_choice=rng.choice(("auto", "required"))), CHAT
    # xgrammar takes some of the bad ones: where it does, answers follow it
    known = {"enum", "minimum"} & set(schema if isinstance(schema, dict) else ())
    return Hostile(name="schema", path=path, content=_dump(body), right=EITHER if known else right)


def _deep_schema(rng: random.Random, model: str) -> Hostile:
    depth = rng.choice((120, 400, 2000))
    schema = b'{"type":"object","properties":{"a":' * depth + b"{}" + b"}}" * depth
    content = _dump(plain(model, structured_outputs={"json": "?"})).replace(b'"?"', schema)
    return Hostile(name="deep schema", content=content)


def _grammar(rng: random.Random, model: str) -> Hostile:
    heavy = rng.random() < 0.4
    asked = rng.choice(HEAVY if heavy else ENDLESS)
    body = plain(model, structured_outputs=asked, max_tokens=rng.choice((1, 20, 200)))
    return Hostile(name=f"grammar {str(asked)[:40]}", content=_dump(body), right=EITHER if heavy else REFUSED)


def _other_type(rng: random.Random, model: str) -> Hostile:
    kind = rng.choice(
        (
            "text/plain",
            "application/xml",
            "multipart/form-data; boundary=x",
            "a",
            "json",
            "application/json;charset=utf-7",
        )
    )
    return Hostile(
        name="content type",
        content=_dump(plain(model)),
        headers={"content-type": kind},
        right=frozenset({415}),
    )


def _no_body(rng: random.Random, model: str) -> Hostile:
    return Hostile(
        name="no object", content=rng.choice((b"", b"null", b"[]", b"5", b'"x"', b"\x00" * 100, b"{}" * 2))
    )


def _elsewhere(rng: random.Random, model: str) -> Hostile:
    path = rng.choice(
        (
            "/v1/none",
            "/%00",
            "/v1/completions/",
            "/v1/%2e%2e/health",
            "//v1/models",
            "/" + "x" * 60_000,
            "/docs/../etc",
        )
    )
    return Hostile(
        name="path", path=path, content=_dump(plain(model)), right=frozenset({307, 400, 404, 405, 414})
    )


def _method(rng: random.Random, model: str) -> Hostile:
    method = rng.choice(("GET", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"))
    return Hostile(
        name="method", method=method, content=_dump(plain(model)), right=frozenset({400, 405, 501})
    )


def _odd_chat(rng: random.Random, model: str) -> Hostile:
    function = {"type": "function", "function": {"name": "f"}}
    more: dict[str, Any] = rng.choice((
        {"messages": []}, {"messages": None}, {"messages": [{}]}, {"messages": [{"role": "nobody", "content": "x"}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        {"tool_choice": "required"},
        {"tools": [function], "tool_choice": {"type": "function", "function": {"name": "g"}}},
        {"tools": [{"type": "function", "function": {"name": "{0}\n"}}]}, {"tools": [{"type": "function"}]},
        {"tools": {}},
        {"top_logprobs": 3}, {"logprobs": 3}, {"max_completion_tokens": -1}, {"n": 2}, {"logit_bias": {"5": 100}},
    ))  # fmt: skip
    return Hostile(name="chat", path=CHAT, content=_dump(chat(model, **more)))


KINDS: tuple[Draw, ...] = (
    _extreme, _torn, _cut, _no_utf8, _number, _number, _wrong_type, _wrong_type, _double, _unknown, _long, _large,
    _token, _deep,
    _deep_calls, _odd_calls, _schema, _schema, _deep_schema, _grammar, _grammar, _other_type, _no_body, _elsewhere,
    _method, _odd_chat,
)  # fmt: skip


def _dump(body: Any) -> bytes:
    return json.dumps(body).encode()
