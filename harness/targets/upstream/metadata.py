"""A release's metadata builder as a suspect: its own code, in a child process, fed the steps of our scenarios.

builder = MetadataBuilder(release)
packed = builder.pack(batches, builder.own)       # as this release's runner hands steps over
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from typing import Any

from harness.errors import TargetError, Unsupported
from harness.packing import Batch, Packed, PlainRows, Refused, SpecRows
from harness.targets.upstream.metadata_runner import (
    RUNNER,
    SECOND,
    Feed,
    RunnerFacts,
    hand_over,
    in_runner_order,
    read_runner,
    read_second,
    replayed_tokens,
)
from harness.targets.upstream.metadata_versions import LAYOUTS, Layout, layouts_for
from harness.targets.upstream.wheel import Release

BUILDER = "vllm/v1/attention/backends/gdn_attn.py"
CHILD = (sys.executable, "-P", "-m", "harness.targets.upstream.metadata_child")
TIME_LIMIT = 300.0
"""Seconds that one child may take, for however many steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Steps in the runner's order, and what the builder made of each; ``retyped`` is what is not the release's own."""

    batches: tuple[Batch, ...]
    packed: tuple[Packed | Refused, ...]
    retyped: tuple[str, ...]

    def __iter__(self) -> Iterator[tuple[Batch, Packed | Refused]]:
        return zip(self.batches, self.packed, strict=True)


class MetadataBuilder:
    """The builder of one release; Unsupported where its layout or its runner is not known."""

    def __init__(self, release: Release, time_limit: float = TIME_LIMIT) -> None:
        self._release = release
        self._time_limit = time_limit
        if release.source(BUILDER) is None:
            raise Unsupported(f"{release.name} has no {BUILDER}")
        self._layouts = layouts_for(release.version)
        if not self._layouts:
            raise Unsupported(f"{release.name} is older than {LAYOUTS[0].since}, the first known layout")
        source = release.source(RUNNER)
        facts = read_runner(source.read_text(encoding="utf-8")) if source else f"there is no {RUNNER}"
        if isinstance(facts, str):
            raise Unsupported(f"{release.name}: {facts}")
        self.facts: RunnerFacts = facts

    @property
    def own(self) -> Feed:
        """How this release's runner hands steps over."""
        facts = self.facts
        return Feed(
            zero_draft=int(facts.zero_draft.value or 0),
            without_drafts=bool(facts.without_drafts.value),
            refreshes=bool(facts.refreshes.value),
            pads_with=None if facts.pads_with is None else int(facts.pads_with.value or 0),
        )

    @property
    def second(self) -> tuple[Feed, dict[str, str]] | None:
        """How model runner V2 hands steps over, and the lines that say so; ``None`` without one of a known kind."""
        paths = {name: self._release.source(name) for name in SECOND}
        return read_second({name: path.read_text(encoding="utf-8") for name, path in paths.items() if path})

    @property
    def other(self) -> Feed:
        """The same, with the other value for rows without drafts; a step of such rows is passed then."""
        return replace(self.own, zero_draft=-1 - self.own.zero_draft, without_drafts=True)

    def pack(self, batches: Sequence[Batch], feed: Feed) -> Answer:
        """What the builder makes of these steps.

        Raises:
            Unsupported: the builder does not look as the table says, or needs what cannot be served.
            TargetError: the child died or ran out of time.
        """
        ordered = [in_runner_order(batch) for batch in batches]
        reasons = []
        for layout in self._layouts:
            groups = [list(group) for _, group in groupby(ordered, key=_configuration)]
            result = self._ask(layout, [_group(group, feed, layout) for group in groups])
            if "unsupported" in result:
                reasons.append(f"laid out as {layout.since}: {result['unsupported']}")
                continue
            flat = [answer for answers in result["answers"] for answer in answers]
            packed = tuple(_read(a, b, layout, feed) for a, b in zip(flat, ordered, strict=True))
            return Answer(batches=tuple(ordered), packed=packed, retyped=tuple(result["retyped"]))
        raise Unsupported(f"{self._release.name}: {'; '.join(reasons)}")

    def _ask(self, layout: Layout, groups: list[dict[str, Any]]) -> dict[str, Any]:
        described = {**asdict(layout), "fields": layout.fields}
        request = {"root": str(self._release.root), "layout": described, "groups": groups}
        return ask_child(CHILD, request, self._release.name, self._time_limit)


def ask_child(
    command: Sequence[str], request: dict[str, Any], name: str, time_limit: float
) -> dict[str, Any]:
    """One JSON request to a child process, one JSON answer; TargetError where it gives none in time."""
    try:
        done = subprocess.run(
            command,
            input=json.dumps(request),
            capture_output=True,
            text=True,
            timeout=time_limit,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise TargetError(
            f"{name}: its metadata builder gave no answer in {time_limit:.0f} s", hint="try fewer scenarios"
        ) from None
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except json.JSONDecodeError:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise TargetError(
            f"{name}: the process of its metadata builder ended with {done.returncode}: {last}",
            hint="specharness doctor",
        ) from None
    return answer


def _configuration(batch: Batch) -> tuple[int, int, tuple[int, ...]]:
    return batch.k, batch.max_num_seqs, batch.capture_sizes


def _group(batches: list[Batch], feed: Feed, layout: Layout) -> dict[str, Any]:
    k, max_num_seqs, sizes = _configuration(batches[0])
    no_row = 0 if layout.drafts == LAYOUTS[0].drafts else -1
    return {
        "config": {"k": k, "max_num_seqs": max_num_seqs, "capture_sizes": sizes},
        "batches": [hand_over(batch, feed, no_row=no_row) for batch in batches],
    }


def _read(answer: dict[str, Any], batch: Batch, layout: Layout, feed: Feed) -> Packed | Refused:
    """A builder's fields as rows with tokens and slots."""
    if "crash" in answer:
        return Refused(message=answer["crash"])
    fields: dict[str, Any] = answer["fields"]
    spec_order, plain_order = _orders(fields, batch, layout)
    kinds = ("num_prefill_tokens", "num_decode_tokens", "num_spec_decode_tokens")
    spec = plain = None
    if fields["spec_state_indices_tensor"] is not None:
        spec = SpecRows(
            count=fields["num_spec_decodes"],
            order=spec_order,
            query_start_loc=tuple(fields["spec_query_start_loc"]),
            slots=tuple(map(tuple, fields["spec_state_indices_tensor"])),
            accepted=tuple(fields["num_accepted_tokens"]),
        )
    if fields["non_spec_state_indices_tensor"] is not None:
        peeled = layout.peels_decodes and spec is None
        initial = fields["has_initial_state"]
        plain = PlainRows(
            decodes=fields["num_decodes"] if peeled or not fields["num_prefills"] else 0,
            order=plain_order,
            query_start_loc=tuple(fields["non_spec_query_start_loc"]),
            slots=tuple(fields["non_spec_state_indices_tensor"]),
            has_initial_state=None if initial is None else tuple(initial),
        )
    return Packed(
        num_tokens=sum(fields[name] for name in kinds),
        num_prefills=fields["num_prefills"],
        replays_stale=replayed_tokens(batch, feed) is not None and not answer["staged"],
        spec=spec,
        plain=plain,
    )


def _orders(fields: dict[str, Any], batch: Batch, layout: Layout) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Which token of the step stands where, on the speculative side and on the other; one side alone takes them all."""
    everything = tuple(range(batch.num_tokens))
    if fields["non_spec_state_indices_tensor"] is None or fields["spec_state_indices_tensor"] is None:
        return everything, everything
    if layout.tokens == "indices":
        return tuple(fields["spec_token_indx"]), tuple(fields["non_spec_token_indx"])
    mask = fields["spec_token_masks"]
    return tuple(i for i in everything if mask[i]), tuple(i for i in everything if not mask[i])
