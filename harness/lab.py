"""What a case file builds its scenarios with: prompts, grammars, and scripts that are legal by construction.

    lab.forced("two rows", k=3, plans={"r0": Plan(turns=((3, 4), (1, 1))), "r1": Plan(turns=((1, 2), (3, 2)))})

A turn is (drafts kept, tokens accepted). Everything random comes from the lab's one seed.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from harness.errors import CaseError, ModelError
from harness.scenario import Grammar, Request, Scenario, Turn

DIGITS = "0123456789"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One request of a forced scenario.

    ``turns`` are (kept, accepted) for every verify step. A ``guided`` request writes digits under a grammar that
    allows nothing else: the drafter always proposes k tokens, and those beyond ``kept`` are illegal, so the grammar
    has to trim them. A free request's drafter proposes just ``kept`` tokens. ``ends`` adds a last step whose first
    draft is the end token and completes the grammar.
    """

    turns: tuple[tuple[int, int], ...]
    prompt: int = 5
    arrival: int = 0
    guided: bool = False
    ends: bool = False


class Lab:
    """Tokens and fixtures of one model folder, and one random generator."""

    def __init__(self, folder: Path, fixtures: Path, seed: int = 0) -> None:
        self.seed = seed
        self._folder = folder
        self._fixtures = fixtures
        self._random = random.Random(seed)

    def encode(self, text: str) -> tuple[int, ...]:
        """Text as token ids."""
        return tuple(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def prompt(self, length: int) -> tuple[int, ...]:
        """A prompt of ``length`` random ordinary tokens."""
        return tuple(self._random.choice(self._ordinary) for _ in range(length))

    def schema(self, name: str) -> Grammar:
        """``fixtures/grammars/NAME.json`` as a JSON-schema grammar."""
        return Grammar(kind="json_schema", text=self._fixture("grammars", f"{name}.json"))

    def prompts(self, name: str) -> list[str]:
        """The lines of ``fixtures/prompts/NAME.txt``."""
        return self._fixture("prompts", f"{name}.txt").splitlines()

    def forced(self, name: str, *, k: int, plans: Mapping[str, Plan], **settings: Any) -> Scenario:
        """A scenario with a script; ``settings`` are further fields of ``Scenario``."""
        written = {request_id: self._write(request_id, plan, k) for request_id, plan in plans.items()}
        return Scenario(
            name=name,
            k=k,
            requests=tuple(request for request, _ in written.values()),
            script={request_id: turns for request_id, (_, turns) in written.items()},
            **settings,
        )

    def followed_by(self, scenario: Scenario, plan: Plan) -> Scenario:
        """A forced scenario and one more request, whose prompt is the start of what its first one read and wrote."""
        assert scenario.script is not None
        first = scenario.requests[0]
        text = (*first.prompt, *(token for turn in scenario.script[first.id] for token in turn.committed))
        request, turns = self._write("next", plan, scenario.k)
        return replace(
            scenario,
            requests=(*scenario.requests, replace(request, prompt=text[: plan.prompt])),
            script={**scenario.script, request.id: turns},
        )

    def spell(self, *turns: tuple[str, int, str]) -> tuple[Turn, ...]:
        """A script in letters, a token each and ``$`` the end token: (drafts, tokens accepted, next token)."""

        def tokens(letters: str) -> tuple[int, ...]:
            return tuple(self.end_token if x == "$" else self.encode(x)[0] for x in letters)

        return tuple(
            Turn(drafts=tokens(drafts), accepted=accepted, token=tokens(token)[0])
            for drafts, accepted, token in turns
        )

    def natural(self, name: str, *, requests: Iterable[Request], **settings: Any) -> Scenario:
        """A scenario in which drafter and sampler decide; ``settings`` are further fields of ``Scenario``."""
        return Scenario(name=name, requests=tuple(requests), **settings)

    def chain(self, steps: int, *, k: int, fewest: int = 0) -> tuple[tuple[int, int], ...]:
        """Random (kept, accepted) for a chain of verify steps, with ``fewest`` to k drafts kept."""
        kept = [self._random.randint(fewest, k) for _ in range(steps)]
        return tuple((n, self._random.randint(1, n + 1)) for n in kept)

    def mixed_requests(self, count: int, *, max_tokens: int, every: int = 0) -> list[Request]:
        """Guided and free requests in turn, one every ``every`` steps; greedy."""
        schemas = [self.schema(path.stem) for path in sorted((self._fixtures / "grammars").glob("*.json"))]
        openings = {kind: self.prompts(kind) for kind in ("json", "text")}
        return [
            Request(
                id=f"r{i}",
                prompt=self.encode(
                    openings["text" if i % 2 else "json"][i // 2 % len(openings["text" if i % 2 else "json"])]
                ),
                max_tokens=max_tokens,
                arrival=i * every,
                grammar=None if i % 2 else schemas[i // 2 % len(schemas)],
                ignore_eos=bool(i % 2),
            )
            for i in range(count)
        ]

    @cached_property
    def conv_dim(self) -> int:
        """D: channels of the convolution, q, k and v together."""
        config = self._read("config.json")
        try:
            keys = config["linear_num_key_heads"] * config["linear_key_head_dim"]
            return int(2 * keys + config["linear_num_value_heads"] * config["linear_value_head_dim"])
        except KeyError as missing:
            raise ModelError(f"{self._folder / 'config.json'}: is no Qwen3-Next: no {missing}") from None

    def _write(self, request_id: str, plan: Plan, k: int) -> tuple[Request, tuple[Turn, ...]]:
        turns = [Turn(token=self._token(plan))]
        for kept, accepted in plan.turns:
            drafts = [self._token(plan) for _ in range(kept)]
            refused = drafts[accepted - 1] if accepted <= kept else None
            illegal = [self._illegal] * (k - kept) if plan.guided else []
            turns.append(
                Turn(drafts=(*drafts, *illegal), accepted=accepted, token=self._token(plan, but=refused))
            )
        answer = sum(turn.accepted for turn in turns)
        if plan.ends:
            drafts = [self.end_token, *[self._illegal] * (k - 1)]
            turns.append(Turn(drafts=tuple(drafts), accepted=2, token=self._token(plan)))
        # there is always room behind the answer, so that only the planned drafts are illegal
        room = answer + k + 1
        grammar = Grammar(kind="regex", text=f"[0-9]{{{answer if plan.ends else room},{room}}}")
        request = Request(
            id=request_id,
            prompt=self.prompt(plan.prompt),
            max_tokens=answer + 1 + k,
            arrival=plan.arrival,
            grammar=grammar if plan.guided else None,
        )
        return request, tuple(turns)

    def _token(self, plan: Plan, but: int | None = None) -> int:
        choices = self._digits if plan.guided else self._ordinary
        return self._random.choice([token for token in choices if token != but])

    @cached_property
    def end_token(self) -> int:
        """The token that ends an answer."""
        names = ("generation_config.json", "config.json")
        found = [self._read(name).get("eos_token_id") for name in names if (self._folder / name).is_file()]
        ends = [end for end in found if end is not None]
        if not ends:
            raise ModelError(f"{self._folder}: neither {' nor '.join(names)} names an eos_token_id")
        return int(ends[0][0] if isinstance(ends[0], list) else ends[0])

    @cached_property
    def _tokenizer(self) -> Any:
        from tokenizers import Tokenizer

        path = self._folder / "tokenizer.json"
        try:
            return Tokenizer.from_file(str(path))
        except Exception as error:  # all that the library raises
            raise ModelError(f"{path}: cannot be read: {error}") from error

    @cached_property
    def _ordinary(self) -> list[int]:
        special = {
            token_id
            for token_id, token in self._tokenizer.get_added_tokens_decoder().items()
            if token.special
        }
        return sorted(set(self._tokenizer.get_vocab().values()) - special)

    @cached_property
    def _digits(self) -> list[int]:
        return [self.encode(digit)[0] for digit in DIGITS]

    @property
    def _illegal(self) -> int:
        """A token that no digit grammar allows."""
        return self.encode("x")[0]

    def _read(self, name: str) -> dict[str, Any]:
        path = self._folder / name
        try:
            content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ModelError(f"{path}: cannot be read: {error}") from None
        return content

    def _fixture(self, kind: str, name: str) -> str:
        path = self._fixtures / kind / name
        if not path.is_file():
            there = ", ".join(sorted(p.name for p in (self._fixtures / kind).glob("*"))) or "none"
            raise CaseError(f"saw no fixture {path}, expected one of: {there}")
        return path.read_text(encoding="utf-8")
