"""Each step of our engine as a release sees it: in its runner's order, with the metadata of its own builder."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from typing import Any

import torch

from harness.engine.batch import Batch
from harness.errors import Unsupported
from harness.packing import Batch as Rows
from harness.packing import Row
from harness.targets.upstream.metadata import MetadataBuilder
from harness.targets.upstream.metadata_child import Builder, StubUsed, _ints, _vllm_config
from harness.targets.upstream.metadata_runner import Feed, hand_over, in_runner_order
from harness.targets.upstream.metadata_versions import LAYOUTS, layouts_for
from harness.targets.upstream.wheel import Release

LAYER = "layer"
"""The name under which a layer finds its metadata."""
MOST_ROWS = 256
"""``max_num_seqs`` of the builder: more rows than any scenario has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step: where each token of the runner's order stands in our batch, and the builder's answer."""

    order: torch.Tensor  # [N]
    metadata: Any


class BuilderHere(Builder):
    """The builder in this process: its answers as tensors, its errors as they are."""

    def open(self, k: int) -> None:
        """For an engine with k drafts. Without captured graphs a builder keeps nothing from step to step."""
        sizes = {"k": k, "max_num_seqs": MOST_ROWS, "capture_sizes": ()}
        self._built = self._class(self._cache_spec(sizes), [LAYER], _vllm_config(sizes), torch.device("cpu"))

    def build(self, step: dict[str, Any], device: torch.device) -> Any:
        """The release's own metadata for a step of ``hand_over``."""
        drafts = step["drafts"]
        speculative = (
            {}
            if drafts is None
            else {"num_accepted_tokens": _ints(step["accepted"]), self._drafts: _ints(drafts)}
        )
        built = self._built.build(
            common_prefix_len=0, common_attn_metadata=self._metadata(step), **speculative
        )
        return _moved(built, device)


class Steps:
    """The builder of a release; a step is built once and serves every layer."""

    def __init__(self, release: Release) -> None:
        facts = MetadataBuilder(release)
        self.feed: Feed = facts.own
        self._builder, self._old = _open(release)
        self._last: tuple[Batch, Step] | None = None
        self._k: int | None = None

    @property
    def retyped(self) -> list[str]:
        """What had to be typed again to load the builder."""
        return self._builder.retyped

    def of(self, batch: Batch) -> Step:
        """The step of this batch. Raises what the release's builder raises."""
        if self._last is None or self._last[0] is not batch:
            self._last = (batch, self._build(batch))
        return self._last[1]

    def _build(self, batch: Batch) -> Step:
        rows = rows_of(batch)
        if rows.k != self._k:
            self._builder.open(rows.k)
            self._k = rows.k
        ordered = in_runner_order(rows)
        starts = batch.tokens.query_start_loc.tolist()
        places = [range(starts[i], starts[i + 1]) for i in (int(row.request) for row in ordered.rows)]
        device = batch.tokens.input_ids.device
        order = torch.tensor([place for row in places for place in row], device=device)
        try:
            step = hand_over(ordered, self.feed, no_row=0 if self._old else -1)
            return Step(order=order, metadata=self._builder.build(step, device))
        except StubUsed as error:
            raise Unsupported(f"its metadata builder asks for more than is loaded: {error}") from None


def _open(release: Release) -> tuple[BuilderHere, bool]:
    """The release's builder in this process; the reasons of every layout that does not fit, as Unsupported."""
    reasons = []
    for layout in layouts_for(release.version):
        try:
            described = {**asdict(layout), "fields": layout.fields}
            for name in layout.modules:  # the kernels' files may have met them as stubs
                sys.modules.pop(name, None)
            return BuilderHere(release.root, described), layout.drafts == LAYOUTS[0].drafts
        except StubUsed as error:
            reasons.append(str(error))
    raise Unsupported(f"{release.name}: its metadata builder cannot be loaded: {'; '.join(reasons)}")


def _moved(value: Any, device: torch.device) -> Any:
    """A builder's answer with its tensors on a device; the answer itself keeps its class."""
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {key: _moved(item, device) for key, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type) and device.type != "cpu":
        return replace(
            value, **{f.name: _moved(getattr(value, f.name), device) for f in fields(value) if f.init}
        )
    return value


def rows_of(batch: Batch) -> Rows:
    """Our batch in the words of the ledger; a row is called by its place."""
    lengths = batch.tokens.query_start_loc.diff().tolist()
    starts = batch.tokens.context_lens.tolist()
    first = batch.tokens.query_start_loc[:-1].long()
    spec, plain = batch.spec, batch.plain
    verifies = spec.token_mask[first].tolist() if spec else [False] * len(lengths)
    verify = (
        iter(zip(spec.state_indices.tolist(), spec.num_accepted_tokens.tolist(), strict=True))
        if spec
        else iter(())
    )
    prompts = iter(plain.slots.tolist()) if plain else iter(())
    rows: list[Row] = []
    for i, (tokens, start, verifying) in enumerate(zip(lengths, starts, verifies, strict=True)):
        slots, accepted = next(verify) if verifying else (next(prompts), 1)
        rows.append(
            Row(
                request=str(i),
                tokens=tokens,
                start=start,
                previous=accepted,
                unrefreshed=accepted,  # the engine keeps the counts as this release's runner does
                slots=tuple(slots),
                in_prompt=not verifying,
            )
        )
    return Rows(rows=tuple(rows), k=len(rows[0].slots) - 1, max_num_seqs=MOST_ROWS)
