"""What a scenario wants of a server: its requests, grammars and arrivals. Its script needs an engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.exchange import Ask
from harness.live.session import Leg
from harness.rundir import slug
from harness.scenario import Request, Scenario

STEP_SECONDS = 0.02
"""How long a step of a scenario's arrivals lasts."""
MOST_TOKENS = 48
"""Tokens of an answer at most: a server shows within a few dozen what it does wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How a server must be set up for a scenario."""

    k: int
    drafter: str
    regime: str
    prefix_caching: bool
    layout: str = "slots"

    @property
    def arguments(self) -> list[str]:
        """The same for ``specharness serve``."""
        cached = ["--prefix-caching"] if self.prefix_caching else []
        layout = ["--layout", self.layout] if self.layout != "slots" else []
        return ["--k", str(self.k), "--spec", self.drafter, "--regime", self.regime, *cached, *layout]


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """The scenarios of a case that one server can be driven with, as legs, and why others were left out."""

    setting: Setting
    legs: tuple[Leg, ...]
    driven: tuple[str, ...]
    left_out: dict[str, str]


def intent(scenarios: Iterable[Scenario], layout: str = "slots") -> Intent:
    """One server is started for a case: for the setting that most of its scenarios have, natural ones first."""
    all_of_them = sorted(scenarios, key=lambda s: s.forced)
    weights = Counter[Setting]()
    for scenario in all_of_them:
        weights[setting_of(scenario, layout)] += 1 if scenario.forced else 100
    setting = weights.most_common(1)[0][0]
    legs, left_out = [], {}
    for scenario in all_of_them:
        mine = setting_of(scenario, layout)
        asks = _asks(scenario)
        if mine != setting:
            left_out[scenario.name] = f"needs another server: {' '.join(mine.arguments)}"
        elif not asks:
            left_out[scenario.name] = "its requests stop or reason in ways that an audit does not ask for"
        else:
            legs.append(Leg.of(slug(scenario.name), [asks]))
    driven = tuple(s.name for s in all_of_them if s.name not in left_out)
    return Intent(setting=setting, legs=tuple(legs), driven=driven, left_out=left_out)


def setting_of(scenario: Scenario, layout: str = "slots") -> Setting:
    """A script's drafts are the model's own here."""
    return Setting(
        k=scenario.k,
        drafter="mtp" if scenario.forced else scenario.drafter,
        regime=scenario.regime,
        prefix_caching=scenario.prefix_caching,
        layout=layout,
    )


def _asks(scenario: Scenario) -> Sequence[Ask]:
    leg = slug(scenario.name)
    return [
        _ask(request, leg)
        for request in scenario.requests
        if not request.stop and not request.stop_token_ids and request.reasoning_end is None
    ]


def _ask(request: Request, leg: str) -> Ask:
    sampling = request.sampling
    return Ask(
        id=f"{leg}/{request.id}",
        leg=leg,
        prompt=request.prompt,
        max_tokens=min(request.max_tokens, MOST_TOKENS),
        grammar=request.grammar,
        temperature=sampling.temperature,
        seed=sampling.seed if sampling.temperature else None,
        ignore_eos=request.ignore_eos,
        logprobs=2,
        delay=request.arrival * STEP_SECONDS,
    )
