"""Constraints for answers: bundled schemas, folders of them, a mix of guided and free, and never the same twice."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from random import Random
from typing import Any

from harness.bench.data.ask import Ask, Guide, GuideKind
from harness.errors import UsageError

_VLLM = {"json": GuideKind.JSON_SCHEMA} | {kind.value: kind for kind in GuideKind}


def bundled(*names: str) -> list[Guide]:
    """The schemas that come with the harness, or those named, by name."""
    shapes = {
        entry.name.removesuffix(".json"): entry
        for entry in (files("harness.bench.data") / "shapes").iterdir()
        if entry.name.endswith(".json")
    }
    if strange := [name for name in names if name not in shapes]:
        raise UsageError(f"saw schema {strange[0]!r}, expected one of {', '.join(sorted(shapes))}")
    return [
        schema_guide(name, json.loads(shapes[name].read_text(encoding="utf-8")), "bundled")
        for name in names or sorted(shapes)
    ]


def schema_guide(name: str, schema: Any, family: str = "") -> Guide:
    """A JSON schema as a guide; its title and description say what to write."""
    words = [schema.get("title"), schema.get("description")] if isinstance(schema, dict) else []
    task = ": ".join(word for word in words if isinstance(word, str))
    return Guide(name=name, kind=GuideKind.JSON_SCHEMA, rule=schema, family=family, task=task)


def schema_folder(folder: Path) -> list[Guide]:
    """A folder of schemas as JSONSchemaBench lays them out: ``GROUP/NAME.json`` (one schema in each), or
    ``GROUP.jsonl`` and ``*.parquet`` with columns ``json_schema`` and ``unique_id``. The group is the family.

    Raises:
        UsageError: no schema in it, or a file that holds none.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder}: saw no folder, expected schemas in JSONSchemaBench's layout")
    found = []
    for path in sorted(folder.rglob("*")):
        family = path.parent.name if path.parent != folder else path.stem
        if path.suffix == ".json":
            found.append(
                schema_guide(str(path.relative_to(folder))[:-5], _schema(path.read_bytes(), path), family)
            )
        elif path.suffix in (".jsonl", ".parquet"):
            entries = _parquet(path) if path.suffix == ".parquet" else _lines(path)
            for place, row in enumerate(entries):
                name = f"{family}/{row.get('unique_id', place)}"
                found.append(schema_guide(name, _schema(row.get("json_schema"), path), family))
    if not found:
        raise UsageError(f"{folder}: saw no schema, expected GROUP/NAME.json, or GROUP.jsonl or .parquet")
    return found


def guide_from(value: Any, name: str, where: str) -> Guide:
    """``{"name", "kind", "rule"}``, or one of vLLM's ``{"json" | "regex" | "choice" | "grammar": rule}``."""
    if isinstance(value, Mapping):
        kind, rule = value.get("kind"), value.get("rule")
        if kind is None and len(value) == 1:
            ((kind, rule),) = value.items()
        if isinstance(kind, str) and kind in _VLLM:
            ready = tuple(rule) if isinstance(rule, list) else rule
            try:
                return Guide(name=str(value.get("name", name)), kind=_VLLM[kind], rule=ready)
            except UsageError as error:
                raise UsageError(f"{where}: {error.args[0]}") from None
    raise UsageError(
        f"{where}: saw guide {str(value)[:60]!r}, expected one of {', '.join(_VLLM)} with its rule"
    )


def guided(
    asks: Sequence[Ask], guides: Sequence[Guide], dice: Random, *, share: float = 1.0, unique: bool = False
) -> list[Ask]:
    """Give ``share`` of the requests a guide, in turn; exactly that share (rounded), chosen at random, order kept.

    Prompts stay as they are, so a guided run and a free one differ in nothing else; only ``ignore_eos`` goes, for the
    grammar says where an answer ends. ``unique``: no two guides are the same text, so that no cache of compiled
    grammars helps.
    """
    if not 0 <= share <= 1 or not guides:
        raise UsageError(f"saw share {share} of {len(guides)} guides, expected 0 to 1, and a guide")
    chosen = sorted(dice.sample(range(len(asks)), round(share * len(asks))))
    given = {place: guides[turn % len(guides)] for turn, place in enumerate(chosen)}
    return [
        replace(
            ask,
            guide=made_unique(given[place], ask.id) if unique else given[place],
            ignore_eos=False,
        )
        if place in given
        else ask
        for place, ask in enumerate(asks)
    ]


def made_unique(guide: Guide, mark: str) -> Guide:
    """The same language but for one thing that nobody writes, under a name of its own in the family of the old one."""
    word = "only-" + "".join(char if char.isalnum() else "-" for char in mark)
    rule: Any
    if guide.kind is GuideKind.JSON_SCHEMA and isinstance(guide.rule, Mapping):
        rule = dict(guide.rule)
        if isinstance(rule.get("properties"), Mapping):
            rule["properties"] = {**rule["properties"], word: {"type": "null"}}
        else:
            rule["$comment"] = word
    elif guide.kind is GuideKind.REGEX:
        rule = f"(?:{guide.rule})|{word}"
    elif guide.kind is GuideKind.CHOICE:
        rule = (*guide.rule, word)
    elif guide.kind is GuideKind.GRAMMAR:
        rule = f'{guide.rule}\nonly{sum(word.encode())} ::= "{word}"\n'
    else:
        rule = guide.rule
    return replace(guide, name=f"{guide.name}#{mark}", rule=rule, family=guide.family or guide.name)


def _schema(content: Any, path: Path) -> Any:
    try:
        schema = json.loads(content) if isinstance(content, (str, bytes)) else content
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: saw no JSON: {error}") from None
    if not isinstance(schema, (dict, bool)):
        raise UsageError(f"{path}: saw {type(schema).__name__}, expected a schema")
    return schema


def _lines(path: Path) -> list[Mapping[str, Any]]:
    entries = [_schema(line, path) for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
    return [entry if isinstance(entry, dict) else {} for entry in entries]


def _parquet(path: Path) -> list[Mapping[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        rows: list[Mapping[str, Any]] = pq.ParquetFile(path).read().to_pylist()
    except (OSError, pa.ArrowInvalid) as error:
        raise UsageError(f"{path}: cannot be read as Parquet: {error}") from None
    return rows
