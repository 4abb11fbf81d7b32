"""The server that is measured, apart from its load: its name of the model, its counters, its log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from harness.errors import TargetError

SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """``url`` with or without ``/v1``."""

    url: str
    model: str
    api_key: str | None = None

    def metrics(self) -> str | None:
        """The text of ``/metrics``; ``None`` where the server has none."""
        answer = _asked(self.url, self.api_key, "GET", "/metrics")
        return answer.text if answer.status_code == 200 else None

    def missing(self) -> str | None:
        """Why it does not answer any more; ``None``: it does."""
        try:
            _asked(self.url, self.api_key, "GET", "/v1/models")
        except TargetError as error:
            return str(error.args[0])
        return None

    def score(self, prompt: Sequence[int], token: int) -> float | None:
        """The log-probability of ``token`` behind ``prompt`` as a prefill has it; ``None``: the server does not say."""
        body = {
            "model": self.model,
            "prompt": [*prompt, token],
            "max_tokens": 1,
            "temperature": 0,
            "prompt_logprobs": 0,
        }
        answer = _asked(self.url, self.api_key, "POST", "/v1/completions", body)
        try:
            place = answer.json()["choices"][0]["prompt_logprobs"][-1]
            return float(place[str(token)]["logprob"])
        except (ValueError, LookupError, TypeError):
            return None


def first_model(url: str, api_key: str | None) -> str:
    """The first model that a server names; TargetError where it names none."""
    answer = _asked(url, api_key, "GET", "/v1/models")
    try:
        return str(answer.json()["data"][0]["id"])
    except (ValueError, LookupError, TypeError):
        raise TargetError(
            f"{url}/v1/models: saw status {answer.status_code} and no model, expected a list of them",
            hint="pass --model NAME, and $SPECHARNESS_API_KEY where the server asks for a key",
        ) from None


def _asked(url: str, api_key: str | None, method: str, path: str, body: Any = None) -> httpx.Response:
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    root = url.rstrip("/").removesuffix("/v1")
    try:
        with httpx.Client(timeout=SECONDS, trust_env=False) as client:
            return client.request(method, root + path, headers=headers, json=body)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise TargetError(
            f"{root}{path}: {error or type(error).__name__}", hint="is the server up? see --base-url"
        ) from None
