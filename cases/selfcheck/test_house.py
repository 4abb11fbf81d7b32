"""The house rules: who may import whom, which names are public, lint, types, size and speed of the door."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HOUSE = ROOT / "harness"
MODULES = sorted(HOUSE.rglob("*.py"))
IDS = [str(path.relative_to(HOUSE)) for path in MODULES]

# The table of the house: part of `harness` -> (parts it may import, third-party packages it may import).
# A part is the longest prefix listed here that fits a module's name; imports within a part are free.
# ANY in the first place is every part, in the second every package.
ANY = {"*"}
WORDS = {"errors", "exchange", "packing", "scenario", "trace", "verdict"}
TABLE: dict[str, tuple[set[str], set[str]]] = {
    "errors": (set(), set()),
    "verdict": ({"errors", "trace"}, set()),
    "scenario": ({"errors", "codec"}, set()),
    "codec": ({"errors"}, set()),
    "trace": ({"errors", "codec"}, {"numpy"}),
    "exchange": ({"scenario"}, set()),
    "packing": (set(), set()),
    "doctor": ({"models"}, {"rich"}),
    "models": ({"errors"}, {"numpy", "safetensors", "tokenizers", "torch"}),  # torch reads bfloat16
    "oracle": ({*WORDS}, {"torch", "numpy", "safetensors", "tokenizers", "xgrammar"}),
    "oracle.foreign": ({*WORDS, "oracle"}, {"torch", "numpy", "llguidance", "transformers"}),
    "engine": ({"errors", "models"}, {"torch", "triton", "xgrammar"}),
    "targets": (WORDS, ANY),
    "targets.registry": ({*WORDS, "targets", "targets.embedded", "targets.upstream"}, ANY),
    "targets.embedded": ({*WORDS, "targets", "targets.embedded_run", "engine", "models"}, ANY),
    "targets.embedded_run": ({*WORDS, "targets.embedded", "engine"}, ANY),
    "targets.contract": ({*WORDS, "targets", "engine"}, ANY),  # a user's kernel plugs into our engine
    "targets.user_kernel": ({*WORDS, "targets", "engine"}, ANY),
    "targets.upstream": (
        {
            *WORDS,
            "targets",
            "targets.embedded",
            "targets.contract",
            "targets.user_kernel",
            "engine",
            "models",
        },
        ANY,
    ),
    "check": ({*WORDS, "oracle", "oracle.foreign"}, ANY),
    "run": ({*WORDS, "targets", "oracle", "check"}, ANY),
    "explore": (
        {*WORDS, "cases", "check", "codec", "lab", "models", "run", "targets", "targets.registry"},
        ANY,
    ),
    "explore_cli": ({"arguments", "explore_verbs"}, set()),
    "explore_session": (ANY, ANY),
    "explore_verbs": (ANY, ANY),
    "expected": ({*WORDS, "run"}, set()),
    "fromlog": ({*WORDS, "codec", "lab"}, {"numpy"}),
    "serve": ({"", "errors", "engine", "models"}, ANY),
    "serve_cli": ({"arguments", "serve_verbs"}, set()),
    "serve_verbs": (ANY, ANY),
    "vllm_cpu": ({*WORDS, "check", "models", "oracle"}, {"httpx", "numpy"}),
    "vllm_cpu.site": (
        set(),
        {"numpy", "specharness_vllm", "torch", "vllm"},
    ),  # runs inside vLLM's own environment
    "live": (
        {*WORDS, "check", "codec", "oracle", "rundir", "targets"},
        {"jsonschema", "numpy"},
    ),
    "live_cli": ({"arguments", "live_verbs", "live_vllm_verbs", "own_engine"}, set()),
    "own_engine": ({"errors"}, set()),
    "live_vllm_verbs": (ANY, ANY),
    "live_repro": (ANY, ANY),
    "live_verbs": (ANY, ANY),
    "arguments": (set(), set()),
    "console": (set(), {"rich"}),
    "bench.gpu": ({"errors", "engine", "targets", "targets.upstream"}, ANY),  # kernels, ours and theirs
    "gpu": ({*WORDS, "cases", "engine", "report", "rundir"}, ANY),
    "gpu_cli": ({"gpu_verbs", "gpu_gate_verbs"}, set()),
    "gpu_gate_verbs": (ANY, ANY),
    "gpu_verbs": (ANY, ANY),
    "bench": ({"errors", "trace", "targets", "doctor"}, ANY),
    "bench_cli": ({"arguments", "bench_verbs", "own_engine"}, set()),
    "bench_asked": (ANY, ANY),
    "bench_compare": (ANY, ANY),
    "bench_pages": (ANY, ANY),
    "bench_serving": (ANY, ANY),
    "bench_session": (ANY, ANY),
    "bench_verbs": (ANY, ANY),
    "history_cli": ({"compare_verbs", "history_verbs", "gate_verbs", "report_verbs"}, set()),
    "compare_verbs": (ANY, ANY),
    "judging": ({"errors", "bench"}, {"rich"}),
    "history_verbs": (ANY, ANY),
    "gate_measure": (ANY, ANY),
    "nightly_cli": ({"nightly_verbs"}, set()),
    "nightly_report": (set(), set()),
    "nightly_steps": ({"rundir"}, {"rich"}),
    "nightly_verbs": (ANY, ANY),
    "gate_verbs": (ANY, ANY),
    "report": ({*WORDS, "codec", "check", "live", "repro", "run", "rundir"}, ANY),
    "report.bench": ({"errors", "bench", "report", "rundir"}, ANY),
    "report_verbs": (ANY, ANY),
    "lab": ({"errors", "scenario"}, {"tokenizers"}),
    "rundir": ({*WORDS, "codec"}, set()),
    "layouts": ({*WORDS, "cases", "engine"}, set()),
    "repro": ({*WORDS, "cases", "check", "codec", "run", "rundir", "targets"}, set()),
    "bisect": ({"errors", "targets.upstream"}, set()),
    "suspects": ({*WORDS, "check", "run", "targets", "targets.upstream"}, set()),
    "upstream_table": ({*WORDS, "codec", "rundir", "suspects"}, set()),
    "upstream_native": ({"codec", "rundir", "suspects", "upstream_table", "verdict"}, set()),
    "upstream_workers": ({*WORDS, "rundir", "suspects", "upstream_table"}, set()),
    "upstream_verbs": (ANY, ANY),
    "cases": (ANY, ANY),
    "listing": (ANY, ANY),
    "verbs": (ANY, ANY),
    "cli": (ANY, ANY),
    "__main__": ({"cli"}, set()),
    "": ({*WORDS, "cases", "lab", "run", "targets"}, set()),  # harness/__init__.py, the public names
}

MOST_LINES = 300
MOST_NAMES = 18
PUBLIC = [
    "Capability",
    "Documented",
    "Event",
    "Grammar",
    "HarnessError",
    "Judge",
    "Lab",
    "Plan",
    "Request",
    "Sampling",
    "Scenario",
    "Trace",
    "Turn",
    "Verdict",
    "issue",
]

# Words that name one machine, one registry or a local index. The patterns are split so that this file is clean itself.
NOT_IN_THE_TREE = [
    "file" + ":///",
    r"/(home|root|work|Users)" + r"/[A-Za-z]",
    r"/opt/(pypi|wheels)",
    r"(pypi|registry)\." + r"(org|npmjs)",
    "files." + "pythonhosted",
]


def name_of(path: Path) -> str:
    """`harness/engine/pool.py` -> `engine.pool`, `harness/engine/__init__.py` -> `engine`."""
    parts = path.relative_to(HOUSE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def part_of(name: str) -> str | None:
    """The longest prefix of a module's dotted name that the table lists."""
    pieces = name.split(".")
    prefixes = (".".join(pieces[:n]) for n in range(len(pieces), 0, -1))
    return "" if not name else next((prefix for prefix in prefixes if prefix in TABLE), None)


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def imports_of(path: Path) -> Iterator[tuple[int, str]]:
    """Line and dotted name of everything a module imports, lazy imports and those for types included."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                here = ["harness", *path.relative_to(HOUSE).parent.parts]
                base = ".".join([*here[: len(here) - node.level + 1], *filter(None, [base])])
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command], cwd=ROOT, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )


@pytest.mark.parametrize("path", MODULES, ids=IDS)
def test_imports_go_only_where_the_table_allows(path: Path) -> None:
    part = part_of(name_of(path))
    assert part is not None, (
        f"{path.relative_to(ROOT)} has no row in TABLE ({__file__}): say there what it may import"
    )
    parts, packages = TABLE[part]
    wrong = []
    for line, imported in imports_of(path):
        top, _, inside = imported.partition(".")
        if top == "harness":
            goal = part_of("" if is_public_name(inside) else inside)
            if goal is None or (parts != ANY and goal not in {part, *parts}):
                why = "has no row in TABLE" if goal is None else f"is not open to {part or 'harness'}"
                wrong.append(f"line {line}: {imported} {why}")
        elif top not in sys.stdlib_module_names and packages != ANY and top not in packages:
            wrong.append(
                f"line {line}: {top} (open to {part or 'harness'}: {', '.join(sorted(packages)) or 'nothing'})"
            )
    assert not wrong, (
        f"{path.relative_to(ROOT)} imports what the house table does not allow:\n  " + "\n  ".join(wrong)
    )


def is_public_name(inside: str) -> bool:
    """Whether `from harness import X` takes a public name rather than a module."""
    first = inside.split(".")[0]
    return not (HOUSE / first).is_dir() and not (HOUSE / f"{first}.py").is_file()


def test_every_row_of_the_table_may_be_reached() -> None:
    unknown = {goal for parts, _ in TABLE.values() for goal in parts} - set(TABLE) - ANY
    assert not unknown, f"TABLE allows imports of parts that it does not describe: {sorted(unknown)}"


def test_oracle_and_engine_never_meet() -> None:
    assert not reachable("oracle") & {"engine"}
    assert not reachable("engine") & {"oracle", "check", "scenario", "targets"}
    assert "targets" not in reachable("check")


def reachable(part: str) -> set[str]:
    seen, todo = set(), [part]
    while todo:
        for goal in TABLE[todo.pop()][0] - seen:
            seen.add(goal)
            todo.append(goal)
    return seen


@pytest.mark.parametrize("path", MODULES, ids=IDS)
def test_nothing_imports_cases(path: Path) -> None:
    assert not [
        name for _, name in imports_of(path) if name.split(".")[0] in {"cases", "conftest", "fixtures"}
    ]


@pytest.mark.parametrize("path", MODULES, ids=IDS)
def test_public_functions_and_classes_say_what_they_do(path: Path) -> None:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    silent = [
        f"line {node.lineno}: {node.name}"
        for node in tree_of(path).body
        if isinstance(node, kinds) and not node.name.startswith("_") and not ast.get_docstring(node)
    ]
    assert not silent, f"{path.relative_to(ROOT)} has public names without a docstring:\n  " + "\n  ".join(
        silent
    )


@pytest.mark.parametrize("path", MODULES, ids=IDS)
def test_modules_fit_in_the_head(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= MOST_LINES, f"{path.relative_to(ROOT)} has {lines} lines: split it around its nouns"


def test_public_names_are_few_sorted_pinned_and_real() -> None:
    import harness

    assert harness.__all__ == PUBLIC == sorted(PUBLIC)
    assert len(PUBLIC) <= MOST_NAMES
    assert [name for name in PUBLIC if getattr(harness, name, None) is None] == []


@pytest.mark.parametrize("path", sorted((ROOT / "cases/issues").glob("*.py")), ids=lambda path: path.name)
def test_case_files_import_public_names_and_nothing_deeper(path: Path) -> None:
    imported = [name for _, name in imports_of(path) if name.split(".")[0] not in sys.stdlib_module_names]
    assert not [name for name in imported if name not in {f"harness.{public}" for public in PUBLIC}]


def test_importing_the_harness_is_quick_and_light() -> None:
    program = (
        "import sys, time; start = time.perf_counter(); import harness;"
        "print(time.perf_counter() - start, *sorted({'torch', 'triton', 'transformers'} & set(sys.modules)))"
    )
    answers = [run("-c", program).stdout.split() for _ in range(3)]
    assert min(float(answer[0]) for answer in answers) < 0.5
    assert answers[0][1:] == [], "importing harness imports these too"


def test_help_answers_at_once() -> None:
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        answer = run("-m", "harness.cli", "--help")
        seconds.append(time.perf_counter() - start)
        assert answer.returncode == 0, answer.stderr
    assert min(seconds) < 1.0


def test_ruff_finds_nothing() -> None:
    answer = run("-m", "ruff", "check", ".")
    assert answer.returncode == 0, answer.stdout + answer.stderr


def test_ruff_would_format_nothing() -> None:
    answer = run("-m", "ruff", "format", "--check", ".")
    assert answer.returncode == 0, f"run `ruff format .`\n{answer.stdout}{answer.stderr}"


@pytest.mark.timeout(600)
def test_types_are_clean() -> None:
    answer = run("-m", "mypy")
    assert answer.returncode == 0, answer.stdout + answer.stderr


def test_the_tree_names_no_machine_and_no_registry() -> None:
    pattern = "|".join(NOT_IN_THE_TREE)
    found = subprocess.run(
        ["git", "grep", "-nIE", pattern, "--", ".", ":!reports/baselines"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if found.returncode > 1:
        pytest.skip(f"not a git checkout: {found.stderr.strip()}")
    assert not found.stdout, f"these lines name a machine or a registry:\n{found.stdout}"


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("from harness.engine.pool import Pool", "engine"),
        ("def lazy():\n    import torch", "torch"),
        ("from harness import oracle", "oracle"),
        ("from .trace import StepTrace", None),
        ("import json", None),
    ],
)
def test_the_import_rule_can_see(source: str, complaint: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule itself is tested: a fake `harness/verdict.py` with one import."""
    monkeypatch.setitem(globals(), "tree_of", lambda _: ast.parse(source))
    if complaint is None:
        test_imports_go_only_where_the_table_allows(HOUSE / "verdict.py")
    else:
        with pytest.raises(AssertionError, match=re.escape(complaint)):
            test_imports_go_only_where_the_table_allows(HOUSE / "verdict.py")


def test_a_module_outside_the_table_is_told_where_to_go() -> None:
    with pytest.raises(AssertionError, match="no row in TABLE"):
        test_imports_go_only_where_the_table_allows(HOUSE / "newcomer.py")
