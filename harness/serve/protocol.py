"""The bodies of requests. Unknown fields and wrong types are refused; fields that would change an answer and are not
implemented are accepted with the one value that changes nothing."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from harness.serve.limits import LONGEST_STOP, MOST_LOGPROBS, MOST_STOPS

Seed = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
Count = Annotated[int, Field(ge=0, le=2**31)]
TokenId = Annotated[int, Field(ge=0, le=2**31)]
Stop = Annotated[str, Field(min_length=1, max_length=LONGEST_STOP)]
Logprobs = Annotated[int, Field(ge=0, le=MOST_LOGPROBS)]
Zero = Annotated[float, Field(ge=0, le=0)]
One = Annotated[float, Field(ge=1, le=1)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
Schema = dict[str, Any] | bool


class Body(BaseModel):
    """Strict JSON: a number in a string is no number, and no number is NaN."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class Root(Body):
    """A whole body. JSON can spell half a surrogate pair, which no text holds: it ends here, wherever it stands."""

    @model_validator(mode="before")
    @classmethod
    def _is_unicode(cls, data: Any) -> Any:
        try:
            json.dumps(data, ensure_ascii=False).encode()
        except (UnicodeEncodeError, RecursionError) as error:
            raise ValueError(f"the body is no text of Unicode characters: {type(error).__name__}") from None
        return data


class JsonSchema(Body):
    """``response_format.json_schema``."""

    name: str | None = None
    description: str | None = None
    strict: bool | None = None
    body: Schema = Field(alias="schema")


class ResponseFormat(Body):
    """OpenAI's way to ask for JSON."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StructuredOutputs(Body):
    """vLLM's way to ask for a grammar: exactly one field."""

    json_: Schema | str | None = Field(default=None, alias="json")
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None


class StreamOptions(Body):
    """What a stream holds besides text."""

    include_usage: bool = False


class Generation(Root):
    """What completions and chats have in common."""

    model: str
    temperature: float | None = Field(default=None, ge=0)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1, le=2**31)
    seed: Seed | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=MOST_STOPS)] | None = None
    stop_token_ids: list[TokenId] | None = None
    ignore_eos: bool = False
    max_tokens: Count | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    prompt_logprobs: Logprobs | None = None
    return_token_ids: bool | None = None
    n: int | None = Field(default=None, ge=1, le=1)
    presence_penalty: Zero | None = None
    frequency_penalty: Zero | None = None
    repetition_penalty: One | None = None
    user: str | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        """Stop texts, as a tuple whatever came."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def includes_usage(self) -> bool:
        """Whether a stream ends with its usage."""
        return self.stream_options is not None and self.stream_options.include_usage


class CompletionRequest(Generation):
    """``POST /v1/completions``."""

    prompt: str | list[TokenId] | list[str] | list[list[TokenId]]
    echo: bool = False
    logprobs: Logprobs | None = None
    best_of: int | None = Field(default=None, ge=1, le=1)
    suffix: None = None


class Part(Body):
    """A piece of a message; there is only text."""

    type: Literal["text"]
    text: str


class Message(Body):
    """One message. Fields that answers have and prompts do not (``refusal``, ``annotations``) are passed over."""

    model_config = ConfigDict(extra="ignore")

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[Part] | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None


class Function(Body):
    """A function that the model may call."""

    name: Name
    description: str | None = None
    parameters: Schema | None = None
    strict: bool | None = None


class Tool(Body):
    """A tool; there are only functions."""

    type: Literal["function"]
    function: Function


class FunctionName(Body):
    """The name of a function."""

    name: Name


class NamedTool(Body):
    """``tool_choice`` that names one function."""

    type: Literal["function"]
    function: FunctionName


class ChatRequest(Generation):
    """``POST /v1/chat/completions``."""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Logprobs | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None


class TokenizeRequest(Root):
    """``POST /tokenize``: a text, or messages as a chat would see them."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    add_special_tokens: bool = True
    return_token_strs: bool = False


class DetokenizeRequest(Root):
    """``POST /detokenize``."""

    model: str | None = None
    tokens: list[TokenId]
