"""What the verb ``live`` does once its arguments are known."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from harness.cases import find_root
from harness.codec import encode
from harness.console import console_of
from harness.errors import CaseError, TargetError, UsageError
from harness.exchange import Offer
from harness.live.audit import Audit, judge
from harness.live.finding import Finding
from harness.live.judges import Judges
from harness.live.own_server import own_server
from harness.live.run import Audited, listen
from harness.live.subjects import legs
from harness.live.transcript import Transcript, read
from harness.models.tiny import default_cache, ensure
from harness.own_engine import require_none
from harness.report.audit import page, screen
from harness.rundir import RunDir
from harness.targets.pages import root_of
from harness.verdict import Verdict

QUOTED = re.compile(r"""'[^']*'|"[^"]*\"""")

STATES = Finding(
    check="states",
    verdict=Verdict.UNSUPPORTED,
    told="no API shows recurrent states: make live-vllm records those of a vLLM, make repro those of our engine",
)


def live(args: argparse.Namespace) -> dict[str, Any]:
    """Audit a server; red where it is wrong."""
    console = console_of(args)
    _require_together(args)
    if args.judge is not None:
        return _judged(console, args, read(args.judge), _judges(args), None, None)
    judges, key = _judges(args), _key(args)  # what cannot be read is said before anything is asked
    for url in filter(None, (args.base_url, args.reference_url)):
        root_of(url)
    run_dir = _run_dir(args)
    path = run_dir.path / "transcript.jsonl"
    try:
        with _server(args, run_dir, key) as audited:
            transcript = _heard(args, audited, path, console)
        other = _reference(args, audited, run_dir, console)
        return _judged(console, args, transcript, judges, other, run_dir)
    except KeyboardInterrupt:
        if path.exists():
            print(f"interrupted: {_kept(path, args.redact)}", file=sys.stderr)
        raise


def _require_together(args: argparse.Namespace) -> None:
    """UsageError for what the server that is asked would not hear of."""
    require_none(args)
    if args.judge is None and args.base_url is None and (args.model or args.api_key_file):
        flag = "--model" if args.model else "--api-key-file"
        raise UsageError(
            f"{flag}: is of a server of yours, and no --base-url names one",
            hint="--base-url URL, or --preset peaked|flat|narrow for the embedded server",
        )


def _kept(path: Path, redacted: bool) -> str:
    """What is left of an audit that came to no verdict."""
    if redacted:
        return f"what happened until then, without what was said, is in {path}"
    return f"what was heard is judged by: specharness live --judge {path}"


def _reference(
    args: argparse.Namespace, audited: Audited, run_dir: RunDir, console: Console
) -> Transcript | None:
    """What the second server said. Where it is not there the first one is judged all the same, without it."""
    if not args.reference_url:
        return None
    reference = replace(audited, url=args.reference_url, model=None, log=list)
    try:
        return _heard(args, reference, run_dir.path / "reference.jsonl", console)
    except TargetError as error:
        print(f"specharness: --reference-url: {error}", file=sys.stderr)
        return Transcript(offer=Offer(url=args.reference_url, model=""))


def _heard(args: argparse.Namespace, audited: Audited, path: Path, console: Console) -> Transcript:
    """What a server said, in whole or as far as it came."""
    with console.status("") as status:

        def tell(line: str) -> None:
            status.update(Text(line))
            if not console.is_terminal:
                console.print(line, highlight=False, soft_wrap=True)

        return listen(
            audited,
            lambda offer: legs(offer, args.seed, crowds=args.crowds, max_tokens=args.max_tokens),
            path,
            tell,
            redacts=args.redact,
        )


@contextmanager
def _server(args: argparse.Namespace, run_dir: RunDir, key: str | None) -> Iterator[Audited]:
    """The user's, or ours for as long as it is asked."""
    pace = (args.budget, args.rate)
    if args.base_url:
        yield Audited(url=args.base_url, model=args.model, api_key=key, pace=pace, patience=args.patience)
        return
    arguments = ["--variant", args.variant, "--spec", args.spec, "--k", str(args.k), "--regime", args.regime]
    arguments += [
        "--preset",
        args.preset,
        "--layout",
        args.layout,
        *(["--prefix-caching"] if args.prefix_caching else []),
    ]
    with own_server(arguments, run_dir.path / "server.log") as own:
        yield Audited(url=own.url, model=own.model, pace=pace, patience=args.patience, log=own.log_tail)


def _judges(args: argparse.Namespace) -> Judges:
    """Of the tokenizer that was named; of ours where the server is ours."""
    if args.tokenizer is not None or args.base_url:
        return Judges(args.tokenizer)
    return Judges(ensure(args.preset, cache=default_cache(os.environ)))


def _key(args: argparse.Namespace) -> str | None:
    if args.api_key_file is None:
        key, where = os.environ.get("SPECHARNESS_API_KEY", "").strip(), "$SPECHARNESS_API_KEY"
        if not key:
            return None
    else:
        where = str(args.api_key_file)
        try:
            key = args.api_key_file.read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is no text"
            raise UsageError(f"{where}: no key can be read: {why}", hint="--api-key-file FILE") from None
    if not key.isascii() or not key.isprintable() or " " in key or not key:
        raise UsageError(
            f"{where}: expected a key, one line of visible ASCII letters", hint="--api-key-file FILE"
        )
    return key


def _run_dir(args: argparse.Namespace) -> RunDir:
    try:
        root = find_root()
    except CaseError:
        root = Path.cwd()
    name = "live" if args.base_url else f"live-{args.variant}"
    return RunDir.create(
        args.reports or root / "reports",
        name,
        {"name": name, "started": datetime.now().isoformat(timespec="seconds"), "setting": _setting(args)},
    )


def _setting(args: argparse.Namespace) -> dict[str, Any]:
    names = ("seed", "crowds", "max_tokens", "budget", "rate")
    own = () if args.base_url else ("variant", "spec", "k", "regime", "prefix_caching", "layout", "preset")
    return {name: getattr(args, name) for name in (*names, *own)}


def _judged(
    console: Console,
    args: argparse.Namespace,
    transcript: Transcript,
    judges: Judges,
    other: Transcript | None,
    run_dir: RunDir | None,
) -> dict[str, Any]:
    if args.tokenizer is not None and judges.are_strange_to(transcript.generated):
        heard = args.judge or (run_dir and run_dir.path / "transcript.jsonl")
        raise UsageError(
            f"{args.tokenizer}: its tokens say nowhere what {transcript.offer.model} says: is it another model's?",
            hint="make live" if args.redact else f"specharness live --judge {heard} --tokenizer FOLDER",
        )
    if args.redact:
        transcript = replace(transcript, log=())  # its words would stand in what is found
    audit = judge(transcript, judges, other)
    audit = replace(audit, findings=(*audit.findings, STATES))
    if args.redact:
        audit = _redacted(transcript, audit)
    for line in screen(audit, transcript):
        console.print(line, soft_wrap=True, highlight=False)
    result = {
        "verdict": audit.verdict.value,
        "requests": len(transcript.asked),
        "findings": encode(audit.findings),
    }
    if run_dir is not None:
        run_dir.run["result"] = result
        run_dir.save()
        run_dir.write_text("index.html", page(run_dir.run["name"], audit, transcript, _setting(args)))
        console.print(f"report: {run_dir.path / 'index.html'}", soft_wrap=True, highlight=False)
    return {
        "verb": "live",
        **result,
        "run_dir": None if run_dir is None else str(run_dir.path),
        "exit": audit.verdict.exit_code,
    }


def _redacted(transcript: Transcript, audit: Audit) -> Audit:
    """Findings without examples, without what the server said, and without what they quote."""
    words = {e.answer.detail for e in transcript.exchanges.values()} | {s.said for s in transcript.snapshots}

    def silent(told: str) -> str:
        for said in sorted(filter(None, words), key=len, reverse=True):
            told = told.replace(said, "...")
        return QUOTED.sub("...", told)

    def redact(finding: Finding) -> Finding:
        return replace(finding, told=silent(finding.told), cause=silent(finding.cause), worst="")

    return replace(audit, findings=tuple(map(redact, audit.findings)))
