"""Any result file: which tool wrote it, and what is in it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from harness.bench import labels
from harness.bench.importers.aiperf import from_aiperf
from harness.bench.importers.content import LARGEST, Content
from harness.bench.importers.guidellm import from_guidellm
from harness.bench.importers.imported import Imported, table
from harness.bench.importers.pasted import from_block
from harness.bench.importers.sglang import from_sglang
from harness.bench.importers.vllm import from_vllm
from harness.errors import UsageError

EXPECTED = "a result of vLLM, SGLang, GuideLLM or AIPerf, or a pasted 'Serving Benchmark Result' block"


def import_file(path: Path) -> list[Imported]:
    """Every run in a file: one object, one object per line, a report with several, or text with pasted blocks.

    Raises:
        UsageError: it cannot be read, or is nothing that is known here.
    """
    try:
        if path.stat().st_size > LARGEST:
            raise UsageError(f"{path}: saw {path.stat().st_size} bytes, expected {EXPECTED}")
        content = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read: {error}", hint=f"pass {EXPECTED}") from None
    return _named(path, import_text, content)


def import_content(content: Content) -> list[Imported]:
    """The same of a file that is parsed already, if it is one JSON."""
    if content.value is None:
        return import_file(content.path)
    return _named(content.path, lambda value: _import(_object(value)), content.value)


def _named(path: Path, importing: Callable[[Any], list[Imported]], what: Any) -> list[Imported]:
    try:
        return importing(what)
    except UsageError as error:
        hint = error.hint or "pass what `specharness bench` or one of these tools wrote"
        raise UsageError(f"{path}: {error.args[0]}", hint=hint) from None


def import_text(content: str) -> list[Imported]:
    """The same of a text."""
    runs = [one for found in _objects(content) for one in _import(found)]
    if runs:
        return runs
    if labels.TITLE.strip() in content:
        return from_block(content)
    raise UsageError(f"saw {content.strip()[:40]!r}, expected {EXPECTED}")


def _objects(content: str) -> list[Mapping[str, Any]]:
    """One JSON object, or one per line (SGLang's JSONL, vLLM's --append-result)."""
    try:
        return [_object(json.loads(content))]
    except (ValueError, RecursionError):
        pass
    try:
        return [_object(json.loads(line)) for line in content.split("\n") if line.strip()]
    except (ValueError, RecursionError):
        return []


def _object(value: object) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise UsageError(f"saw JSON of type {type(value).__name__}, expected {EXPECTED}")
    return value


def _import(found: Mapping[str, Any]) -> list[Imported]:
    if isinstance(found.get("benchmarks"), list):
        return from_guidellm(found)
    if "aiperf_version" in found or "unit" in table(found.get("request_throughput")) or "records" in found:
        return [from_aiperf(found)]
    if "mean_e2e_latency_ms" in found or "total_throughput" in found:
        return [from_sglang(found)]
    if "completed" in found:
        return [from_vllm(found)]
    keys = ", ".join([*found][:6]) or "no keys"
    raise UsageError(f"saw an object with {keys}, expected {EXPECTED}")
