"""What a server can do, found out by asking it: what it refuses is not asked again, and the reason is kept."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from harness.errors import TargetError
from harness.exchange import Answer, Ask, Exchange, Fate
from harness.live.transcript import Recorder
from harness.scenario import Grammar
from harness.targets.openai_server import OpenAIServer

MOST_BEST = 20
"""Best tokens at each place of a prompt: OpenAI's and vLLM's usual limit."""
BROKEN = {
    "structured_outputs": Grammar(kind="regex", text="("),
    "response_format": Grammar(kind="json_schema", text='{"type": 1}'),
}
"""Grammars that nobody can compile."""
UNKNOWN_FIELD = ("extra", "unknown", "unrecognized", "not permitted", "unsupported")
"""How servers say that they do not know a field."""


async def find_model(server: OpenAIServer) -> str:
    """The first model that the server names; TargetError where nobody answers."""
    answer = await server.get("/v1/models")
    if answer.status is None:
        raise TargetError(
            f"{server.root}: no connection: {answer.text}",
            hint="make serve, or BASE_URL=... of a server that runs",
        )
    try:
        return str(answer.json()["data"][0]["id"])
    except (LookupError, TypeError):
        raise TargetError(
            f"{server.root}/v1/models: saw HTTP {answer.status}, expected a list of models",
            hint="is the URL that of an OpenAI-compatible server, and the key right? --api-key-file FILE",
        ) from None


class Probe:
    """Small questions, one by one. What was asked and answered stands in the transcript, for there are servers that die
    of the first token."""

    def __init__(self, server: OpenAIServer, recorder: Recorder) -> None:
        self._server = server
        self._recorder = recorder
        self._lacks: dict[str, str] = {}

    async def run(self) -> bool:
        """Set ``server.offer``; whether the server lives.

        Raises:
            TargetError: plain completions are refused, or nobody is there.
        """
        plain = await self._try()
        if plain.fate in (Fate.REFUSED, Fate.UNREACHABLE):
            raise TargetError(
                f"{self._server.root}: a completion of two tokens for {self._server.model!r} came to "
                f"{plain.fate.value}: {self._recorder.words(plain.detail)}",
                hint="look at the server's log; --model NAME, --api-key-file FILE",
            )
        if plain.fate is not Fate.COMPLETE:
            return False
        await self._tokens()
        await self._pages()
        self._server.offer = replace(self._server.offer, lacks=self._lacks)
        self._recorder.offers(self._server.offer)
        return True

    async def _tokens(self) -> None:
        """Token ids and log-probabilities."""
        with_ids = await self._has("token ids", {"ids": True})
        if with_ids is not None and not (with_ids.tokens and with_ids.prompt):
            self._has_not("token ids", {"ids": False}, "return_token_ids is accepted, and no ids come")
        await self._has("ignore_eos", {"ignore_eos": True}, ignore_eos=True)
        scored = await self._has("logprobs", {"logprobs": True}, logprobs=2)
        if scored is not None and not scored.places:
            self._has_not("logprobs", {"logprobs": False}, "accepted, and none come")
        if with_ids is None or not self._server.offer.ids:
            self._lacks["prompt_logprobs"] = "not asked: without token ids no answer can be scored"
            return
        prompt = with_ids.prompt + with_ids.tokens
        wanted: dict[str, Any] = {
            "text": None,
            "prompt": prompt,
            "prompt_logprobs": MOST_BEST,
            "stream": False,
        }
        answer = await self._has("prompt_logprobs", {"prompt_logprobs": MOST_BEST}, **wanted)
        if answer is not None and len(answer.prompt_places) != len(prompt) - 1:
            seen = f"saw {len(answer.prompt_places)} laws for {len(prompt)} tokens"
            self._has_not("prompt_logprobs", {"prompt_logprobs": 0}, seen)

    async def _pages(self) -> None:
        """Metrics, health, version, and how to ask for a grammar."""
        snapshot = await self._server.snapshot("probe")
        version = await self._server.get("/version")
        said = (
            version.json() if version.status == 200 else None
        )  # some answer every path with their start page
        named = str(said.get("version", ""))[:80] if isinstance(said, dict) else ""
        grammars = await self._way_of_grammars()
        self._server.offer = replace(
            self._server.offer,
            version=named,
            grammars=grammars,
            metrics=bool(snapshot.values),
            health=snapshot.health == 200,
        )
        if grammars is None:
            self._lacks["grammars"] = "neither structured_outputs nor response_format is known"
        if not snapshot.values:
            self._lacks["metrics"] = "nothing at /metrics"
        if snapshot.health != 200:
            self._lacks["health"] = f"/health is {snapshot.health}"

    async def _way_of_grammars(self) -> str | None:
        """There are servers that die of the first guided request (vllm#56419), and audits must see that. So the way to
        ask is taken from a request that cannot be carried out: only who reads a broken grammar refuses it for that."""
        for way, grammar in BROKEN.items():
            self._server.offer = replace(self._server.offer, grammars=way)
            answer = await self._try(
                grammar=grammar, stream=False
            )  # vLLM refuses inside a stream that is 200
            unknown = any(word in answer.detail.lower() for word in UNKNOWN_FIELD)
            if answer.fate is Fate.REFUSED and not unknown:
                return way
        return None

    async def _has(self, name: str, offer: dict[str, Any], **ask: Any) -> Answer | None:
        """The answer to a question that uses what it asks for; ``None`` where the server does not have it."""
        before = self._server.offer
        self._server.offer = replace(before, **offer)
        answer = await self._try(**ask)
        if answer.fate is Fate.COMPLETE:
            return answer
        self._server.offer = before
        self._lacks[name] = f"{answer.fate.value}: {self._recorder.words(answer.detail)}"
        return None

    def _has_not(self, name: str, offer: dict[str, Any], why: str) -> None:
        self._server.offer = replace(self._server.offer, **offer)
        self._lacks[name] = why

    async def _try(self, **changes: Any) -> Answer:
        number = len(self._recorder.transcript.asked)
        plain: dict[str, Any] = {"text": "The green garden", "max_tokens": 2}
        ask = Ask(id=f"probe-{number}", leg="probe", **{**plain, **changes})
        self._recorder.asks(ask)
        answer = await self._server.ask(ask)
        self._recorder.hears(Exchange(ask=ask, answer=answer))
        return answer
