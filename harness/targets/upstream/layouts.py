"""What changed between the releases of vLLM, as far as it touches a caller of its gated-delta-rule kernels.

``TABLE`` says it by version range; ``read`` sees it in the sources. Both must agree: a version that the table does
not know, or whose sources say something else, is UNSUPPORTED with the reason. Nothing is guessed.
"""

from __future__ import annotations

import ast
import re
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from harness.errors import Unsupported
from harness.targets.upstream.wheel import Release

LAYERS = "vllm.model_executor.layers"
FLA = f"{LAYERS}.fla.ops"
THIRD_PARTY = "vllm.third_party.flash_linear_attention.ops"
CONV = f"{LAYERS}.mamba.ops.causal_conv1d"
MODEL = "vllm.model_executor.models.qwen3_next"
GDN = f"{LAYERS}.mamba.gdn_linear_attn"
QWEN_GDN = f"{LAYERS}.mamba.gdn.qwen_gdn_linear_attn"


@dataclass(frozen=True, slots=True)
class Layout:
    """One call convention: where the kernels are, and how they are called."""

    ops: str  # package of the recurrence kernels
    state: Literal["KV", "VK"]  # a slot's state is [HV, K, V] or [HV, V, K]
    padding: int  # slot id of a padded row
    rows: Literal["rectangle", "packed"]  # verify rows in the convolution: equal lengths only, or any
    gating: Literal["outside", "fused"]  # the verify recurrence takes g and beta, or raw a and b
    model: str  # module of the layer that calls the kernels
    entry: Literal[
        "_forward", "_forward_core"
    ]  # its method: the whole layer, or convolution and recurrence alone


@dataclass(frozen=True, slots=True)
class Row:
    """Releases from ``first`` on, before ``end``."""

    first: str
    end: str
    layout: Layout


# fmt: off
TABLE = (
    #   from      before     ops          state  pad  rows         gating     model     entry
    Row("0.10.2", "0.11.0", Layout(FLA,         "KV", -1, "rectangle", "outside", MODEL,    "_forward")),
    Row("0.11.0", "0.11.1", Layout(FLA,         "KV", -1, "packed",    "outside", MODEL,    "_forward")),
    Row("0.11.1", "0.16.0", Layout(FLA,         "KV", -1, "packed",    "outside", MODEL,    "_forward_core")),
    Row("0.16.0", "0.18.0", Layout(FLA,         "VK", -1, "packed",    "outside", MODEL,    "_forward_core")),
    Row("0.18.0", "0.19.0", Layout(FLA,         "VK", -1, "packed",    "fused",   MODEL,    "_forward_core")),
    Row("0.19.0", "0.20.0", Layout(FLA,         "VK", -1, "packed",    "fused",   GDN,      "_forward_core")),
    Row("0.20.0", "0.21.0", Layout(FLA,         "VK",  0, "packed",    "fused",   GDN,      "_forward_core")),
    Row("0.21.0", "0.26.0", Layout(FLA,         "VK",  0, "packed",    "fused",   QWEN_GDN, "_forward_core")),
    Row("0.26.0", "0.34.0", Layout(THIRD_PARTY, "VK",  0, "packed",    "fused",   QWEN_GDN, "_forward_core")),
)
# fmt: on


def layout_of(release: Release) -> Layout:
    """The layout of a release or a checkout; Unsupported, with the reason, where it is not known for certain."""
    seen = read(release)
    if release.version is None:
        if seen not in [row.layout for row in TABLE]:
            raise Unsupported(f"{release.name}: its sources look like no known release: {seen}")
        return seen
    number = _number(release.version)
    row = next((row for row in TABLE if _number(row.first) <= number < _number(row.end)), None)
    if row is None:
        raise Unsupported(
            f"{release.name} is outside the adapter table ({TABLE[0].first} to before {TABLE[-1].end})",
            hint="add a row to harness/targets/upstream/layouts.py after reading what changed",
        )
    if seen != row.layout:
        told, found = asdict(row.layout), asdict(seen)
        differing = "; ".join(
            f"{n}: {told[n]!r} in the table, {found[n]!r} seen" for n in told if told[n] != found[n]
        )
        raise Unsupported(f"{release.name}: its sources are not what the adapter table says ({differing})")
    return row.layout


def read(release: Release) -> Layout:
    """The layout as the sources show it; Unsupported where they do not show it."""
    ops = _first(release, (FLA, THIRD_PARTY), "fused_recurrent")
    model = _first(release, (QWEN_GDN, GDN, MODEL), None, "class")
    update = _arguments(path_of(release, CONV), "causal_conv1d_update")
    body = path_of(release, model).read_text(encoding="utf-8")
    return Layout(
        ops=ops,
        state=_state_order(path_of(release, f"{ops}.fused_recurrent").read_text(encoding="utf-8"), release),
        padding=_padding(update, release),
        rows="packed" if "query_start_loc" in update else "rectangle",
        gating="fused" if "fused_sigmoid_gating_delta_rule_update" in body else "outside",
        model=model,
        entry="_forward_core" if "def _forward_core(" in body else "_forward",
    )


def _first(release: Release, modules: tuple[str, ...], name: str | None, what: str = "file") -> str:
    """The first module that this release has; for the layer, one that calls the kernels itself."""
    for module in modules:
        path = release.source(_file(f"{module}.{name}" if name else module))
        if path and (name or re.search(r"def _forward(_core)?\(", path.read_text(encoding="utf-8"))):
            return module
    raise Unsupported(f"{release.name}: saw none of {', '.join(modules)}, where the {what} was expected")


def _state_order(source: str, release: Release) -> Literal["KV", "VK"]:
    tile = re.search(r"b_h = tl\.zeros\(\[(BK, BV|BV, BK)\]", source)
    if tile is None:
        raise Unsupported(f"{release.name}: the recurrence kernel does not show how a state lies in memory")
    return "KV" if tile[1] == "BK, BV" else "VK"


def _padding(arguments: list[str], release: Release) -> int:
    known = {"pad_slot_id": -1, "null_block_id": 0}
    found = [value for name, value in known.items() if name in arguments]
    if len(found) != 1:
        raise Unsupported(f"{release.name}: the convolution takes none of {', '.join(known)}")
    return found[0]


def _arguments(path: Path, function: str) -> list[str]:
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.FunctionDef) and node.name == function:
            return [argument.arg for argument in node.args.args]
    raise Unsupported(f"{path} defines no {function}")


@cache
def parse(path: Path) -> ast.Module:
    """The syntax tree of a file of a release."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def path_of(release: Release, module: str) -> Path:
    """The file of a module; Unsupported where the release has none."""
    path = release.source(_file(module))
    if path is None:
        raise Unsupported(f"{release.name} has no {_file(module)}")
    return path


def _file(module: str) -> str:
    return module.replace(".", "/") + ".py"


def _number(version: str) -> tuple[int, ...]:
    """``0.10.2rc1`` -> (0, 10, 2): candidates count as their release."""
    return tuple(int(part) for part in re.findall(r"\d+", version.split("rc")[0].split(".post")[0])[:3])
