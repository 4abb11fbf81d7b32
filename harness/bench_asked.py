"""What a user asked of ``bench``, as a plan and a setting: checked before anything is started."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from harness import __version__
from harness.bench.cells import AS_SERVED, OFF, Cell
from harness.bench.data.ask import Ask
from harness.bench.data.drawn import Lengths
from harness.bench.data.workload import digest, preset
from harness.bench.history.dataset import Dataset
from harness.bench.kept import Asked, require_kept
from harness.bench.load.transport import Endpoint, choose
from harness.bench.machine import hardware
from harness.bench.plan import BRIEF, USUAL, Plan
from harness.bench.revision import Revision, revision_of
from harness.cases import find_root
from harness.errors import CaseError, UsageError
from harness.own_engine import require_none
from harness.rundir import RunDir

ENGINE_TOKENS = 1024
SPARE_TOKENS = 8


def plan_of(args: argparse.Namespace) -> Plan:
    """UsageError where arguments do not go together."""
    require_none(args)
    if args.base_url:
        choose(Endpoint(url=args.base_url))
        if args.tokenizer is None:
            raise UsageError(
                "--base-url without --tokenizer: saw no tokenizer, expected that of the served model",
                hint="--tokenizer FOLDER, with its tokenizer.json: prompts are drawn from it",
            )
    elif args.model is not None or args.tokenizer is not None:
        raise UsageError(
            "--model and --tokenizer are of a server of yours, and no --base-url names one",
            hint="--base-url URL, or --preset peaked|flat|narrow for the embedded server",
        )
    if args.compare and (
        args.base_url or len(set(args.compare)) != len(args.compare) or len(args.compare) < 2
    ):
        raise UsageError(
            f"--compare {','.join(args.compare)}: expected two different variants or more of the embedded server",
            hint="--compare before-fix,as-merged,fixed, without --base-url; the last one is the fix",
        )
    _require_filing(args)
    if args.seed < 0:
        raise UsageError(f"saw seed {args.seed}, expected 0 or more")
    load = preset(args.preset_workload) if args.preset_workload else BRIEF if args.compare else USUAL
    sizes = load.lengths
    changed = {"requests": args.requests, "concurrency": args.concurrency}
    load = replace(
        load,
        **{name: value for name, value in changed.items() if value is not None},
        lengths=Lengths(
            prompt=args.input_tokens or sizes.prompt,
            output=args.output_tokens or sizes.output,
            ratio=sizes.ratio,
        ),
    )
    return Plan(
        workload=load,
        seed=args.seed,
        rate=args.rate,
        most_in_flight=args.concurrency if args.rate is not None else None,
        as_chat=args.chat,
    )


def opened(args: argparse.Namespace) -> tuple[RunDir, Plan, argparse.Namespace]:
    """A new run directory; or with ``--resume`` the old one, its plan, and the arguments that it began with."""
    if args.resume is None:
        plan = plan_of(args)
        name = (
            "bench-compare"
            if args.compare
            else "bench"
            if args.base_url or args.variant == "fixed"
            else f"bench-{args.variant}"
        )
        setting = {key: getattr(args, key) for key in Asked.__struct_fields__}
        setting["tokenizer"] = None if args.tokenizer is None else str(args.tokenizer.resolve())
        about = {
            "name": name,
            "started": (now := datetime.now().astimezone())
            .replace(tzinfo=None)
            .isoformat(timespec="seconds"),
            "time": now.astimezone(UTC).isoformat(timespec="seconds"),
            "setting": setting,
            "plan": plan.as_dict(),
            "revision": None if (found := served(args)) is None else asdict(found),
        }
        return RunDir.create(args.reports or reports_folder(), name, about), plan, args
    run_dir = RunDir.resume(args.resume)
    try:
        kept = require_kept(run_dir.run)
    except msgspec.ValidationError as error:
        raise UsageError(
            f"{args.resume}/run.json: is not of a benchmark: {type(error).__name__} {error}",
            hint="pass --resume a directory that bench made",
        ) from None
    setting = msgspec.structs.asdict(kept.setting)
    setting["tokenizer"] = None if setting["tokenizer"] is None else Path(setting["tokenizer"])
    asked = argparse.Namespace(**vars(args) | setting)
    _require_same_code(run_dir, served(asked))
    return run_dir, kept.plan, asked


def served(args: argparse.Namespace) -> Revision | None:
    """What is measured: what ``--commit`` says, or this checkout; ``None`` where nobody knows."""
    if args.commit:
        return Revision(commit=args.commit)
    return None if args.base_url else revision_of()


def _require_filing(args: argparse.Namespace) -> None:
    """UsageError, before anything is measured, where ``--history`` could not be served in the end."""
    if args.history is None:
        return
    if args.compare:
        raise UsageError(
            "--history with --compare: expected one of them", hint="a history holds one setting's nights"
        )
    if served(args) is None:
        raise UsageError(
            "--history: nobody knows the commit of what is served, and a night without one names no suspects",
            hint='--commit "$(git rev-parse HEAD)" of the engine that is served',
        )
    Dataset(args.history).require_writable()


def _require_same_code(run_dir: RunDir, now: Revision | None) -> None:
    """One run measures one engine: half a night of yesterday's and half of today's is neither."""
    began = run_dir.run.get("revision")
    if began and now and began.get("tree") != now.tree:
        raise UsageError(
            f"{run_dir.path}: began with the code of commit {began['commit'][:12]}, and this is {now.name[:12]}",
            hint=f"git checkout {began['commit'][:12]}, or measure anew without --resume",
        )


def server_arguments(
    args: argparse.Namespace, plan: Plan, speculation: str, variant: str | None = None
) -> list[str]:
    """Of the embedded server: room for the longest request, and the same but for its drafts.

    ``variant``: left out where it is the one of ``--variant``.
    """
    room = max(ENGINE_TOKENS, plan.workload.longest + SPARE_TOKENS)
    own = {"variant": variant or args.variant, "k": args.k, "regime": args.regime, "preset": args.preset}
    own |= {"spec": speculation, "max-model-len": room}
    unusual = {"layout": (args.layout, "slots"), "graphs": (args.graphs, "on")}
    own |= {name: how for name, (how, usual) in unusual.items() if how not in (usual, None)}  # names stay
    return [part for name, value in own.items() for part in (f"--{name}", str(value))]


def fingerprint(
    args: argparse.Namespace, plan: Plan, asks: Sequence[Ask], cell: Cell, model: str
) -> Mapping[str, str]:
    """What must agree before two runs are compared."""
    server = args.base_url or " ".join(server_arguments(args, plan, cell.speculation, cell.variant))
    return {
        "hardware": hardware(),
        "model": model,
        "server": server,
        "data": digest(asks),
        "load": f"{plan.workload.concurrency} at a time"
        if plan.rate is None
        else f"{plan.rate:g} per second",
        "seed": str(plan.seed),
        "client": __version__,
    }


def key_of(args: argparse.Namespace) -> str | None:
    """The API key; UsageError where its file cannot be read or holds none."""
    if args.api_key_file is None:
        return os.environ.get("SPECHARNESS_API_KEY", "").strip() or None
    try:
        key: str = args.api_key_file.read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise UsageError(f"{args.api_key_file}: no key can be read: {error}") from None
    if not key or not key.isascii() or not key.isprintable():
        raise UsageError(f"{args.api_key_file}: expected a key, one line of visible ASCII letters")
    return key


def speculations(args: argparse.Namespace) -> tuple[str, ...]:
    """One server for each."""
    return (AS_SERVED,) if args.base_url else (OFF, args.spec)


def reports_folder() -> Path:
    """Where run directories go unless told: beside the cases, or in the current folder."""
    try:
        return find_root() / "reports"
    except CaseError:
        return Path.cwd() / "reports"
