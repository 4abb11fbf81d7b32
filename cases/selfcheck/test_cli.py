"""What the command promises to people and machines: one JSON line, exit codes, errors with a next step."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from harness import __version__
from harness.cli import _parser, main

ROOT = Path(__file__).resolve().parents[2]
CASE = '''"""Told in our words."""
from harness import Documented, Lab, Plan, issue


@issue("tiny#1", title="a tiny case", variants=("as-merged", "fixed"))
def scenarios(lab):
    yield lab.forced(
        "a",
        k=2,
        plans={"r0": Plan(guided=True, turns=((2, 3), (0, 1), (1, 1))), "r1": Plan(turns=((2, 1), (1, 2), (2, 2)))},
        documented={"as-merged": Documented(failure="state", layer=0, step=2)},
    )
'''
PLAIN = {"name": "plain", "requests": [{"id": "a", "prompt": [1, 9], "max_tokens": 4, "ignore_eos": True}]}


@dataclass(frozen=True)
class Said:
    """What one call printed, and how it ended."""

    code: int
    line: dict[str, Any]
    out: str
    err: str


Call = Callable[..., Said]


def read(code: int, out: str, err: str) -> Said:
    """The last line of standard output is one JSON object, as JSON is defined, and its ``exit`` is the exit code."""
    line = json.loads(out.splitlines()[-1], parse_constant=pytest.fail)
    assert isinstance(line, dict)
    assert line["exit"] == code
    assert "verb" in line
    return Said(code, line, out, err)


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    def run(*arguments: object) -> Said:
        code = main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return read(code, printed.out, printed.err)

    return run


@dataclass(frozen=True)
class Place:
    """A folder with one small case, models that are wrong in one way each, and files of every kind."""

    folder: Path
    model: Path

    @property
    def reports(self) -> Path:
        return self.folder / "reports"

    @property
    def small(self) -> list[object]:
        """Arguments that make a run short and keep it here."""
        return [
            *("--cases", self.folder, "--reports", self.reports),
            *("--model", self.model, "--kernels", "naive", "--device", "cpu"),
        ]

    def file(self, name: str, content: str | dict[str, Any]) -> Path:
        path = self.folder / name
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    def scenario(self, name: str, **other: Any) -> Path:
        return self.file(f"{name}.json", {"version": 1, "scenario": {**PLAIN, **other}})

    def case(self, text: str) -> Path:
        """A folder of its own with this one case."""
        root = self.folder / f"root-{abs(hash(text))}"
        (root / "cases" / "issues").mkdir(parents=True, exist_ok=True)
        (root / "cases" / "issues" / "issue_1.py").write_text(text)
        return root


@pytest.fixture(scope="module")
def place(peaked: Path, tmp_path_factory: pytest.TempPathFactory) -> Place:
    folder = tmp_path_factory.mktemp("place")
    (folder / "cases" / "issues").mkdir(parents=True)
    (folder / "fixtures").mkdir()
    (folder / "cases" / "issues" / "issue_1.py").write_text(CASE)
    (folder / "a file").write_text("hello")
    (folder / "empty").mkdir()
    for name, damage in {
        "no tokenizer": lambda model: (model / "tokenizer.json").unlink(),
        "bad tokenizer": lambda model: (model / "tokenizer.json").write_text("{"),
        "no weights": lambda model: (model / "model.safetensors").unlink(),
        "bad weights": lambda model: (model / "model.safetensors").write_bytes(b"\0" * 99),
        "bad config": lambda model: (model / "config.json").write_text("{"),
        "another family": lambda model: (model / "config.json").write_text('{"model_type": "llama"}'),
    }.items():
        shutil.copytree(peaked, folder / name)
        damage(folder / name)
    return Place(folder, peaked)


# What works.


def test_a_reproduced_issue_exits_with_0_and_leaves_a_directory(call: Call, place: Place) -> None:
    said = call("repro", "1", *place.small)
    assert said.code == 0
    assert said.line["reproduced"] is True
    assert said.line["fixed"] is True
    assert said.line["variants"]["as-merged"] == {"verdict": "FAIL", "scenarios": {"a": "FAIL"}}
    assert said.line["variants"]["fixed"] == {"verdict": "PASS", "scenarios": {"a": "PASS"}}
    assert said.line["signal"] > 1000 * said.line["noise"] > 0
    folder = Path(said.line["run_dir"])
    assert {"run.json", "index.html", "a.json", "a.as-merged.npz"} <= {path.name for path in folder.iterdir()}
    for words in (
        "tiny#1",
        "as-merged fails in 'a'",
        "state at step 2",
        "diagnosis: ",
        "as documented",
        "replay: ",
    ):
        assert words in said.out
    assert said.err == ""


def test_json_prints_the_line_alone_wherever_it_stands(call: Call, place: Place) -> None:
    for arguments in (
        ["--json", "repro", "1", *place.small],
        ["repro", "1", *place.small, "--json"],
        ["--json", "list", "issues"],
        ["list", "--json", "variants"],
        ["doctor", "--json"],
    ):
        said = call(*arguments)
        assert len(said.out.splitlines()) == 1
        assert said.err == ""


def verbs() -> dict[str, argparse.ArgumentParser]:
    (action,) = [a for a in _parser()._actions if isinstance(a, argparse._SubParsersAction)]
    return dict(action.choices)


@pytest.mark.parametrize("verb", [None, *verbs()])
def test_help_is_there_for_every_verb(verb: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, "--help"] if verb else ["--help"]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith(f"usage: specharness {verb or ''}".rstrip())
    assert printed.err == ""


def test_json_before_the_verb_reaches_every_verb() -> None:
    required = {
        "repro": ["1"],
        "run": ["x.json"],
        "from-log": ["x.log"],
        "bisect": ["1", "--good", "0.11.0", "--bad", "0.10.2"],
        "list": ["issues"],
        "contract": ["package.module:function"],
        "compare": ["a.json", "b.json"],
        "calibrate": ["a.json"],
        "gate": ["--history", "nights"],
        "history": ["list", "nights"],
    }
    for verb in verbs():
        arguments = [verb, *required.get(verb, [])]
        assert _parser().parse_args(["--json", *arguments]).json is True, verb
        assert _parser().parse_args([*arguments, "--json"]).json is True, verb
        assert _parser().parse_args(arguments).json is False, verb


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"specharness {__version__}\n"


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("issues", "vllm#24881"),
        ("faults", "zero-draft-row"),
        ("variants", "as-merged"),
        ("events", "rollback"),
    ],
)
def test_lists_say_what_exists(call: Call, what: str, expected: str) -> None:
    said = call("list", what)
    assert said.code == 0
    assert expected in said.line[what]
    assert all(name in said.out for name in said.line[what])


def test_doctor_ends_with_its_line(call: Call) -> None:
    said = call("doctor")
    assert said.line["verb"] == "doctor"
    assert len(said.out.splitlines()) > 5


def test_a_log_becomes_a_scenario_that_runs(
    call: Call, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.verbs.ensure", lambda preset, cache=None: place.model)
    log = ROOT / "fixtures" / "logs" / "vllm-24881.log"
    said = call("from-log", log, "--out", place.folder / "from log.json")
    assert sorted(said.line["rows"]) == [2] + [3] * 14
    ran = call("run", said.line["scenario"], *place.small, "--variant", "before-fix")
    assert ran.code == 1
    assert "is invalid" in ran.out


# Exit codes of verdicts.


def test_run_is_red_where_a_chosen_variant_fails_and_only_there(call: Call, place: Place) -> None:
    repro = call("repro", "1", *place.small)
    scenario = Path(repro.line["run_dir"]) / "a.json"
    for variants, code in [(["as-merged"], 1), (["fixed"], 0), (["as-merged", "fixed"], 1), ([], 1)]:
        chosen = [word for name in variants for word in ("--variant", name)]
        assert call("run", scenario, *place.small, *chosen).code == code


def test_a_run_that_proves_nothing_exits_with_125(call: Call, place: Place) -> None:
    path = place.scenario("vacuous", must_observe={"padded rows": 1})
    said = call("run", path, *place.small, "--variant", "fixed")
    assert said.code == 125
    assert said.line["variants"]["fixed"]["verdict"] == "INCONCLUSIVE"
    assert "padded rows: seen 0, demanded 1" in said.out


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("step=2", "step=1", 1),  # it fails, but not as documented
        ("        k=2,", '        k=2, passes=("as-merged",),', 1),  # it fails where it must not
        ('documented={"as-merged"', 'must_observe={"padded rows": 1}, documented={"as-merged"', 125),
        ("turns=((2, 3), (0, 1), (1, 1))", "turns=((2, 3), (1, 1), (1, 1))", 1),  # it no longer fails
    ],
)
def test_an_issue_that_is_not_reproduced_is_not_green(
    call: Call, place: Place, old: str, new: str, code: int
) -> None:
    assert old in CASE
    root = place.case(CASE.replace(old, new))
    said = call("repro", "1", *place.small, "--cases", root)
    assert said.code == code
    assert not (said.line["reproduced"] and said.line["fixed"])


# Bad input.

Arguments = Callable[[Place], list[object]]
ERRORS: dict[str, tuple[Arguments, str]] = {
    "no verb": (lambda p: [], "the following arguments are required: VERB"),
    "unknown verb": (lambda p: ["reproduce"], "invalid choice: 'reproduce'"),
    "unknown option": (lambda p: ["list", "issues", "--colour"], "unrecognized arguments: --colour"),
    "no issue": (lambda p: ["repro"], "the following arguments are required: issue"),
    "unknown issue": (lambda p: ["repro", "99", *p.small], "tiny#1           a tiny case"),
    "no such list": (lambda p: ["list", "bugs"], "invalid choice: 'bugs'"),
    "bad seed": (lambda p: ["repro", "1", *p.small, "--seed", "x"], "invalid int value: 'x'"),
    "unknown preset": (lambda p: ["repro", "1", "--preset", "round"], "invalid choice: 'round'"),
    "unknown target": (
        lambda p: ["repro", "1", *p.small, "--target", "vllm"],
        "saw target 'vllm', expected one of: embedded",
    ),
    "unknown variant": (
        lambda p: ["repro", "1", *p.small, "--variant", "best"],
        "saw variant 'best', expected one of before-fix, as-merged",
    ),
    "no GPU": (lambda p: ["repro", "1", *p.small, "--device", "cuda"], "saw device cuda"),
    "no cases there": (
        lambda p: ["repro", "1", *p.small, "--cases", p.folder / "empty"],
        "empty/cases/issues",
    ),
    "no cases folder": (lambda p: ["list", "issues", "--cases", p.folder / "no"], "no/cases/issues"),
    "a case that does not load": (
        lambda p: ["repro", "1", *p.small, "--cases", p.case("1 / 0\n")],
        "issue_1.py: does not load: ZeroDivisionError",
    ),
    "a case that does not build": (
        lambda p: [
            "repro",
            "1",
            *p.small,
            "--cases",
            p.case(CASE.replace("yield lab.forced", "yield lab.force")),
        ],
        "issue_1.py:7: builds no scenarios: AttributeError",
    ),
    "a case without its fixture": (
        lambda p: [
            "repro",
            "1",
            *p.small,
            "--cases",
            p.case(CASE.replace("yield", "lab.schema('x'); yield")),
        ],
        "saw no fixture",
    ),
    "reports is a file": (
        lambda p: ["repro", "1", *p.small, "--reports", p.folder / "a file"],
        "cannot be created: Not a directory",
    ),
    "resume nothing": (
        lambda p: ["repro", "1", *p.small, "--resume", p.folder / "absent"],
        "absent: holds no readable run.json",
    ),
    "resume an empty folder": (
        lambda p: ["repro", "1", *p.small, "--resume", p.folder / "empty"],
        "empty: holds no readable run.json",
    ),
    "missing log": (lambda p: ["from-log", p.folder / "absent.log"], "absent.log: cannot be read"),
    "a log without a dump": (lambda p: ["from-log", p.folder / "a file"], "saw no scheduler dump"),
    "a place to write that is none": (
        lambda p: [
            *("from-log", ROOT / "fixtures" / "logs" / "vllm-24881.log"),
            *("--out", p.folder / "a file" / "x.json"),
        ],
        "cannot be written: Not a directory",
    ),
    **{
        f"model: {name}": (lambda p, name=name: ["repro", "1", *p.small, "--model", p.folder / name], said)
        for name, said in {
            "absent": "absent",
            "empty": "empty",
            "a file": "a file",
            "no tokenizer": "no tokenizer/tokenizer.json",
            "bad tokenizer": "bad tokenizer/tokenizer.json",
            "no weights": "model.safetensors",
            "bad weights": "model.safetensors",
            "bad config": "bad config/config.json is not readable as JSON",
            "another family": "model_type is 'llama'; expected 'qwen3_next'",
        }.items()
    },
    **{
        f"scenario: {name}": (lambda p, write=write: ["run", write(p), *p.small, "--variant", "fixed"], said)
        for name, (write, said) in {
            "absent": (lambda p: p.folder / "absent.json", "absent.json: cannot be read"),
            "a folder": (lambda p: p.folder, "cannot be read"),
            "broken": (lambda p: p.file("broken.json", "{"), "broken.json: not JSON"),
            "version": (lambda p: p.file("v.json", {"version": 2}), "v.json: saw version 2, expected 1"),
            "unknown field": (
                lambda p: p.scenario("field", colour=1),
                "field.json: saw 'colour', expected one of the fields of Scenario",
            ),
            "illegal script": (
                lambda p: p.scenario("script", script={"a": [{"token": 1}, {"token": 2, "accepted": 2}]}),
                "script of 'a', turn 1: saw 0 drafts and accepted=2",
            ),
            "empty script": (lambda p: p.scenario("none", script={"a": []}), "script of 'a': saw no turn"),
            "token": (
                lambda p: p.scenario("token", requests=[{**PLAIN["requests"][0], "prompt": [1, 1024]}]),
                "request 'a': saw token id 1024, expected less than the model's vocabulary of 1024",
            ),
            "scripted token": (
                lambda p: p.scenario("turn", script={"a": [{"token": 99999}]}),
                "request 'a': saw token id 99999",
            ),
            "grammar": (
                lambda p: p.scenario(
                    "grammar",
                    requests=[{**PLAIN["requests"][0], "grammar": {"kind": "regex", "text": "([a"}}],
                ),
                "request 'a': this regex does not compile",
            ),
            "sampling": (
                lambda p: p.scenario(
                    "sampling",
                    requests=[{**PLAIN["requests"][0], "sampling": {"temperature": -1}}],
                ),
                "request 'a': saw Sampling(temperature=-1.0",
            ),
        }.items()
    },
}


@pytest.mark.parametrize("name", list(ERRORS))
def test_bad_input_is_one_clear_message_with_a_next_step(call: Call, place: Place, name: str) -> None:
    if name == "no GPU" and torch.cuda.is_available():
        pytest.skip("there is one")
    arguments, expected = ERRORS[name]
    before = set(place.reports.iterdir()) if place.reports.exists() else set()
    said = call(*arguments(place))
    assert said.code == 2
    assert expected in said.err
    assert said.err.startswith("specharness: ")
    assert said.err.count("specharness: ") == 1
    assert said.err.count("\n  next: ") == 1
    assert said.err.rpartition("\n  next: ")[2].count("\n") == 1  # the next step is the last line
    assert "Traceback" not in said.err + said.out
    assert said.line["error"] in said.err
    if not name.startswith("scenario: "):  # a model can refuse a scenario only once it is open
        assert (set(place.reports.iterdir()) if place.reports.exists() else set()) == before


@pytest.mark.parametrize(
    "arguments",
    [
        lambda p: ["repro", "1", *p.small, "--variant", "stride-ignored"],
        lambda p: ["repro", "1", *p.small, "--target", "live", "--variant", "stride-ignored"],
        lambda p: ["explore", "--fault", "stride-ignored", "--reports", p.reports],
        lambda p: ["matrix", "--fault", "stride-ignored", "--reports", p.reports],
        lambda p: ["serve", "--fault", "stride-ignored", "--port", 0],
    ],
    ids=["repro", "repro live", "explore", "matrix", "serve"],
)
def test_a_fault_of_another_layout_is_unsupported_by_every_verb(
    call: Call, place: Place, arguments: Arguments
) -> None:
    """And not a survivor, or a matrix of nothing that is green."""
    before = set(place.reports.iterdir()) if place.reports.exists() else set()
    said = call(*arguments(place), "--layout", "replay")
    assert said.code == 125
    assert "stride-ignored cannot act in layout replay" in said.err
    assert "next: --layout slots" in said.err
    assert (set(place.reports.iterdir()) if place.reports.exists() else set()) == before


def test_a_run_cannot_be_resumed_as_another(call: Call, place: Place) -> None:
    done = call("repro", "1", *place.small)
    resume = ["repro", "1", *place.small, "--resume", done.line["run_dir"]]
    assert call(*resume).line["variants"] == done.line["variants"]
    for other, named in [
        (["--seed", 5], "seed: 0 there, 5 here"),
        (["--variant", "before-fix"], "variants: "),
    ]:
        said = call(*resume, *other)
        assert said.code == 2
        assert "is another run" in said.err
        assert named in said.err
        assert "next: " in said.err


@pytest.mark.parametrize("content", ["{", "[]", "1", '"x"', "\ufffe", "[" * 99999])
def test_a_run_json_that_is_none_is_told_so(call: Call, place: Place, content: str) -> None:
    folder = place.folder / "spoiled"
    folder.mkdir(exist_ok=True)
    (folder / "run.json").write_text(content, encoding="utf-16" if content == "\ufffe" else "utf-8")
    said = call("repro", "1", *place.small, "--resume", folder)
    assert said.code == 2
    assert "spoiled: holds no readable run.json" in said.err


# What nobody expects.


@pytest.mark.parametrize(
    ("error", "code", "bisecting"), [(RuntimeError("boom"), 3, 129), (KeyboardInterrupt(), 130, 130)]
)
def test_a_fault_of_its_own_still_ends_with_the_line(
    call: Call, place: Place, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, bisecting: int
) -> None:
    def dies(args: argparse.Namespace) -> dict[str, Any]:
        raise error

    monkeypatch.setattr("harness.verbs.repro", dies)
    said = call("repro", "1", *place.small)
    assert said.code == code
    assert ("Traceback" in said.err) is (code == 3)
    if code == 3:
        assert "please report it" in said.err
        assert said.line["error"] == "RuntimeError: boom"
    assert call("repro", "1", *place.small, "--bisect").code == bisecting


def test_git_bisect_stops_at_what_says_nothing_of_a_commit(call: Call, place: Place) -> None:
    """1 to 124 would be a bad commit, 125 is skipped."""
    for arguments, code in [
        (["repro", "99", *place.small], 128),
        (["repro", "1", "--seed", "x"], 128),
        (["repro", "1", *place.small, "--variant", "fixed"], 0),
        (["repro", "1", *place.small, "--variant", "as-merged"], 1),
    ]:
        assert call(*arguments, "--bisect").code == code


def as_a_command(*arguments: object, folder: Path) -> Said:
    done = subprocess.run(
        [sys.executable, "-m", "harness.cli", *map(str, arguments)],
        cwd=folder,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    return read(done.returncode, done.stdout, done.stderr)


def test_the_command_keeps_the_same_promises(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    said = as_a_command(
        "repro", "tiny#1", *place.small[2:], "--json", folder=place.folder
    )  # cases found upwards
    assert said.code == 0
    assert len(said.out.splitlines()) == 1
    assert as_a_command(folder=place.folder).code == 2
    unknown = as_a_command("repro", "99", folder=place.folder)
    assert unknown.code == 2
    assert "Traceback" not in unknown.err
    assert "tiny#1" in unknown.err


def test_a_target_that_cannot_do_what_the_case_needs_is_unsupported(
    call: Call, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    from harness import verbs
    from harness.targets.protocols import Capability

    def tokens_only(name: str, options: Any) -> Any:
        under = open_target(name, options)
        return lambda variant: replace(under(variant), capabilities=frozenset({Capability.TOKENS}))

    open_target = verbs.open_target
    monkeypatch.setattr(verbs, "open_target", tokens_only)
    said = call("repro", "1", *place.small)
    assert said.code == 125
    assert "cannot do what the case needs: logits of every position, recurrent and" in said.err
