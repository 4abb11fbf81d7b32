"""Arguments of the verbs ``compare``, ``calibrate``, ``gate`` and ``history``."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

Prepare = Callable[[argparse.Namespace], None]
Verb = Callable[[argparse.Namespace], dict[str, Any]]
RUN = "a result-CELL.json, a run directory of bench, or a folder of such directories"


def add_verbs(verbs: Any, prepare: Prepare) -> None:
    """Add them to the command line; ``prepare`` is what must happen before heavy imports."""

    def comparing(name: str) -> Verb:
        def verb(args: argparse.Namespace) -> dict[str, Any]:
            prepare(args)
            from harness import compare_verbs

            found: dict[str, Any] = getattr(compare_verbs, name)(args)
            return found

        return verb

    def gate(args: argparse.Namespace) -> dict[str, Any]:
        prepare(args)
        from harness.gate_verbs import gate

        return gate(args)

    parser = verbs.add_parser("compare", help="hold benchmark runs against others: verdict and interval")
    parser.add_argument("baseline", type=Path, metavar="A", help=f"{RUN}")
    parser.add_argument("candidate", type=Path, metavar="B", help="the same")
    more = {"type": Path, "action": "append", "default": [], "metavar": "RUN"}
    parser.add_argument("--more-a", **more, help="one more run of A's; may be repeated")
    parser.add_argument("--more-b", **more, help="one more run of B's; may be repeated")
    parser.add_argument("--cell", metavar="NAME", help="only this cell, such as free-mtp")
    parser.add_argument(
        "--across",
        action="append",
        default=[],
        metavar="KEY",
        help="a key of the fingerprint that is meant to differ; may be repeated",
    )
    parser.add_argument("--page", type=Path, metavar="FILE", help="write one HTML file with every interval")
    _judged(parser)
    _common(parser, comparing("compare"))

    parser = verbs.add_parser("calibrate", help="how much benchmark runs move when nothing changes")
    parser.add_argument(
        "runs", type=Path, nargs="+", metavar="RUN", help=f"{RUN}: four runs of each cell at least"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("calibration"), metavar="FOLDER", help="gets CELL.json (calibration)"
    )
    _design(parser)
    _common(parser, comparing("calibrate"))

    parser = verbs.add_parser("gate", help="did tonight's benchmark get worse? against past nights")
    parser.add_argument(
        "tonight",
        type=Path,
        nargs="*",
        metavar="RUN",
        help=f"{RUN} (default: the newest night of the history)",
    )
    parser.add_argument("--history", required=True, metavar="URL", help="a folder, or any fsspec URL")
    parser.add_argument("--series", default="nightly", metavar="NAME", help="of the history (nightly)")
    parser.add_argument(
        "--measure",
        action="store_true",
        help="where nights leave it open: measure the benchmark again, in turn with the last good commit",
    )
    parser.add_argument("--baseline", metavar="SHA", help="measure against this commit (the last good one)")
    parser.add_argument(
        "--pairs", type=_positive, default=16, metavar="N", help="of runs to measure at most, even (16)"
    )
    parser.add_argument(
        "--markdown", type=Path, metavar="FILE", help="append a section: $GITHUB_STEP_SUMMARY"
    )
    parser.add_argument("--junit", type=Path, metavar="FILE", help="write JUnit XML")
    parser.add_argument("--known", type=Path, metavar="FILE", help="changes that are acknowledged, as TOML")
    _judged(parser)
    _common(parser, gate)
    _add_history(verbs, prepare)


def _add_history(verbs: Any, prepare: Prepare) -> None:
    def remembering(name: str) -> Verb:
        def verb(args: argparse.Namespace) -> dict[str, Any]:
            prepare(args)
            from harness import history_verbs

            found: dict[str, Any] = getattr(history_verbs, name)(args)
            return found

        return verb

    history = verbs.add_parser("history", help="nightly benchmark runs: add, list, changes of level")
    kinds = history.add_subparsers(dest="what", required=True, metavar="WHAT")

    add = kinds.add_parser("add", help="append runs")
    add.add_argument("url", metavar="URL", help="a folder, or any fsspec URL")
    add.add_argument("runs", type=Path, nargs="+", metavar="RUN", help=RUN)
    add.add_argument("--commit", metavar="SHA", help="what was served (default: as the result says)")
    add.add_argument("--series", default="nightly", metavar="NAME", help="(nightly)")
    _common(add, remembering("add"))

    listing = kinds.add_parser("list", help="list runs, newest last")
    listing.add_argument("url", metavar="URL", help="a folder, or any fsspec URL")
    listing.add_argument("--limit", type=_positive, default=40, metavar="N", help="the newest N (40)")
    listing.add_argument("--commit", metavar="SHA", help="of this commit, or a prefix")
    listing.add_argument("--series", metavar="NAME", help="of this series (default: all)")
    _common(listing, remembering("list_runs"))

    changes = kinds.add_parser("changes", help="where the level changed, and the commits to suspect")
    changes.add_argument("url", metavar="URL", help="a folder, or any fsspec URL")
    changes.add_argument(
        "--metric",
        action="append",
        metavar="NAME",
        help="only this one; may be repeated (default: the gate's)",
    )
    changes.add_argument("--known", type=Path, metavar="FILE", help="changes that are acknowledged, as TOML")
    changes.add_argument("--series", default="nightly", metavar="NAME", help="(nightly)")
    _common(changes, remembering("changes"))

    def drawing(args: argparse.Namespace) -> dict[str, Any]:
        prepare(args)
        from harness.report_verbs import history_page

        return history_page(args)

    page = kinds.add_parser("page", help="one HTML file: every metric over the nights, and its changes")
    page.add_argument("url", metavar="URL", help="a folder, or any fsspec URL")
    page.add_argument("--out", type=Path, default=Path("history.html"), metavar="FILE", help="(history.html)")
    page.add_argument(
        "--metric",
        action="append",
        metavar="NAME",
        help="only this one; may be repeated (default: the gate's)",
    )
    page.add_argument("--known", type=Path, metavar="FILE", help="changes that are acknowledged, as TOML")
    page.add_argument("--series", default="nightly", metavar="NAME", help="(nightly)")
    _common(page, drawing)


def _judged(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--calibration", type=Path, metavar="PATH", help="what calibrate wrote: its folder, or one file of it"
    )
    parser.add_argument("--all", action="store_true", help="show every metric, also what is not gated")
    _design(parser)


def _design(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--effect",
        action="append",
        default=[],
        type=_effect,
        metavar="METRIC=SHARE",
        help="gate this metric, a change of this share matters: tpot.mean_ms=0.03; may be repeated",
    )
    parser.add_argument(
        "--trim",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="leave out this share of runs at either end (0)",
    )


def _common(parser: argparse.ArgumentParser, verb: Verb) -> None:
    parser.add_argument(
        "--json", action="store_true", default=argparse.SUPPRESS, help="print the JSON line alone"
    )
    parser.set_defaults(run=verb, device="cpu", kernels="auto", model=None)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected at least 1, got {number}")
    return number


def _effect(text: str) -> tuple[str, float]:
    name, _, share = text.partition("=")
    try:
        return name.strip(), float(share)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"expected METRIC=SHARE such as tpot.mean_ms=0.03, got {text!r}"
        ) from None
