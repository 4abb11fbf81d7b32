"""Arguments of the verb ``bench``."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.arguments import add_graphs, add_layout
from harness.own_engine import remember

Prepare = Callable[[argparse.Namespace], None]


def add_verb(verbs: Any, prepare: Prepare) -> None:
    """Add it to the command line; ``prepare`` is what must happen before heavy imports."""

    def bench(args: argparse.Namespace) -> dict[str, Any]:
        prepare(args)
        from harness.bench_verbs import bench

        return bench(args)

    parser = verbs.add_parser(
        "bench", help="benchmark speculation off and on, free and guided; or any server"
    )
    add = parser.add_argument
    add("--base-url", metavar="URL", help="of an OpenAI-compatible server (default: start the embedded one)")
    add("--model", metavar="NAME", help="as the server calls it (default: the first one that it names)")
    add("--tokenizer", type=Path, metavar="FOLDER", help="its tokenizer.json: prompts have exact lengths")
    add("--api-key-file", type=Path, metavar="FILE", help="holds the key (default: $SPECHARNESS_API_KEY)")
    add("--chat", action="store_true", help="the chat endpoint, with text; default: completions, token ids")
    add("--preset-workload", metavar="NAME", help="pr24957 or quick (default: 48 requests, 64 in, 128 out)")
    add("--requests", type=_positive, metavar="N", help="of each cell (48)")
    add("--concurrency", type=_positive, metavar="N", help="at a time (4); with --rate: at most (no limit)")
    add("--rate", type=_above_zero, metavar="R", help="requests a second, Poisson (default: closed loop)")
    add("--input-tokens", type=_positive, metavar="N", help="of a prompt (64)")
    add("--output-tokens", type=_positive, metavar="N", help="of an answer, at most (128)")
    add("--seed", type=int, default=0, help="arrivals, prompts and guides have their own, made of it (0)")
    add(
        "--format",
        choices=("vllm-0.10.2", "current"),
        default="current",
        help="labels of vLLM's block (current)",
    )
    add(
        "--loop-lag",
        type=_above_zero,
        metavar="MS",
        help="client's lag P99 from which on it is the client that was measured (10)",
    )
    add("--resume", type=Path, metavar="RUN_DIR", help="complete a run that was killed, as it began")
    own = parser.add_argument_group("the embedded server")
    own.add_argument("--variant", "--fault", default="fixed", metavar="NAME", help="serve this one (fixed)")
    own.add_argument(
        "--compare",
        type=_names,
        default=(),
        metavar="A,B,..",
        help="what the last of these variants costs, measured in turn",
    )
    own.add_argument(
        "--rounds", type=_positive, default=4, metavar="N", help="runs of each with --compare (4)"
    )
    own.add_argument("--spec", choices=("mtp", "ngram"), default="mtp", help="what is held against off (mtp)")
    own.add_argument("--k", type=_positive, default=3, metavar="N", help="drafts per row (3)")
    own.add_argument("--regime", choices=("trim", "placeholder"), default="trim")
    own.add_argument("--preset", choices=("peaked", "flat", "narrow"), default="peaked")
    add_layout(own)
    add_graphs(own)
    remember(parser, own)
    add("--history", metavar="URL", help="append the run to this history, if its answers are right")
    add("--series", default="nightly", metavar="NAME", help="of the history (nightly)")
    add(
        "--commit",
        metavar="SHA",
        help="what is served (default: this checkout; of a server of yours: unknown)",
    )
    add("--reports", type=Path, metavar="FOLDER", help="where run directories go")
    add(
        "--junit",
        type=Path,
        metavar="FILE",
        help="write JUnit XML: wrong answers fail, a late client is skipped",
    )
    add("--no-page", action="store_true", help="no index.html, which takes some seconds")
    add("--json", action="store_true", default=argparse.SUPPRESS, help="print the JSON line alone")
    parser.set_defaults(run=bench, device="cpu", kernels="auto", cases=None)


def _names(text: str) -> tuple[str, ...]:
    return tuple(filter(None, (name.strip() for name in text.split(","))))


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected at least 1, got {number}")
    return number


def _above_zero(text: str) -> float:
    number = float(text)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number above 0, got {text}")
    return number
