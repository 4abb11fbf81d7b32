"""A run as JSON: the keys of `vllm bench serve --save-result` in its order, and everything of ours in one namespace."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from math import inf, isfinite
from pathlib import Path
from typing import Any

from harness.bench.equality import Equality
from harness.bench.metrics.acceptance import by_guide
from harness.bench.metrics.compat import CHAT, Dialect, compat, seen, would_complete
from harness.bench.metrics.distribution import RULE
from harness.bench.metrics.span import Span, measured
from harness.bench.metrics.summary import Summary, flat
from harness.bench.metrics.tokens import output_tokens
from harness.bench.record import Outcome, RequestRecord
from harness.bench.validity import Validities
from harness.errors import UsageError

NAMESPACE = "specharness"
FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What vLLM's JSON says of a run before its results. ``request_rate``: infinite is all at once."""

    model_id: str
    tokenizer_id: str | None = None
    backend: str = "openai-chat"
    label: str | None = None
    num_prompts: int | None = None
    request_rate: float = inf
    burstiness: float = 1.0
    max_concurrency: int | None = None
    date: datetime | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)


def result(
    setting: Setting,
    records: Sequence[RequestRecord],
    summary: Summary,
    *,
    dialect: Dialect = CHAT,
    percentiles: Sequence[float] = (99.0,),
    limits: Mapping[str, float] | None = None,
    span: Span | None = None,
    detailed: bool = False,
    validity: Validities | None = None,
    equality: Equality | None = None,
    clocks: Sequence[str] = ("ttft", "tpot", "itl", "e2el"),
    extra: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """``clocks``: the sections of the block, in vLLM's names; ``extra``: more of ours (fingerprint, client health)."""
    told = compat(
        records,
        dialect=dialect,
        span=span or summary.span,
        percentiles=percentiles,
        limits=limits,
        speculation=summary.acceptance,
        clocks=clocks,
    )
    head: dict[str, Any] = {
        "date": (setting.date or datetime.now()).strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": setting.backend,
        "backend": setting.backend,
        "label": setting.label,
        "model_id": setting.model_id,
        "tokenizer_id": setting.tokenizer_id,
        "num_prompts": setting.num_prompts if setting.num_prompts is not None else len(measured(records)),
        **setting.metadata,
        "request_rate": setting.request_rate if isfinite(setting.request_rate) else "inf",
        "burstiness": setting.burstiness,
        "max_concurrency": setting.max_concurrency,
    }
    body: dict[str, Any] = {}
    for key, value in told.items():
        body[key] = value
        if key == "total_token_throughput":
            body |= _details(measured(records), dialect, detailed)
    return head | body | {NAMESPACE: _ours(summary, records, dialect, validity, equality) | dict(extra or {})}


def metrics_of(found: Mapping[str, Any]) -> dict[str, float | None]:
    """Every figure of a result by its dotted name; vLLM's own under ``compat.``."""
    space = found.get(NAMESPACE, {})
    ours: dict[str, float | None] = dict(space.get("metrics", {}))
    if space.get("validity") is not None:
        ours["validity.share"] = space["validity"]["share"]
    head = ("num_prompts", "request_rate", "burstiness", "max_concurrency", "rtfx")
    for key, value in found.items():
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if key not in head and (number or (value is None and key.endswith(("_ms", "throughput", "goodput")))):
            ours[f"compat.{key}"] = value
    return ours


def write_result(found: Mapping[str, Any], path: Path) -> None:
    """Whole or not at all."""
    scratch = path.with_name(f".{path.name}.part")
    scratch.write_text(json.dumps(found, allow_nan=False, ensure_ascii=True), encoding="utf-8")
    os.replace(scratch, path)


def read_result(path: Path) -> dict[str, Any]:
    """UsageError where it cannot be read or is no result."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path}: cannot be read as JSON: {error}", hint="pass a result file") from None
    return require_result(found, path)


def require_result(found: object, path: Path) -> dict[str, Any]:
    """UsageError where the JSON of a file is no result."""
    if not isinstance(found, dict) or "completed" not in found:
        raise UsageError(f"{path}: saw no key 'completed', expected a result of a serving benchmark")
    return found


def _details(records: Sequence[RequestRecord], dialect: Dialect, detailed: bool) -> dict[str, Any]:
    """One value per measured request; what vLLM keeps without --save-detailed are latencies and queue times."""
    views = [seen(record, dialect) for record in records]
    found: dict[str, Any] = {
        "input_lens": [record.prompt_tokens for record in records],
        "output_lens": [
            (output_tokens(record) if record.outcome is Outcome.COMPLETE else 0) for record in records
        ],
        "ttfts": [view.ttft if view else None for view in views],
        "itls": [list(view.itls) if view else [] for view in views],
        "latencies": [view.latency if view else None for view in views],
        "start_times": [record.sent for record in records],
        "queue_times": [record.sent - record.scheduled for record in records],
        "generated_texts": [record.text for record in records],
        "errors": [_error(record) for record in records],
    }
    return found if detailed else {key: found[key] for key in ("latencies", "queue_times")}


def _error(record: RequestRecord) -> str:
    if record.outcome is Outcome.COMPLETE:
        return ""
    return f"{record.outcome.value}: {record.detail}" if record.detail else record.outcome.value


def _ours(
    summary: Summary,
    records: Sequence[RequestRecord],
    dialect: Dialect,
    validity: Validities | None,
    equality: Equality | None,
) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "valid": summary.trust.valid,
        "invalid_because": list(summary.trust.reasons),
        "warnings": list(summary.trust.warnings),
        "percentile_rule": RULE,
        "metrics": flat(summary),
        "outcomes": summary.streams.outcomes,
        "unknown": dict(summary.unknown),
        "acceptance": _plain(summary.acceptance),
        "acceptance_by_guide": {name: _plain(found) for name, found in by_guide(records).items()},
        "goodput": _plain(summary.goodput),
        "valid_goodput": _plain(summary.valid_goodput),
        "steady": _plain(summary.steady),
        "compat": {"client": dialect.name, "completed_as_vllm_counts": would_complete(records, dialect)},
        "validity": None
        if validity is None
        else {
            "share": validity.valid_share,
            "classes": {kind.name.lower(): n for kind, n in validity.counts.items()},
            "by_guide": {
                name: {kind.name.lower(): n for kind, n in counts.items()}
                for name, counts in validity.by_guide.items()
            },
        },
        "equality": None
        if equality is None
        else {
            "compared": equality.compared,
            "equal": equality.equal,
            "divergences": [asdict(one) for one in equality.divergences],
            "unpaired": list(equality.unpaired),
        },
    }


def _plain(value: Any) -> Any:
    return None if value is None else json.loads(json.dumps(asdict(value)))
