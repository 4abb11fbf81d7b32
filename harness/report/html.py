"""A run as one self-contained page: a person sees what was proven, and for every failure where and why.

Nothing is loaded from anywhere. What engines and scenarios say is text that nobody vetted: it is escaped, its
invisible characters are spelled out, and it is cut at ``MOST``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from harness.rundir import replay, slug
from harness.scenario import Scenario
from harness.verdict import Verdict

if TYPE_CHECKING:
    from harness.check.gauge import Gauge, Gauges
    from harness.repro import Reproduction

MOST = 4096
"""Characters of any one text that are shown."""
MOST_COLUMNS = 48
"""Turns of a script that are drawn; a chain of hundreds says nothing more."""
INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]"
)
"""Control characters, separators that break lines, marks that turn the direction of text, and halves of pairs."""
STYLE = {
    Verdict.PASS: "pass",
    Verdict.FAIL: "fail",
    Verdict.NEAR_TIE: "tie",
    Verdict.INCONCLUSIVE: "open",
    Verdict.UNSUPPORTED: "open",
}

MEANINGS = {
    Verdict.PASS: "everything agreed, and everything that had to happen did",
    Verdict.FAIL: "something was wrong; only this is red",
    Verdict.NEAR_TIE: "two tokens were so close that noise may choose between them; states agreed",
    Verdict.INCONCLUSIVE: "nothing was wrong, but too little happened, or noise hides the signal",
    Verdict.UNSUPPORTED: "the target cannot do what the scenario needs",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One cell of a script's strip: a prompt, or drafts of which some are accepted, and the token that follows."""

    prompt: int = 0
    accepted: int = 0
    refused: int = 0

    def __str__(self) -> str:
        if self.prompt:
            return f"prompt of {self.prompt} tokens"
        return f"{self.accepted + self.refused} drafts proposed, {self.accepted} accepted"


def page(name: str, reproduction: Reproduction, run: dict[str, Any]) -> str:
    """The page of a run: ``run`` is what ``run.json`` holds."""
    return template("run.html").render(
        name=name,
        reproduction=reproduction,
        run=run,
        style=STYLE,
        meanings=MEANINGS,
        conclusion=conclusion(reproduction),
        facts=facts,
        strip=strip,
        gauges=gauges,
        replay=replay_here,
        powers=list(powers(reproduction)),
    )


def template(name: str) -> Template:
    """A page of ours; what it is given is escaped, made visible and cut."""
    environment = Environment(
        loader=PackageLoader("harness.report"),
        autoescape=True,
        finalize=shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(number=number, span=span)
    environment.tests["failing"] = lambda verdict: verdict is Verdict.FAIL
    return environment.get_template(name)


def shown(value: Any) -> Any:
    """What the page prints of a value: invisible characters spelled out, and no more than ``MOST`` characters."""
    if isinstance(value, Markup):
        return value
    text = str(value)
    if len(text) > MOST:
        text = f"{text[:MOST]} … (cut: {len(text):,} characters)"
    return INVISIBLE.sub(lambda found: rf"\u{ord(found[0]):04x}", text)


def number(value: float) -> str:
    """Two significant digits."""
    return f"{value:.2g}"


def span(values: Collection[float]) -> str:
    """Least and largest of some numbers."""
    least, largest = number(min(values)), number(max(values))
    return least if least == largest else f"{least} to {largest}"


def gauges(measured: Gauges) -> Iterator[tuple[str, Gauge]]:
    """Each kind of tensor with its gauge."""
    yield "conv", measured.conv
    yield "recurrent", measured.recurrent
    yield "logits", measured.logits


def conclusion(reproduction: Reproduction) -> tuple[str, str]:
    """The page's first sentence, and the style of what it says."""
    if reproduction.reproduced and reproduction.fixed:
        return "Every documented failure was reproduced, and the fix passes everything.", "pass"
    if not reproduction.fixed and reproduction.exit_code == 125:
        return "Undecided: the fix was not shown to be right, nor wrong.", "open"
    if not reproduction.fixed:
        return "The variant that should be right fails.", "fail"
    if any(j.documented is not None for result in reproduction.results for j in result.judgements.values()):
        return "The fix passes, but a documented failure did not happen as documented.", "fail"
    return "The fix passes; no failure is documented here, so none could be reproduced.", "open"


def powers(reproduction: Reproduction) -> Iterator[tuple[str, str, str]]:
    """Scenario, variant, and what its wrong states did to the text."""
    for result in reproduction.results:
        for variant, judgement in result.judgements.items():
            for evidence in judgement.evidence:
                if evidence.power:
                    yield result.scenario.name, variant, evidence.power


def facts(scenario: Scenario) -> Iterator[str]:
    """The story of a scenario in a few words each."""
    count = len(scenario.requests)
    yield f"{count} request{'s' if count > 1 else ''}"
    yield f"k = {scenario.k}, drafter {scenario.drafter}"
    yield (
        "scripted: drafts and accepted counts are given"
        if scenario.forced
        else "natural: drafter and sampler decide"
    )
    kinds = Counter(request.grammar.kind for request in scenario.requests if request.grammar)
    if kinds:
        yield f"{kinds.total()} guided ({', '.join(f'{n} {kind}' for kind, n in kinds.items())})"
    yield f"prompts of {_range(len(request.prompt) for request in scenario.requests)} tokens"
    if any(request.arrival for request in scenario.requests):
        yield f"arriving at steps {_range(request.arrival for request in scenario.requests)}"
    yield f"at most {scenario.token_budget} tokens a step, {scenario.max_model_len} a request"
    if scenario.capture_sizes:
        yield f"graphs captured at {', '.join(map(str, scenario.capture_sizes))} tokens"


def strip(scenario: Scenario) -> list[tuple[str, bool, list[Turn | None]]]:
    """A script as rows of cells: request, whether guided, and a cell per step; nothing for a natural scenario."""
    rows = []
    for request in scenario.requests if scenario.script else ():
        assert scenario.script is not None
        cells: list[Turn | None] = [None] * request.arrival
        cells.append(Turn(prompt=len(request.prompt)))
        for turn in scenario.script[request.id][1:]:
            accepted = turn.accepted - 1
            cells.append(Turn(accepted=accepted, refused=len(turn.drafts) - accepted))
        rows.append((request.id, request.grammar is not None, cells[:MOST_COLUMNS]))
    return rows


def replay_here(scenario: Scenario, variant: str, run: dict[str, Any]) -> str:
    """The command that runs one scenario again, from the run's own directory."""
    return replay(run, Path(f"{slug(scenario.name)}.json"), variant)


def _range(values: Any) -> str:
    numbers = sorted(set(values))
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"
