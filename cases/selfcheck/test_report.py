"""The page of a run: complete, self-contained, well formed, and safe to open whatever an engine said."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.console import Console

from harness.check.gauge import Gauge
from harness.lab import Lab, Plan
from harness.report import proof
from harness.report.html import MOST, page, shown
from harness.repro import Reproduction, Result, reproduce
from harness.run import Judge
from harness.rundir import RunDir
from harness.scenario import Documented
from harness.targets.registry import TargetOptions, open_target
from harness.verdict import Verdict

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
VOID = {"meta", "link", "br", "hr", "img", "input"}
CELLS = {"td", "th", "dt", "dd"}
RUN = {"seed": 7, "target": "embedded", "kernels": "naive", "device": "cpu", "versions": {"torch": "2.8.0"}}


class Page(HTMLParser):
    """Checks that elements are balanced, and collects ids, links, everything that would be loaded, and the text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.goals: list[str] = []
        self.loads: list[str] = []
        self.tags: set[str] = set()
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag not in VOID:
            self.open.append(tag)
        for key, value in attrs:
            self.ids += [value or ""] if key == "id" else []
            if key in ("href", "src", "action", "data", "srcset") and value != "data:,":
                (self.goals if (value or "").startswith("#") else self.loads).append(value or "")
            assert not key.startswith("on"), f"{tag} has a script in {key}"

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes another element"
        self.text += " " if tag in CELLS else ""

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def reproduction(peaked: Path, tmp_path_factory: pytest.TempPathFactory) -> Reproduction:
    """Two rows of 4 and 2 tokens, which code that takes them to be equal mixes."""
    lab = Lab(peaked, FIXTURES)
    scenario = lab.forced(
        "silent, rows (4,2)",
        title="tokens of two requests are mixed",
        k=3,
        plans={
            "r0": Plan(guided=True, turns=((3, 3), (3, 1))),
            "r1": Plan(guided=True, turns=((1, 1), (1, 1))),
        },
        must_observe={"unequal rows": 1, "rollback": 2},
        documented={"before-fix": Documented(failure="state", tensor="conv", layer=0)},
    )
    open_variant = open_target("embedded", TargetOptions(folder=peaked, kernels="naive"))
    run_dir = RunDir.create(tmp_path_factory.mktemp("reports"), "page", {})
    return reproduce([scenario], ["before-fix", "fixed"], open_variant, Judge(peaked), run_dir)


def with_first(reproduction: Reproduction, **changes: object) -> Reproduction:
    """The same, with another first divergence of before-fix."""
    (result,) = reproduction.results
    judgement = result.judgements["before-fix"]
    assert judgement.first is not None
    other = replace(judgement, first=replace(judgement.first, **changes))
    judgements = {**result.judgements, "before-fix": other}
    return Reproduction(
        results=(Result(scenario=result.scenario, gauges=result.gauges, judgements=judgements),)
    )


def test_the_page_tells_what_was_found(reproduction: Reproduction) -> None:
    text = re.sub(r"\s+", " ", Page(page("repro-1", reproduction, RUN)).text)
    (result,) = reproduction.results
    failed = result.judgements["before-fix"]
    assert failed.first is not None
    assert failed.first.diagnosis is not None
    assert "Every documented failure was reproduced, and the fix passes everything." in text
    assert "before-fix FAIL as documented" in text
    assert "fixed PASS" in text
    for said in (
        f"{failed.first.kind} at {failed.first.at}",
        failed.first.message,
        failed.first.diagnosis,
        f"{failed.first.error:.2g} relative RMS, allowed {failed.first.threshold:.2g}",
        *(re.sub(r"\s+", " ", line) for line in failed.ledger),
        *(evidence.summary for evidence in failed.evidence),
        f"unequal rows 1 {failed.observed['unequal rows']}",
        "specharness run silent-rows-4-2.json --variant before-fix --kernels naive --device cpu",
        "2 requests",
        "torch 2.8.0",
        "seed 7",
    ):
        assert said in text, said


def test_the_page_says_what_was_allowed_and_why(reproduction: Reproduction) -> None:
    (result,) = reproduction.results
    gauge = Gauge(noise=(1e-6, 4e-6), signal=(0.09, 0.09))
    gauges = replace(result.gauges, recurrent=gauge)
    text = Page(page("x", Reproduction(results=(replace(result, gauges=gauges),)), RUN)).text
    assert "recurrent: noise 1e-06 to 4e-06, threshold 1e-05 to 4e-05, least fault 0.09" in text
    assert "conv: noise " in text
    assert "logits: noise " in text


def test_the_page_says_what_tokens_prove_and_what_did_not_happen(reproduction: Reproduction) -> None:
    (result,) = reproduction.results
    failed = result.judgements["before-fix"]
    evidence = tuple(
        replace(one, power="0 of 2 changed a token") for one in failed.evidence if one.check == "tokens"
    )
    changed = replace(failed, evidence=evidence, observed={"unequal rows": 1})
    results = (replace(result, judgements={**result.judgements, "before-fix": changed}),)
    text = Page(page("x", Reproduction(results=results), RUN)).text
    assert "silent, rows (4,2), before-fix: 0 of 2 changed a token" in text
    assert "rollback 2 0: too few" in text
    assert "unequal rows 1 1 " in text


def test_the_page_is_whole_and_loads_nothing(reproduction: Reproduction) -> None:
    text = page("repro-1", reproduction, RUN)
    parsed = Page(text)
    assert parsed.loads == []
    assert not {"script", "iframe", "img", "object"} & parsed.tags
    assert not re.search(r"https?:|@import|url\(", text)
    assert len(text) < 300_000
    assert len(parsed.ids) == len(set(parsed.ids))
    assert parsed.goals
    assert set(parsed.goals) <= {f"#{name}" for name in parsed.ids}
    assert "prefers-color-scheme: dark" in text
    assert 'name="viewport"' in text


def test_every_verdict_cell_leads_to_its_details(reproduction: Reproduction) -> None:
    text = page("repro-1", reproduction, RUN)
    for variant in reproduction.variants:
        goal = f"s1-v{reproduction.variants.index(variant) + 1}"
        assert f'href="#{goal}"' in text
        assert re.search(rf'id="{goal}">\s*<h3>{variant}', text)


HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(1)>\u2028\u202e\x1b[31mred\x00\"'&amp;{{ 7 * 7 }}\ud800"


@pytest.mark.parametrize("field", ["message", "diagnosis"])
def test_what_an_engine_says_is_text(reproduction: Reproduction, field: str) -> None:
    text = page(HOSTILE, with_first(reproduction, **{field: HOSTILE}), {**RUN, "model": HOSTILE})
    text.encode()
    parsed = Page(text)
    assert not {"script", "img"} & parsed.tags
    assert parsed.text.count("<script>alert(1)</script>") >= 3
    assert not re.search("[\x00\x1b\u2028\u202e]", text)
    assert r"\u001b[31mred" in parsed.text
    assert "{{ 7 * 7 }}" in parsed.text


def test_names_of_scenarios_and_requests_are_text(reproduction: Reproduction) -> None:
    (result,) = reproduction.results
    name = HOSTILE.replace("\ud800", "")  # which no scenario may have in its name
    scenario = replace(
        result.scenario,
        name=name,
        title=HOSTILE,
        must_observe={HOSTILE: 1},
        requests=tuple(replace(request, id=name + request.id) for request in result.scenario.requests),
        script={name + known: turns for known, turns in (result.scenario.script or {}).items()},
    )
    judgements = {HOSTILE: replace(result.judgements["before-fix"], ledger=(HOSTILE,), hit=(HOSTILE,))}
    hostile = Reproduction(results=(Result(scenario=scenario, gauges=result.gauges, judgements=judgements),))
    parsed = Page(page("x", hostile, {"versions": {HOSTILE: HOSTILE}}))
    assert not {"script", "img"} & parsed.tags


def test_long_texts_are_cut(reproduction: Reproduction) -> None:
    text = page("repro-1", with_first(reproduction, message="x" * 1_000_000), RUN)
    assert max(map(len, re.findall("x+", text))) == MOST
    assert "(cut: 1,000,000 characters)" in text
    assert len(shown("\x00" * 1_000_000)) < 7 * MOST
    assert shown("x" * MOST) == "x" * MOST
    assert "cut" in shown("x" * (MOST + 1))


def test_a_proof_that_failed_is_not_shown_as_one(reproduction: Reproduction) -> None:
    (result,) = reproduction.results

    def with_verdict(variant: str, **changes: object) -> str:
        other = replace(result.judgements[variant], **changes)
        judgements = {**result.judgements, variant: other}
        changed = Reproduction(results=(replace(result, judgements=judgements),))
        return re.sub(r"\s+", " ", Page(page("x", changed, RUN)).text)

    assert "should be right fails." in with_verdict("fixed", verdict=Verdict.FAIL)
    assert "Undecided" in with_verdict("fixed", verdict=Verdict.INCONCLUSIVE)
    assert "did not happen as documented." in with_verdict("before-fix", documented=False)
    assert "not as documented" in with_verdict("before-fix", documented=False)
    assert "no failure is documented here" in with_verdict("before-fix", documented=None)


def test_a_natural_scenario_has_no_script_to_show(reproduction: Reproduction) -> None:
    (result,) = reproduction.results
    natural = Reproduction(results=(replace(result, scenario=replace(result.scenario, script=None)),))
    forced_text, natural_text = (Page(page("x", one, RUN)).text for one in (reproduction, natural))
    assert "the script, turn by turn" in forced_text
    assert "the script, turn by turn" not in natural_text
    assert "drafter and sampler decide" in natural_text


def test_the_first_screen_shows_words_and_no_markup(reproduction: Reproduction, tmp_path: Path) -> None:
    said = io.StringIO()
    console = Console(file=said, width=160, markup=False)
    proof.show(console, "vllm#1  a [title]", reproduction, RunDir.create(tmp_path, "x", {}))
    assert "vllm#1  a [title]" in said.getvalue()
    assert not re.search(r"\[/?(bold|dim|red)", said.getvalue())
