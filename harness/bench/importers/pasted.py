"""The block that `vllm bench serve` prints, as people paste it: every label set, SGLang's too, quoted, coloured ..."""

from __future__ import annotations

import re

from harness.bench import labels
from harness.bench.importers.imported import Imported
from harness.bench.importers.sglang import from_sglang
from harness.bench.importers.vllm import NOTES, metrics_of_vllm, warnings_of
from harness.errors import UsageError

_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_LINE = re.compile(r"^(?P<label>.+?:)\s+(?P<value>-?\d[\d,]*(?:\.\d+)?|n/a|nan)\s*$")
_PERCENTILE = re.compile(r"P(?P<q>\d+(\.\d+)?) (?P<word>.+) \(ms\):")
_POSITION = re.compile(r"Position (?P<place>\d+):")
_BACKEND = re.compile(r"^Backend:\s+(\S+)$")
_SGLANG = {
    "Max request concurrency:": "max_concurrency",
    "Concurrency:": "concurrency",
    "Accept length:": "accept_length",
}
_SECTIONS = (
    *labels.CLOCKS["current"],
    labels.Section(header="End-to-End Latency", word="E2E Latency", clock="e2e_latency"),
)
_KEYS = {
    line.label.lower(): line
    for line in (*labels.HEAD["vllm-0.10.2"], *labels.HEAD["current"], *labels.DRAFTS)
}


def from_block(pasted: str) -> list[Imported]:
    """Every block in a text, in order.

    Raises:
        UsageError: there is none, or one without a count of successful requests.
    """
    title = labels.TITLE.strip()
    pieces = _COLOUR.sub("", pasted).split(title)[1:]
    if not pieces:
        raise UsageError(
            f"saw no line '{title}', expected the block that vllm bench serve prints",
            hint="paste it from that line to the last =====",
        )
    return [_block(piece, place) for place, piece in enumerate(pieces)]


def _block(piece: str, place: int) -> Imported:
    result: dict[str, object] = {}
    positions: dict[int, float | None] = {}
    for raw in piece.splitlines()[1:]:
        line = raw.strip().lstrip(">|").strip()
        if line and set(line) == {"="}:
            break
        if backend := _BACKEND.match(line):
            result["backend"] = backend[1]
        elif found := _LINE.match(line):
            _take(found["label"], _value(found["value"]), result, positions)
    if "completed" not in result:
        raise UsageError(f"block {place + 1}: saw no 'Successful requests:', expected a whole block")
    if positions:
        result[labels.POSITIONS] = [
            None if (rate := positions.get(at)) is None else rate / 100 for at in range(max(positions) + 1)
        ]
    if "backend" in result:  # only SGLang's block names it
        result["total_throughput"] = result.pop("total_token_throughput", None)
        return from_sglang(result)
    metrics = metrics_of_vllm(result)
    return Imported(tool="vllm", metrics=metrics, result=result, warnings=warnings_of(metrics), notes=NOTES)


def _take(
    label: str, value: float | None, result: dict[str, object], positions: dict[int, float | None]
) -> None:
    if line := _KEYS.get(label.lower()):
        result[line.key] = int(value) if line.whole and value is not None else value
    elif key := _SGLANG.get(label):
        result[key] = value
    elif position := _POSITION.fullmatch(label):
        positions[int(position["place"])] = value
    elif percentile := _PERCENTILE.fullmatch(label):
        result |= {
            f"p{percentile['q']}_{section.clock}_ms": value
            for section in _SECTIONS
            if section.word == percentile["word"]
        }
    else:
        for section in _SECTIONS:
            for figure in ("mean", "median"):
                if label == f"{figure.title()} {section.word} (ms):":
                    result[f"{figure}_{section.clock}_ms"] = value


def _value(shown: str) -> float | None:
    return None if shown in ("n/a", "nan") else float(shown.replace(",", ""))
