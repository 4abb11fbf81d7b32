"""Arguments of the verbs ``matrix`` and ``explore``."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any

from harness.arguments import add_graphs, add_layout


def seconds(text: str) -> float:
    """A time to spend: finite, more than nothing."""
    value = float(text)
    if not 0 < value < inf:
        raise argparse.ArgumentTypeError(f"saw {text}, expected more than 0 and an end")
    return value


def count(text: str) -> int:
    """A number from 0 on."""
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"saw {text}, expected 0 or more")
    return value


def some(text: str) -> int:
    """A number from 1 on."""
    if count(text) == 0:
        raise argparse.ArgumentTypeError("saw 0, expected 1 or more")
    return int(text)


Prepare = Callable[[argparse.Namespace], None]


def add_verbs(verbs: Any, prepare: Prepare) -> None:
    """Add both to the command line; ``prepare`` is what must happen before heavy imports."""

    def matrix(args: argparse.Namespace) -> dict[str, Any]:
        prepare(args)
        from harness.explore_verbs import matrix

        return matrix(args)

    def explore(args: argparse.Namespace) -> dict[str, Any]:
        prepare(args)
        from harness.explore_verbs import explore

        return explore(args)

    parser = verbs.add_parser(
        "matrix", help="every fault against every check: what is found, where, how soon"
    )
    parser.add_argument(
        "--clean", type=count, default=1020, metavar="N", help="generated runs of the correct engine (1020)"
    )
    parser.add_argument("--fault", action="append", metavar="NAME", help="only this one; may be repeated")
    parser.add_argument(
        "--quick", action="store_true", help="each fault on the scenarios of its own, until one kills it"
    )
    _add_common(parser, matrix)
    parser = verbs.add_parser("explore", help="draw scenarios until something is wrong, and make it small")
    parser.add_argument("--seconds", type=seconds, default=60, metavar="S", help="for so long (default 60)")
    parser.add_argument(
        "--fault", default="fixed", metavar="NAME", help="look for this fault (default: false alarms)"
    )
    _add_common(parser, explore)


def _add_common(parser: argparse.ArgumentParser, run: Callable[[argparse.Namespace], dict[str, Any]]) -> None:
    add = parser.add_argument
    add("--seed", type=int, default=0, help="seed of everything random (default 0)")
    add(
        "--workers",
        type=some,
        default=os.cpu_count() or 1,
        metavar="N",
        help="processes (default: one for each core)",
    )
    add("--on", choices=("processes", "ray"), default="processes", help="where they run")
    add("--preset", choices=("peaked", "flat", "narrow"), default="narrow", help="the tiny model (narrow)")
    add("--kernels", choices=("auto", "triton", "naive"), default="auto")
    add("--device", choices=("auto", "cpu", "cuda"), default="auto")
    add_graphs(parser)
    add_layout(parser)
    add("--keep", action="store_true", help="make what is found small and put it into fixtures/scenarios/")
    add("--resume", type=Path, metavar="RUN_DIR", help="go on where an interrupted run stopped")
    add("--cases", type=Path, metavar="FOLDER", help="folder that holds cases/ and fixtures/")
    add("--reports", type=Path, metavar="FOLDER", help="where run directories go")
    add("--json", action="store_true", default=argparse.SUPPRESS, help="print the JSON line alone")
    parser.set_defaults(run=run, model=None)
