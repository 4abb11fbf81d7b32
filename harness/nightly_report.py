"""A night in Markdown and JUnit. Speed stands in neither unless the answers were right."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

WORDS = {0: "pass", 1: "FAIL", 2: "bad input", 3: "internal error", 125: "undecided"}
SIGNS = {0: "✅", 125: "❔"}
CORRECTNESS, BENCH, GATE = "correctness", "bench", "gate"


def markdown(run: Mapping[str, Any], folder: Path, verdict: str, code: int) -> str:
    """``run``: as ``run.json`` has it; ``folder``: where the benchmark's and the gate's own summaries lie."""
    revision = run.get("revision") or {}
    commit = f"{revision.get('commit', 'unknown')}{' with changes' if revision.get('dirty') else ''}"
    lines = [
        f"# {SIGNS.get(code, '❌')} Nightly: {WORDS.get(code, code)}",
        "",
        _plain(verdict),
        "",
        f"commit {_plain(commit)}; {_plain(run.get('machine', ''))}; history {_plain(run['setting']['history'])}",
        "",
        "| step | verdict | seconds | |",
        "|---|---|---:|---|",
    ]
    steps: Mapping[str, Any] = run.get("steps", {})
    for name, step in steps.items():
        said = _plain(str(step["line"].get("error", ""))).replace("\n", " ")[:300]
        lines.append(f"| {name} | {WORDS.get(step['line']['exit'], '?')} | {step['seconds']:g} | {said} |")
    parts = ["\n".join(lines)]
    bench = steps.get(BENCH, {}).get("line", {})
    if bench.get("exit") == 0 and bench.get("run_dir"):
        parts.append(_text(Path(bench["run_dir"]) / "summary.md"))
    parts.append(_text(folder / "gate.md"))
    parts.append(f"Everything else: `{folder}`")
    return "\n\n".join(part.strip() for part in parts if part.strip()) + "\n"


def junit(run: Mapping[str, Any], folder: Path) -> str:
    """A suite of the steps, and the gate's."""
    root = ElementTree.Element("testsuites")
    suite = ElementTree.SubElement(root, "testsuite", name="nightly")
    for name, step in run.get("steps", {}).items():
        line = step["line"]
        case = ElementTree.SubElement(
            suite, "testcase", classname="nightly", name=name, time=f"{step['seconds']:g}"
        )
        said = _printable(str(line.get("error") or line.get("verdict") or line.get("call") or ""))
        if line["exit"] == 125:
            ElementTree.SubElement(case, "skipped", message=said or "undecided")
        elif line["exit"]:
            kind = "failure" if line["exit"] == 1 else "error"
            ElementTree.SubElement(case, kind, message=said, type=WORDS.get(line["exit"], "?"))
    for key, path in {"failures": "testcase/failure", "errors": "testcase/error"}.items():
        suite.set(key, str(len(suite.findall(path))))
    suite.set("skipped", str(len(suite.findall("testcase/skipped"))))
    suite.set("tests", str(len(suite)))
    if (folder / "gate.xml").is_file():
        root.extend(ElementTree.parse(folder / "gate.xml").getroot())
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _plain(text: str) -> str:
    """No HTML and no table cell comes out of it."""
    for seen, shown in {"&": "&amp;", "<": "&lt;", "|": "\\|"}.items():
        text = text.replace(seen, shown)
    return text


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() or char in "\n\t" else "�" for char in text)
