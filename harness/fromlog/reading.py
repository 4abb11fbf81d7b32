"""Finding the dump in a log and reading its rows.

    Dumping scheduler output for model execution: SchedulerOutput(scheduled_new_reqs=[NewRequestData(req_id=...)],
    scheduled_cached_reqs=CachedRequestData(req_ids=[...], ..., num_computed_tokens=[...]),
    num_scheduled_tokens={id: 3, ...}, total_num_scheduled_tokens=44,
    scheduled_spec_decode_tokens={id: [7, 8], ...}, ...)

What differs between versions: ids are quoted in lists and bare as keys; mappings come in any order; 0.9 prints one
``CachedRequestData(req_id=...)`` a request, and early on a literal ``'{obj}'`` for every quoted text; newer ones say
only whether any request is guided, and print drafts as -1 where they are still on the device. So named fields are
looked for, and only those are read: what stands between them (arrays, elided values, schemas) may be anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from harness.errors import UsageError
from harness.fromlog.dump import END_TOKENS, Dump, DumpedRow

MOST_BYTES = 256 << 20

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_OUTER = re.compile(  # what containers and vLLM's processes put before every line
    r"(?:> ?)?(?:\d{4}-\d\d-\d\dT\S+ (?:stdout|stderr) [FP] )?(?:[\w.-]+ \| )?(?:\([\w .-]+ pid=\d+\) ?)?"
)
_STAMP = re.compile(
    r".{0,200}?\b(?:CRITICAL|ERROR|WARNING|INFO|DEBUG) "
    r"\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)? \[(?P<source>[^\]\s]+):\d+\]"
)
_START = re.compile(r"SchedulerOutput\(\s*scheduled_new_reqs\s*=")
_COUNT = re.compile(
    r"""\s*(?P<quote>['"]?)(?P<id>[^,{}\[\]'"]+?)(?P=quote)\s*:\s*(?P<value>\d{1,9})\s*(?:,|$)"""
)
_DRAFTS = re.compile(
    r"""\s*(?P<quote>['"]?)(?P<id>[^,{}\[\]'"]+?)(?P=quote)\s*:\s*"""
    r"""(?:array\(|tensor\()?\[(?P<value>(?:-?\d{1,9}(?:, ?|(?=\])))*)\](?:,\s*dtype=\w+)?\)?\s*(?:,|$)"""
)


def read_dump(path: Path) -> Dump:
    """The first scheduler dump in a log; UsageError says what is missing."""
    text = "".join(_messages(_read(path)))
    starts = [match.start() for match in _START.finditer(text)]
    if not starts:
        _refuse(path, "saw no scheduler dump, expected a line with SchedulerOutput(scheduled_new_reqs=...)")
    text = text[: starts[1] if len(starts) > 1 else None]
    dump = text[starts[0] :].partition("Dumping scheduler stats")[0]
    rows = tuple(_rows(path, dump))
    version = re.search(r"V1 LLM engine \((v[\w.+-]{1,60})\)", text)
    named = re.search(r"""\bnum_spec(?:ulative)?_tokens(?:_to_schedule)?['"]?\s*[=:]\s*(\d{1,3})\b""", text)
    stops = re.findall(r"\bstop_token_ids=\[([\d, ]{1,200})\]", dump)
    return Dump(
        source=path.stem,
        rows=rows,
        version=version[1] if version else None,
        speculative_tokens=int(named[1]) if named else None,
        end_tokens=END_TOKENS.union(*(_numbers(ids) for ids in stops)),
        dumps=len(starts),
    )


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(
            f"{path}: cannot be read: {reason}", hint="specharness from-log LOG_OF_THE_ENGINE"
        ) from None
    if len(data) > MOST_BYTES:
        _refuse(path, f"saw more than {MOST_BYTES >> 20} MiB, expected the part of a log around the dump")
    if b"\0" in data:
        _refuse(path, "saw a binary file, expected a log as text (unpack it if it is compressed)")
    return data.decode("utf-8", errors="replace")


def _messages(text: str) -> Iterator[str]:
    """The lines without what loggers put before them; lines of other sources are left out, for they may cut in."""
    for line in re.split(r"\r\n|\n|\r", re.sub(r"[ \t]+", " ", _ANSI.sub("", text))):
        if stamp := _STAMP.match(line):
            if "dump_input" in stamp["source"]:
                yield line[stamp.end() :].strip()
        else:
            yield line[_OUTER.match(line).end() :].strip()  # type: ignore[union-attr]


def _rows(path: Path, dump: str) -> Iterator[DumpedRow]:
    scheduled = {
        match["id"]: int(match["value"]) for match in _items(path, dump, "num_scheduled_tokens", _COUNT)
    }
    drafts = {
        match["id"]: _numbers(match["value"])
        for match in _items(path, dump, "scheduled_spec_decode_tokens", _DRAFTS)
    }
    total = re.search(r"\btotal_num_scheduled_tokens=(\d{1,9})", dump)
    if not scheduled or not all(scheduled.values()):
        _refuse(path, "saw a step that schedules no tokens, expected at least one a request")
    if total and int(total[1]) != sum(scheduled.values()):
        seen = f"rows of {sum(scheduled.values())} tokens and total_num_scheduled_tokens={total[1]}"
        _refuse(path, f"saw {seen}, expected them to agree: part of the dump is lost")
    if strangers := sorted(drafts.keys() - scheduled.keys()):
        _refuse(path, f"saw drafts of {strangers[0]}, expected it among num_scheduled_tokens")
    head = dump[: re.search(r"\bnum_scheduled_tokens=", dump).start()]  # type: ignore[union-attr]
    new, _, cached = head.partition("scheduled_cached_reqs=")
    fresh, running = dict(_requests(new)), dict(_requests(cached))
    guided = _guided(dump)
    order = {name: i for i, name in enumerate([*running, *fresh])}
    for name in sorted(scheduled, key=lambda name: order.get(name, -1)):
        count, mine = scheduled[name], drafts.get(name, ())
        if count <= len(mine):
            _refuse(
                path,
                f"saw {name} with {count} tokens and {len(mine)} drafts, expected more tokens than drafts",
            )
        yield DumpedRow(
            request=name,
            scheduled=count,
            drafts=mine,
            computed={**running, **fresh}.get(name),
            guided=guided if isinstance(guided, bool) or guided is None else name in guided,
            prompt=name in fresh or count > len(mine) + 1,
        )


def _items(path: Path, dump: str, field: str, item: re.Pattern[str]) -> Iterator[re.Match[str]]:
    """The entries of ``field={...}``; every character has to belong to one."""
    opened = re.search(rf"\b{field}=\{{", dump)
    if not opened:
        _refuse(path, f"the dump ends before {field}={{...}} or lacks it")
    body, closed, _ = dump[opened.end() :].partition("}")
    if not closed:
        _refuse(path, f"the dump ends inside {field}={{...}}")
    at = 0
    while body[at:].strip():
        match = item.match(body, at)
        if not match:
            elided = " (values were left out of it)" if "..." in body[at:] else ""
            _refuse(
                path, f"saw {body[at : at + 60]!r} in {field}, expected request ids and their values{elided}"
            )
        at = match.end()
        yield match


def _requests(text: str) -> Iterator[tuple[str, int | None]]:
    """Ids and computed tokens of new or cached requests: one object for all, or one a request."""
    if several := re.search(r"\breq_ids=\[([^\]]*)\]", text):
        names = [name.strip().strip("'\"") for name in several[1].split(",")]
        counts = re.search(r"\bnum_computed_tokens=\[([\d, ]*)\]", text)
        known = _numbers(counts[1]) if counts else ()
        yield from zip(names, known if len(known) == len(names) else [None] * len(names), strict=True)
    for one in re.split(r"\b(?:New|Cached)RequestData\(", text)[1:]:
        name = re.match(r"""\s*req_id=['"]?([^,'"]+)""", one)
        count = re.search(r"\bnum_computed_tokens=(\d{1,9})", one)
        if name:
            yield name[1], int(count[1]) if count else None


def _guided(dump: str) -> bool | set[str] | None:
    """Ids of the guided requests; False: there is none; None: unknown."""
    if listed := re.search(r"\bstructured_output_request_ids=[\[{]([^\]}]*)[\]}]", dump):
        return {re.sub(r":\s*\d+$", "", entry.strip()).strip("'\"") for entry in listed[1].split(",")}
    return False if re.search(r"\bhas_structured_output_requests=[fF]alse", dump) else None


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"-?\d{1,9}", text))


def _refuse(path: Path, what: str) -> NoReturn:
    raise UsageError(
        f"{path}: {what}",
        hint="pass the engine's log with the whole line 'Dumping scheduler output for model execution'",
    )
