"""Arguments of the verb ``live``."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.arguments import add_layout
from harness.own_engine import remember

Prepare = Callable[[argparse.Namespace], None]


def add_verb(verbs: Any, prepare: Prepare) -> None:
    """Add it to the command line; ``prepare`` is what must happen before heavy imports."""

    def live(args: argparse.Namespace) -> dict[str, Any]:
        prepare(args)
        from harness.live_verbs import live

        return live(args)

    parser = verbs.add_parser("live", help="audit a running server, or the embedded one")
    add = parser.add_argument
    add("--base-url", metavar="URL", help="of an OpenAI-compatible server (default: start the embedded one)")
    add("--reference-url", metavar="URL", help="the same model without speculation: answers are compared")
    add("--model", metavar="NAME", help="as the server calls it (default: the first one that it names)")
    add(
        "--tokenizer",
        type=Path,
        metavar="FOLDER",
        help="its config.json and tokenizer.json: grammars are judged token by token",
    )
    add("--api-key-file", type=Path, metavar="FILE", help="holds the key (default: $SPECHARNESS_API_KEY)")
    add("--budget", type=_positive, metavar="N", help="ask no more than N requests in all")
    add("--rate", type=_above_zero, metavar="R", help="ask no more than R requests a second")
    add("--patience", type=_above_zero, default=30.0, metavar="S", help="seconds a server may be silent (30)")
    add("--redact", action="store_true", help="prompts and answers stay out of reports and files")
    add(
        "--crowds",
        type=_positive,
        default=3,
        metavar="N",
        help="how often all subjects are asked together (3)",
    )
    add("--max-tokens", type=_positive, default=40, metavar="N", help="of an answer (40)")
    add("--seed", type=int, default=0, help="seed of what is asked (0)")
    add("--judge", type=Path, metavar="FILE", help="judge a transcript that an audit left; nothing is asked")
    own = parser.add_argument_group("the embedded server")
    own.add_argument("--variant", "--fault", default="fixed", metavar="NAME", help="serve this one (fixed)")
    own.add_argument("--spec", choices=("mtp", "ngram", "off"), default="mtp")
    own.add_argument("--k", type=_positive, default=3, metavar="N")
    own.add_argument("--regime", choices=("trim", "placeholder"), default="trim")
    own.add_argument("--prefix-caching", action="store_true")
    add_layout(own)
    own.add_argument("--preset", choices=("peaked", "flat", "narrow"), default="peaked")
    remember(parser, own)
    add("--reports", type=Path, metavar="FOLDER", help="where run directories go")
    add("--json", action="store_true", default=argparse.SUPPRESS, help="print the JSON line alone")
    parser.set_defaults(run=live, device="cpu", kernels="auto", cases=None)
    _add_vllm(verbs, prepare)


def _add_vllm(verbs: Any, prepare: Prepare) -> None:
    def live_vllm(args: argparse.Namespace) -> dict[str, Any]:
        prepare(args)
        from harness.live_vllm_verbs import live_vllm

        return live_vllm(args)

    parser = verbs.add_parser("live-vllm", help="audit a released vLLM on the CPU: as it is, and mended")
    add = parser.add_argument
    add("--seed", type=int, default=0, help="seed of what is asked (0)")
    add("--no-states", dest="states", action="store_false", help="leave its recurrent states alone")
    add("--reports", type=Path, metavar="FOLDER", help="where run directories go")
    add("--json", action="store_true", default=argparse.SUPPRESS, help="print the JSON line alone")
    parser.set_defaults(run=live_vllm, device="cpu", kernels="auto", model=None)


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
