"""What the verbs ``matrix`` and ``explore`` do once their arguments are known."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from harness.cases import REFERENCE_VARIANT
from harness.engine.faults import faults as all_faults
from harness.engine.variants import VARIANTS, variant
from harness.explore.campaign import Job
from harness.explore.coverage import Coverage
from harness.explore.export import write_json, write_program
from harness.explore.generate import GENERATED
from harness.explore.matrix import Declared, Matrix, Row
from harness.explore.shrink import Found
from harness.explore.table import empty_pairs, page, terminal
from harness.explore.workbench import Record
from harness.explore_session import Session
from harness.layouts import require_in
from harness.rundir import slug
from harness.scenario import Scenario
from harness.verdict import Verdict

CLEAN_CHUNK = 25
EXPLORED_CHUNK = 10
"""Scenarios of one job: few enough that workers end together."""
KILLS = 5
"""Scenarios that kill a fault, after which no more are drawn for it."""
MOST_GENERATED = 1000
"""Generated scenarios that a fault has outlived when it counts as a survivor."""
MOST_SHRUNK = 5
"""Different mistakes that one exploration makes small."""


def matrix(args: argparse.Namespace) -> dict[str, Any]:
    """Every fault on kept, shipped and generated scenarios; the correct engine on all of them and many more."""
    for name in args.fault or ():
        variant(name)  # a wrong name must not cost a run
    require_in(args.layout, args.fault or ())
    session = Session(args, "matrix-quick" if args.quick else "matrix")  # neither is resumed as the other
    declared = [one for one in _declared(args.layout) if not args.fault or one.name in args.fault]
    kept, shipped = session.kept(), session.shipped()
    files = {one.name: one for one in (*kept, *(one for _, one in shipped.values()))}
    jobs = [*_clean_jobs(session, list(files.values())), *_fault_jobs(session, declared, kept, shipped)]
    done = dict(session.run(jobs, "matrix", len(jobs)))
    records: dict[str, list[Record]] = {}
    for job in jobs:
        records.setdefault(job.variant, []).extend(done[job.key])
    clean = records[REFERENCE_VARIANT]
    found = Matrix(
        rows=[Row(declared=one, records=records[one.name]) for one in declared],
        clean=clean,
        generated=_distinct(session, clean),
    )
    coverage = Coverage.of(clean)
    session.console.print(terminal(found))
    for line in _remarks(found, coverage):
        session.console.print(line, highlight=False, soft_wrap=True)
    session.run_dir.write_text("matrix.md", page(found, coverage, _command(args)))
    if args.keep:
        _keep_kills(session, found, files)
    return session.finish({"verb": "matrix", **found.summary()})


def explore(args: argparse.Namespace) -> dict[str, Any]:
    """Draw scenarios for a while: the correct engine must pass them all, a fault must be found."""
    variant(args.fault)
    require_in(args.layout, [args.fault])
    session = Session(args, f"explore-{slug(args.fault)}")
    hunted = args.fault != REFERENCE_VARIANT
    end = time.monotonic() + args.seconds
    killed: list[Record] = []

    def jobs() -> Iterator[Job]:
        for start in count(0, EXPLORED_CHUNK):
            if time.monotonic() > end or (hunted and killed):
                return
            yield session.job(args.fault, range(start, start + EXPLORED_CHUNK), enough=1 if hunted else None)

    records: list[Record] = []
    for _, more in session.run(jobs(), f"explore {args.fault}"):
        records += more
        killed += [record for record in more if record.killed]
    mistakes: dict[tuple[str | None, ...], Record] = {}
    for record in sorted(killed, key=_number)[: 1 if hunted else None]:
        mistakes.setdefault(record.mistake, record)
    first = [
        Found(setting=session.setting, variant=args.fault, scenario=session.drawn(_number(r)), record=r)
        for r in list(mistakes.values())[:MOST_SHRUNK]
    ]
    files = [path for small in session.shrink(first) for path in _export(session, small)]
    coverage = Coverage.of(record for record in records if record.observed)
    for line in [*(f"found: {one.record.scenario}: {_told(one.record)}" for one in first), *map(str, files)]:
        session.console.print(line, highlight=False, soft_wrap=True)
    return session.finish(
        {
            "verb": "explore",
            "fault": args.fault,
            "seed": args.seed,
            "scenarios": len(records),
            "failures": len(killed),
            "undecided": sum(record.verdict is Verdict.INCONCLUSIVE for record in records),
            "found": first[0].record.scenario if first else None,
            "mistakes": [_told(record) for record in mistakes.values()],
            "files": files,
            "events": coverage.events,
            "exit": int(bool(killed) != hunted) if records else 125,
        }
    )


def _command(args: argparse.Namespace) -> str:
    """What makes this matrix again."""
    usual = {
        "seed": 0,
        "preset": "narrow",
        "kernels": "auto",
        "device": "auto",
        "graphs": "on",
        "layout": "slots",
        "clean": 1020,
    }
    said = [
        f"--{name} {getattr(args, name)}" for name, value in usual.items() if getattr(args, name) != value
    ]
    said += [*(f"--fault {name}" for name in args.fault or ()), *(["--quick"] if args.quick else [])]
    return f"make matrix ARGS='{' '.join(said)}'" if said else "make matrix"


def _declared(layout: str) -> list[Declared]:
    """All faults that can act in this layout, as the catalogue has them, and the variants that are no single fault."""
    faults = [
        Declared(
            name=one.name, row=one.row, cause=one.cause, kind=one.kind, tensor=one.tensor, layer=one.layer
        )
        for one in all_faults().values()
        if one.layout in (None, layout)
    ]
    others = (name for name in VARIANTS if name != REFERENCE_VARIANT)
    return [*faults, *(Declared(name=name, counted=False) for name in others)]


def _clean_jobs(session: Session, given: Sequence[Scenario]) -> Iterator[Job]:
    for start in range(0, max(session.args.clean, 1), CLEAN_CHUNK):
        chunk = range(start, min(start + CLEAN_CHUNK, session.args.clean))
        yield session.job(REFERENCE_VARIANT, chunk, given=() if start else tuple(given))


def _fault_jobs(
    session: Session,
    declared: Sequence[Declared],
    kept: Sequence[Scenario],
    shipped: Mapping[str, tuple[tuple[str, ...], Scenario]],
) -> Iterator[Job]:
    """All kept scenarios, so that equal faults can be told from different ones; then what names the fault; then more
    and more that is drawn. ``--quick``: its own kept scenario, what names it, and more until one kills it."""
    quick = session.args.quick
    for one in declared:
        named = (scenario for variants, scenario in shipped.values() if one.name in variants)
        mine = [scenario for scenario in kept if not quick or scenario.name == one.name]
        chunk = range(MOST_GENERATED if one.counted else 0)
        yield session.job(one.name, chunk, given=(*mine, *named), enough=1 if quick else KILLS)


def _distinct(session: Session, clean: Sequence[Record]) -> int:
    """Generated scenarios that the correct engine passed, each another."""
    passed = [r for r in clean if r.scenario.startswith(GENERATED) and not r.verdict.exit_code]
    return len({replace(session.drawn(_number(r)), name="").to_json() for r in passed})


def _remarks(found: Matrix, coverage: Coverage) -> Iterator[str]:
    for record in found.false_alarms:
        yield f"false alarm: {record.scenario}: {_told(record)}"
    for record in found.undecided:
        yield f"undecided: {record.scenario}"
    for name, twin in found.twins.items():
        yield f"{name} does what {twin} does, and is not counted"
    for pair in empty_pairs(coverage):
        yield f"never together in one run: {pair}"


def _keep_kills(session: Session, found: Matrix, files: Mapping[str, Scenario]) -> None:
    """For every fault that its kept scenario does not kill: its fastest kill, made small."""
    chosen = []
    for row in found.faults:
        if row.kills and not any(kill.scenario == row.declared.name for kill in row.kills):
            kill = min(row.kills, key=lambda kill: (not row.names_it(kill), kill.steps, kill.tokens))
            drawn = kill.scenario.startswith(GENERATED)
            scenario = session.drawn(_number(kill)) if drawn else files[kill.scenario]
            chosen.append(
                Found(setting=session.setting, variant=row.declared.name, scenario=scenario, record=kill)
            )
    session.shelf.mkdir(parents=True, exist_ok=True)
    for small in session.shrink(chosen):
        named = replace(small.scenario, name=small.variant)
        path = write_json(named, session.shelf / f"{small.variant}.json")
        session.console.print(f"kept: {path}: {_told(small.record)}", highlight=False, soft_wrap=True)


def _export(session: Session, small: Found) -> list[str]:
    """The files of one finding, in the run directory and perhaps on the shelf."""
    hunted = small.variant != REFERENCE_VARIANT
    stem = slug(small.variant if hunted else "-".join(filter(None, ("false alarm", *small.record.mistake))))
    named = replace(small, scenario=replace(small.scenario, name=stem))
    folders = [session.run_dir.path, *([session.shelf] if session.args.keep else [])]
    files = [write_json(named.scenario, folder / f"{stem}.json") for folder in folders]
    files.append(write_program(named, session.run_dir.path / f"found_{stem.replace('-', '_')}.py"))
    return [str(path) for path in files]


def _number(record: Record) -> int:
    """Of a generated scenario, in the sequence of its seed."""
    return int(record.scenario.rpartition("/")[2])


def _told(record: Record) -> str:
    return f"{record.first.told} ({record.first.cause})" if record.first else record.verdict.value
