"""The table release x scenario x suspect, as Markdown that says how it was made and what each verdict rests on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.codec import decode, encode
from harness.errors import HarnessError
from harness.rundir import RunDir
from harness.scenario import Scenario
from harness.suspects import Cell, MetadataSuspect, Search, Suspect, Tell
from harness.verdict import Verdict

RELEASES = (
    "0.10.2",
    "0.11.0",
    "0.12.0",
    "0.14.0",
    "0.16.0",
    "0.18.0",
    "0.20.2",
    "0.23.0",
    "0.26.0",
    "0.30.0",
    "0.33.0",
)
"""The releases of vLLM that the table covers when nobody names others."""

Key = tuple[str, str]  # suspect, release


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Cells by suspect and release; scenarios that a suspect leaves out, and why; what small batches show by release,
    or why they show nothing.
    """

    releases: tuple[str, ...]
    scenarios: tuple[Scenario, ...]
    cells: Mapping[Key, Mapping[str, Cell]]
    left_out: Mapping[str, Mapping[str, str]]  # suspect -> scenario -> reason
    searches: Mapping[str, Search | str]

    @property
    def decided(self) -> tuple[int, int]:
        """Cells that are PASS or FAIL, and all cells."""
        every = [cell for cells in self.cells.values() for cell in cells.values()]
        return sum(cell.verdict in (Verdict.PASS, Verdict.FAIL) for cell in every), len(every)

    @property
    def skipped(self) -> int:
        """Cells that would be there if every suspect took every scenario."""
        return len(self.releases) * sum(map(len, self.left_out.values()))


def judge_releases(
    releases: Sequence[str],
    scenarios: Sequence[Scenario],
    suspects: Iterable[Suspect],
    run_dir: RunDir,
    tell: Tell,
) -> Table:
    """Every suspect of every release; what is known is on disk at once and is not asked again on resume."""
    cells: dict[Key, Mapping[str, Cell]] = {}
    left_out: dict[str, dict[str, str]] = {}
    searches: dict[str, Search | str] = {}
    for suspect in suspects:
        left_out[suspect.name] = {s.name: reason for s in scenarios if (reason := suspect.left_out(s))}
        for release in releases:
            cells[suspect.name, release] = judge_once(release, scenarios, suspect, run_dir, tell)
            if isinstance(suspect, MetadataSuspect):
                searches[release] = _search_once(suspect, release, run_dir, tell)
    return Table(
        releases=tuple(releases),
        scenarios=tuple(scenarios),
        cells=cells,
        left_out=left_out,
        searches=searches,
    )


def judge_once(
    release: str, scenarios: Sequence[Scenario], suspect: Suspect, run_dir: RunDir, tell: Tell
) -> Mapping[str, Cell]:
    """One suspect of one release, from the run directory where it is there already."""
    saved = run_dir.cell(suspect.name, release)
    if saved is None:
        tell(f"{release}  {suspect.name}")
        saved = ask(suspect, release, scenarios)
        run_dir.record(suspect.name, release, saved)
    return {name: decode(Cell, cell, f"{release} {name}") for name, cell in saved.items()}


def ask(suspect: Suspect, release: str, scenarios: Sequence[Scenario]) -> dict[str, Any]:
    """What a run directory keeps of one suspect of one release."""
    fitting = [scenario for scenario in scenarios if not suspect.left_out(scenario)]
    return {name: encode(cell) for name, cell in suspect.judge(release, fitting).items()}


def ask_small(suspect: MetadataSuspect, release: str) -> dict[str, Any]:
    """What a run directory keeps of the small batches of a release."""
    try:
        return {"search": encode(suspect.search(release))}
    except HarnessError as error:
        return {"reason": str(error).splitlines()[0]}


def small_name(suspect: str) -> str:
    """How a run directory calls the small batches of a suspect."""
    return f"{suspect}, small batches"


def _search_once(suspect: MetadataSuspect, release: str, run_dir: RunDir, tell: Tell) -> Search | str:
    name = small_name(suspect.name)
    saved = run_dir.cell(name, release)
    if saved is None:
        tell(f"{release}  {name}")
        saved = ask_small(suspect, release)
        run_dir.record(name, release, saved)
    return decode(Search, saved["search"], release) if "search" in saved else str(saved["reason"])


def markdown(table: Table, command: str, setting: str, native: str = "") -> str:
    """The whole file; ``native`` is the section about a GPU."""
    decided, every = table.decided
    lines = [
        "# Released engines under test",
        "",
        f"Made by `{command}` ({setting}). {decided} of {every} cells are PASS or FAIL"
        f" ({100 * decided // max(every, 1)} %); {table.skipped} more are left out, with the reasons below.",
        "",
        "A suspect is a part of a released engine that runs here as it shipped; everything around it is correct. The",
        "steps that it sees are those of the scenarios of `cases/issues`.",
        "",
    ]
    lines += _newest(table)
    for suspect in dict.fromkeys(name for name, _ in table.cells):
        lines += _suspect(table, suspect)
    lines += [native] if native else []
    if table.searches:
        lines += _small(table)
    return "\n".join(lines).rstrip() + "\n"


def _suspect(table: Table, suspect: str) -> list[str]:
    left_out = table.left_out[suspect]
    names = [scenario.name for scenario in table.scenarios if scenario.name not in left_out]
    labels = {name: f"{i}" for i, name in enumerate(names, start=1)}
    lines = [f"## {suspect[0].upper()}{suspect[1:]}", ""]
    lines += [f"{label}. {name}" for name, label in labels.items()]
    lines += ["", f"| release | {' | '.join(labels.values())} |", f"| --- |{' --- |' * len(labels)}"]
    details: list[str] = []
    for release in table.releases:
        cells = table.cells[suspect, release]
        lines.append(f"| {release} | {' | '.join(short(cells[name]) for name in names)} |")
        details += [
            f"| {release} | {labels[name]} | {escaped(cells[name].summary)} |"
            for name in names
            if _told(cells[name])
        ]
    for reason in dict.fromkeys(left_out.values()):
        lines += ["", f"Left out, as {reason}: {', '.join(n for n, r in left_out.items() if r == reason)}."]
    lines += ["", "<details><summary>What each cell rests on</summary>", ""]
    lines += ["| release | scenario | first finding, or reason |", "| --- | --- | --- |", *details]
    return [*lines, "", "</details>", ""]


def short(cell: Cell) -> str:
    """A verdict with its kinds of findings."""
    return f"**FAIL** {', '.join(cell.symptoms)}" if cell.verdict is Verdict.FAIL else cell.verdict.value


def _told(cell: Cell) -> bool:
    return cell.verdict is not Verdict.PASS or "(" in cell.summary


def _newest(table: Table) -> list[str]:
    """What is found wrong in the newest release, in one place."""
    newest = table.releases[-1]
    lines = [f"## What is wrong in {newest}", ""]
    wrong = [
        f"- {suspect}, {name}: {escaped(cell.summary)}"
        for (suspect, release), cells in table.cells.items()
        if release == newest
        for name, cell in cells.items()
        if cell.verdict is Verdict.FAIL
    ]
    lines += wrong or ["- Nothing in the scenarios."]
    search = table.searches.get(newest)
    if isinstance(search, Search):
        lines += [f"- Smallest batch, as `gpu_model_runner.py` hands it over: {_all(search.smallest)}."]
        if search.second is not None:
            lines += [f"- Smallest batch, as model runner V2 hands it over: {_all(search.second)}."]
    return [*lines, ""]


def _small(table: Table) -> list[str]:
    """What every small batch shows, newest release first: there it matters most."""
    lines = [
        "## Every small batch",
        "",
        "All batches of up to 4 rows: verify rows with 0 to 3 drafts after 1 to 4 accepted tokens, whole prompts and",
        "pieces, rows of k + 1 tokens in captured graphs that are larger. For each kind of finding the smallest batch.",
        "`n` are the drafts in a row, `a` the tokens that its previous step committed, slots 1 to k + 1 are those of",
        "the first request. The findings are those of the values that the release's own runner hands over.",
        "",
    ]
    for release in reversed(table.releases):
        search = table.searches[release]
        lines += [f"### {release}", ""]
        lines += [f"UNSUPPORTED: {search}", ""] if isinstance(search, str) else _searched(search)
    return lines


def _searched(search: Search) -> list[str]:
    lines = [] if search.smallest else [f"Nothing is wrong in {search.tried:,} batches."]
    lines += [
        f"- **{kind}** in {search.counts[kind]:,} of {search.tried:,} batches, first in {escaped(text)}"
        for kind, text in search.smallest.items()
    ]
    other = ", ".join(f"{kind} in {count:,}" for kind, count in search.other.items()) or "nothing is wrong"
    lines += ["", "Its runner says:", "", *(f"- {what}: {line}" for what, line in search.sources.items()), ""]
    lines += [
        f"With {-1 - search.zero_draft} for rows without drafts instead: {other},",
        f"of {search.fewer:,} batches of up to 3 rows.",
    ]
    if search.second is not None:
        lines += ["", f"As its model runner V2 hands over those {search.fewer:,}: {_all(search.second)}.", ""]
        lines += [f"- {what}: {line}" for what, line in search.second_sources.items()]
    return [
        *lines,
        "",
        f"Typed again, not the release's own: {', '.join(f'`{n}`' for n in search.retyped)}.",
        "",
    ]


def _all(smallest: Mapping[str, str]) -> str:
    if not smallest:
        return "nothing is wrong"
    return "; ".join(f"**{kind}**, first in {escaped(text)}" for kind, text in smallest.items())


def escaped(text: str) -> str:
    """Text that may stand in a table."""
    return text.replace("|", "\\|") if "`" not in text else text
