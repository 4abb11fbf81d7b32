"""Arguments that several verbs share."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_target(parser: argparse.ArgumentParser) -> None:
    """What is tested, on what, and where it is written down: ``repro`` and ``run``."""
    add = parser.add_argument
    add(
        "--target",
        default="embedded",
        help="embedded (default), vllm==0.10.2, vllm:CHECKOUT, fla==0.6.0, or your kernel: package.module:function",
    )
    add("--variant", action="append", metavar="NAME", help="only this variant; may be repeated")
    add("--seed", type=int, default=0, help="seed of everything random (default 0)")
    add(
        "--preset",
        choices=("peaked", "flat", "narrow"),
        help="the tiny model to use (default peaked; narrow under Triton's interpreter)",
    )
    add("--model", type=Path, metavar="FOLDER", help="a Qwen3-Next checkpoint folder instead of a tiny model")
    add(
        "--kernels",
        choices=("auto", "triton", "naive"),
        default="auto",
        help="auto: Triton on a GPU, naive on a CPU",
    )
    add("--device", choices=("auto", "cpu", "cuda"), default="auto")
    add_graphs(parser)
    add("--state-dtype", choices=("float32", "bfloat16"), default="float32")
    add_layout(parser)
    add(
        "--cases",
        type=Path,
        metavar="FOLDER",
        help="folder that holds cases/ and fixtures/ (default: found upwards)",
    )
    add(
        "--reports",
        type=Path,
        metavar="FOLDER",
        help="where run directories go (default: reports/ beside cases/)",
    )
    add("--expected", type=Path, metavar="FILE", help="known failures, as TOML: red only where they change")
    add("--json", action="store_true", default=argparse.SUPPRESS, help="print the JSON line alone")


def add_layout(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """What the embedded engine keeps of a request's states."""
    parser.add_argument(
        "--layout",
        choices=("slots", "replay"),
        default="slots",
        help="the embedded engine's states: a slot for every token of a row, or one and a journal (default slots)",
    )


def add_graphs(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """How captured steps run."""
    parser.add_argument(
        "--graphs",
        choices=("on", "off"),
        default="on",
        help="on a GPU, captured steps are CUDA graphs, or only padded like them (default on)",
    )


def add_releases(parser: argparse.ArgumentParser) -> None:
    """Which parts of which released engines, on what: ``bisect`` and ``upstream-table``."""
    add = parser.add_argument
    add("--releases", action="append", metavar="RELEASE", help="only this release; may be repeated")
    add("--scenario", action="append", metavar="NAME", help="only scenarios that begin so; may be repeated")
    add(
        "--suspects",
        action="append",
        choices=("metadata", "conv", "recurrence", "forward"),
        help="a part of the release; may be repeated (default: all but forward; metadata alone is quick)",
    )
    add(
        "--device",
        choices=("cpu", "cuda"),
        default="cpu",
        help="where kernels run (default cpu, interpreted)",
    )
    add("--natural", action="store_true", help="natural runs are interpreted, too: minutes each")
    add("--seed", type=int, default=0, help="seed of everything random (default 0)")
    add(
        "--preset",
        choices=("peaked", "flat", "narrow"),
        help="the tiny model to use (default peaked; narrow where kernels are interpreted)",
    )
    add("--cases", type=Path, metavar="FOLDER", help="folder that holds cases/ and fixtures/")
    add("--reports", type=Path, metavar="FOLDER", help="where run directories go")
    add("--resume", type=Path, metavar="RUN_DIR", help="go on where an interrupted run stopped")
    add("--json", action="store_true", default=argparse.SUPPRESS, help="print the JSON line alone")
