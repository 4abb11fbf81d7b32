"""The command ``specharness``: the Makefile's verbs.

The last line of standard output of every verb is one JSON object with ``exit``. Heavy imports wait until a verb
needs them, and ``TRITON_INTERPRET`` is decided here, before Triton is imported.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from harness import __version__
from harness.arguments import add_releases, add_target
from harness.bench_cli import add_verb as add_bench_verb
from harness.codec import encode
from harness.errors import HarnessError, UsageError
from harness.explore_cli import add_verbs as add_explore_verbs
from harness.gpu_cli import add_verbs as add_gpu_verbs
from harness.history_cli import add_verbs as add_history_verbs
from harness.live_cli import add_verb as add_live_verb
from harness.nightly_cli import add_verb as add_nightly_verb
from harness.serve_cli import add_verb as add_serve_verb

Verb = Callable[[argparse.Namespace], dict[str, Any]]
ABOVE = {2: 128, 3: 129}
"""Exit codes of usage and internal errors under ``--bisect``."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a verb; returns the exit code (0 pass, 1 fail, 2 usage, 3 internal error, 125 undecided)."""
    bisects = "--bisect" in (sys.argv[1:] if argv is None else argv)
    try:
        args = _parser().parse_args(argv)
    except UsageError as error:
        return _finish({"verb": None, **_told(error)}, bisects)
    except SystemExit as request:  # --help and --version
        return int(request.code or 0)
    # a CI that runs out of time is told what is kept
    ended = signal.signal(signal.SIGTERM, signal.default_int_handler)
    verb: Verb = args.run
    try:
        result = verb(args)
        _keep(result)
    except HarnessError as error:
        result = {"verb": args.verb, **_told(error)}
    except KeyboardInterrupt:
        result = {"verb": args.verb, "error": "interrupted", "exit": 130}
    except Exception as error:  # noqa: BLE001  the last line of output stays JSON whatever happens
        traceback.print_exc()
        print("this is a fault of specharness itself: please report it with the lines above", file=sys.stderr)
        result = {"verb": args.verb, "error": f"{type(error).__name__}: {error}", "exit": 3}
    # The last line is written whole, whoever is in a hurry; then signals mean what they meant before.
    hurry = signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    code = _finish(result, bisects)
    signal.signal(signal.SIGTERM, ended)
    signal.signal(signal.SIGINT, hurry)
    return code


def _told(error: HarnessError) -> dict[str, Any]:
    """An error for a person on stderr, and for a machine."""
    print(f"specharness: {error}", file=sys.stderr)
    return {"error": str(error), "exit": error.exit_code}


def _finish(result: dict[str, Any], bisects: bool = False) -> int:
    """The JSON line. ``git bisect run`` takes 1 to 127 for a bad commit: what says nothing of it must be above."""
    if bisects and result["exit"] in ABOVE:
        result = {**result, "exit": ABOVE[result["exit"]]}
    print(json.dumps(encode(result)), flush=True)  # as JSON has it: no NaN, no Infinity
    return int(result["exit"])


class _Parser(argparse.ArgumentParser):
    """argparse with our exit: usage errors are raised, so that the JSON line is printed all the same."""

    def error(self, message: str) -> Any:
        raise UsageError(message, hint=f"{self.prog} --help")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="specharness",
        description="Recreate, catch and name speculative-decoding faults of hybrid models.",
    )
    # `--json` may stand before the verb or behind it: behind, its absence must not undo it.
    parser.add_argument("--json", action="store_true", help="print the JSON line alone")
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB", parser_class=_Parser)

    repro = verbs.add_parser("repro", help="reproduce an issue: every scenario under every variant")
    repro.add_argument("issue", help="24881, vllm#24881 or PR24957; specharness list issues shows all")
    repro.add_argument(
        "--resume", type=Path, metavar="RUN_DIR", help="go on where an interrupted run stopped"
    )
    repro.add_argument(
        "--bisect",
        action="store_true",
        help="exit as git bisect run wants it: 0 good, 1 bad, 125 skip, 128 and more to stop",
    )
    repro.set_defaults(run=_repro)

    run = verbs.add_parser("run", help="run and judge one scenario file")
    run.add_argument("scenario", type=Path, help="a scenario as JSON, as runs and from-log write it")
    run.set_defaults(run=_run, resume=None)
    for verb in (repro, run):
        add_target(verb)

    contract = verbs.add_parser("contract", help="test the adapter of a target alone: what is wrong with it?")
    contract.add_argument("target", help="package.module:function, vllm==0.11.0, vllm:CHECKOUT or fla==0.6.0")
    contract.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    contract.add_argument(
        "--json", action="store_true", default=argparse.SUPPRESS, help="print the JSON line alone"
    )
    contract.set_defaults(run=_contract)

    log = verbs.add_parser("from-log", help="turn the scheduler dump of a dead engine into a scenario")
    log.add_argument("log", type=Path, help="the engine's log, or the part of it with SchedulerOutput(...)")
    log.add_argument("--out", type=Path, help="where to write the scenario (default: beside the log)")
    log.add_argument("--preset", choices=("peaked", "flat"), default="peaked")
    log.add_argument(
        "--json", action="store_true", default=argparse.SUPPRESS, help="print the JSON line alone"
    )
    log.set_defaults(run=_from_log)

    bisect = verbs.add_parser("bisect", help="find the release that broke or repaired what an issue shows")
    bisect.add_argument("issue", help="24881, vllm#24881 or PR24957")
    bisect.add_argument(
        "--good", required=True, metavar="RELEASE", help="a release of vLLM that is right, 0.11.0"
    )
    bisect.add_argument(
        "--bad", required=True, metavar="RELEASE", help="a release that is wrong, older or newer"
    )
    bisect.set_defaults(run=_bisect)

    table = verbs.add_parser("upstream-table", help="what released engines do: release x scenario x suspect")
    table.add_argument("--issues", action="append", metavar="ISSUE", help="only this issue; may be repeated")
    table.add_argument("--out", type=Path, metavar="FILE", help="default: reports/baselines/upstream.md")
    table.add_argument("--workers", type=int, default=1, metavar="N", help="judge N entries at a time")
    table.add_argument("--native", type=Path, metavar="RUN_DIR", help="compare with this run on a GPU")
    table.set_defaults(run=_upstream_table)
    for verb in (bisect, table):
        add_releases(verb)
    add_explore_verbs(verbs, _prepare)
    add_serve_verb(verbs, _prepare)
    add_gpu_verbs(verbs)
    add_live_verb(verbs, _prepare)
    add_bench_verb(verbs, _prepare)
    add_history_verbs(verbs, _prepare)
    add_nightly_verb(verbs, _prepare)

    listing = verbs.add_parser("list", help="list what exists")
    listing.add_argument("what", choices=("issues", "faults", "variants", "events"))
    listing.add_argument("--cases", type=Path, help="folder that holds cases/ and fixtures/")
    listing.add_argument(
        "--json", action="store_true", default=argparse.SUPPRESS, help="print the JSON line alone"
    )
    listing.set_defaults(run=_list)

    index = verbs.add_parser("index", help="the page of all runs, which every run renews")
    index.add_argument(
        "reports", nargs="?", type=Path, metavar="FOLDER", help="of run directories (default: reports/)"
    )
    index.add_argument(
        "--json", action="store_true", default=argparse.SUPPRESS, help="print the JSON line alone"
    )
    index.set_defaults(run=_index)

    doctor = verbs.add_parser("doctor", help="what is here, and what is missing for which verb")
    doctor.add_argument(
        "--json", action="store_true", default=argparse.SUPPRESS, help="print the JSON line alone"
    )
    doctor.set_defaults(run=_doctor)
    return parser


def _keep(result: dict[str, Any]) -> None:
    """Of a verb that left a run directory: its last line in there, and the page of all runs."""
    if result.get("run_dir"):
        from harness.report.index import file_outcome

        file_outcome(Path(result["run_dir"]), result)


def _index(args: argparse.Namespace) -> dict[str, Any]:
    from harness.report_verbs import index

    return index(args)


def _repro(args: argparse.Namespace) -> dict[str, Any]:
    _prepare(args)
    from harness.verbs import repro

    return repro(args)


def _contract(args: argparse.Namespace) -> dict[str, Any]:
    args.kernels, args.model = "auto", None
    _prepare(args)
    from harness.upstream_verbs import contract

    return contract(args)


def _run(args: argparse.Namespace) -> dict[str, Any]:
    _prepare(args)
    from harness.verbs import run

    return run(args)


def _bisect(args: argparse.Namespace) -> dict[str, Any]:
    _on_one_thread()
    from harness.upstream_verbs import bisection

    return bisection(args)


def _upstream_table(args: argparse.Namespace) -> dict[str, Any]:
    _on_one_thread()
    from harness.upstream_verbs import table

    return table(args)


def _from_log(args: argparse.Namespace) -> dict[str, Any]:
    from harness.verbs import from_log

    return from_log(args)


def _list(args: argparse.Namespace) -> dict[str, Any]:
    from harness.listing import listing

    return listing(args)


def _doctor(args: argparse.Namespace) -> dict[str, Any]:
    from harness import doctor

    examination = doctor.examine()
    if not args.json:
        doctor.render(examination, doctor.console())
    return {"verb": "doctor", **examination.as_dict(), "exit": examination.exit_code}


def _prepare(args: argparse.Namespace) -> None:
    """What must be decided before torch, numpy or Triton are imported: device, interpreter, threads."""
    from harness.doctor import find_gpus

    if args.device == "auto":
        args.device = "cuda" if find_gpus()[0] else "cpu"
    if args.device == "cpu" and args.kernels == "triton":
        os.environ["TRITON_INTERPRET"] = "1"
    if args.model is None:
        _on_one_thread()


def _on_one_thread() -> None:
    """A tiny model's operations are too short to share: threads would only wait for each other."""
    for threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(threads, "1")


if __name__ == "__main__":
    sys.exit(main())
