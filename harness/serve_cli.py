"""Arguments of the verb ``serve``."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.arguments import add_graphs, add_layout

Prepare = Callable[[argparse.Namespace], None]


def add_verb(verbs: Any, prepare: Prepare) -> None:
    """Add it to the command line; ``prepare`` is what must happen before heavy imports."""

    def serve(args: argparse.Namespace) -> dict[str, Any]:
        prepare(args)
        from harness.serve_verbs import serve

        return serve(args)

    parser = verbs.add_parser("serve", help="an OpenAI-compatible server over the embedded engine")
    add = parser.add_argument
    add("--variant", "--fault", default="fixed", metavar="NAME", help="serve this variant or fault (fixed)")
    add("--spec", choices=("mtp", "ngram", "off"), default="mtp", help="where drafts come from (mtp)")
    add("--k", type=_positive, default=3, metavar="N", help="drafts per row (3)")
    add("--regime", choices=("trim", "placeholder"), default="trim", help="placeholder: steps planned ahead")
    add("--prefix-caching", action="store_true", help="keep blocks and states of prompts")
    add("--preset", choices=("peaked", "flat", "narrow"), default="peaked", help="the tiny model (peaked)")
    add("--seed", type=int, default=0, help="the tiny model's seed (0)")
    add("--model", type=Path, metavar="FOLDER", help="a Qwen3-Next checkpoint folder instead of a tiny model")
    add("--served-model-name", metavar="NAME", help="default: the preset's or the folder's name")
    add("--kernels", choices=("auto", "triton", "naive"), default="auto")
    add_layout(parser)
    add_graphs(parser)
    add("--device", choices=("auto", "cpu", "cuda"), default="auto")
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=8000, help="0 takes a free one (8000)")
    add("--api-key", metavar="KEY", help="ask for this key (default: $SPECHARNESS_API_KEY; none: open)")
    add("--max-model-len", type=_positive, default=1024, metavar="N", help="prompt and answer (1024 tokens)")
    add("--max-num-seqs", type=_positive, default=64, metavar="N", help="requests that run at a time (64)")
    add("--max-num-batched-tokens", type=_positive, default=512, metavar="N", help="tokens of a step (512)")
    add(
        "--max-queue", type=_positive, default=256, metavar="N", help="requests that wait; more get 429 (256)"
    )
    add("--max-body", type=_positive, default=2**20, metavar="BYTES", help="larger bodies get 413 (1 MiB)")
    add(
        "--compile-seconds",
        type=float,
        default=10.0,
        metavar="S",
        help="slower grammars get 400 (default 10)",
    )
    add(
        "--drain-seconds",
        type=_positive,
        default=30,
        metavar="S",
        help="how long SIGTERM lets requests run (30)",
    )
    add(
        "--until-eof",
        action="store_true",
        help="end with standard input: a pipe that closes says that whoever started the server is gone",
    )
    add("--json", action="store_true", default=argparse.SUPPRESS, help="print the JSON line alone")
    parser.set_defaults(run=serve)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected at least 1, got {number}")
    return number
