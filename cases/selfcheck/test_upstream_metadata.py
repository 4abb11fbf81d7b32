"""The metadata suspect: what is wrong with a packed step is named; the child is asked and answers; unknown is told."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import torch

from harness import cli
from harness.check.metadata import Finding, batches, judge
from harness.check.small_batches import small_batches
from harness.engine.batch import BatchBuilder
from harness.engine.config import EngineConfig
from harness.engine.request import EngineRequest
from harness.engine.scheduler import ScheduledRow
from harness.engine.variants import variant
from harness.errors import TargetError, Unsupported
from harness.models.tiny import default_cache, ensure
from harness.packing import Batch, Packed, PlainRows, Refused, Row, SpecRows
from harness.scenario import Request, Scenario
from harness.targets.upstream.metadata import MetadataBuilder, ask_child
from harness.targets.upstream.metadata_runner import (
    SECOND,
    Feed,
    hand_over,
    in_runner_order,
    read_runner,
    read_second,
)
from harness.targets.upstream.metadata_stubs import make_stub, reverse_ties
from harness.targets.upstream.metadata_versions import LAYOUTS, layouts_for, version_key
from harness.targets.upstream.wheel import Release, release_files
from harness.trace import RowTrace, StepTrace, Trace

K = 3


def row(i: int, n: int, a: int, **changes: Any) -> Row:
    slots = tuple(range(1 + i * (K + 1), 1 + (i + 1) * (K + 1)))
    made = Row(
        request=f"r{i}", tokens=n + 1, start=11, previous=a, unrefreshed=a, slots=slots, in_prompt=False
    )
    return replace(made, **changes)


# Three rows of 4, 1 and 3 tokens; the one without drafts accepted 3 before; and a new prompt of 5.
STEP = Batch(
    rows=(row(0, 3, 2), row(1, 0, 3), row(2, 2, 1), row(3, 0, 1, tokens=5, start=0, in_prompt=True)),
    k=K,
    max_num_seqs=8,
)
SPEC = SpecRows(
    count=3,
    order=tuple(range(8)),
    query_start_loc=(0, 4, 5, 8),
    slots=tuple(r.slots for r in STEP.rows[:3]),
    accepted=(2, 3, 1),
)
PLAIN = PlainRows(
    decodes=0, order=tuple(range(8, 13)), query_start_loc=(0, 5), slots=(13,), has_initial_state=(False,)
)
RIGHT = Packed(num_tokens=13, num_prefills=1, spec=SPEC, plain=PLAIN)
ZERO_DRAFT_AS_PLAIN = replace(
    RIGHT,
    num_prefills=2,
    spec=replace(SPEC, count=2, order=(0, 1, 2, 3, 5, 6, 7), query_start_loc=(0, 4, 7), accepted=(2, 1),
                 slots=(STEP.rows[0].slots, STEP.rows[2].slots)),
    plain=replace(PLAIN, order=(4, *range(8, 13)), query_start_loc=(0, 1, 6), slots=(5, 13),
                  has_initial_state=(True, False)),
)  # fmt: skip


def only(findings: list[Finding]) -> Finding:
    (finding,) = findings
    return finding


def test_a_right_step_has_no_finding() -> None:
    assert judge(STEP, RIGHT) == []


def test_a_row_without_drafts_on_the_plain_path_reads_the_wrong_slot() -> None:
    found = only(judge(STEP, ZERO_DRAFT_AS_PLAIN))
    assert (found.kind, found.request) == ("wrong slot", "r1")
    assert "reads slot 5 where its accepted count of 3 needs slot 7" in found.message


def test_the_same_row_is_right_where_it_accepted_one() -> None:
    step = replace(STEP, rows=(STEP.rows[0], row(1, 0, 1), *STEP.rows[2:]))
    assert judge(step, ZERO_DRAFT_AS_PLAIN) == []


WRONG: dict[str, tuple[Packed | Refused, str, str]] = {
    "over-count": (replace(RIGHT, num_tokens=14), "count", "counts 14 tokens, the step has 13"),
    "under-count": (replace(RIGHT, num_tokens=12), "count", "counts 12 tokens"),
    "dropped": (
        replace(RIGHT, spec=replace(SPEC, query_start_loc=(0, 4, 5), slots=SPEC.slots[:2])),
        "dropped row",
        "never computed",
    ),
    "lost by the count": (replace(RIGHT, spec=replace(SPEC, count=2)), "dropped row", "never computed"),
    "count of another row": (
        replace(RIGHT, spec=replace(SPEC, accepted=(2, 1, 1))), "wrong slot", "reads slot 5 where"),
    "no such column": (replace(RIGHT, spec=replace(SPEC, accepted=(2, 0, 1))), "stale state", "starts from nothing"),
    "slots of another request": (
        replace(RIGHT, spec=replace(SPEC, slots=(SPEC.slots[0], SPEC.slots[2], SPEC.slots[2]))),
        "wrong slot",
        "reads slot 11",
    ),
    "writes elsewhere": (
        replace(RIGHT, spec=replace(SPEC, slots=((1, 2, 3, 9), *SPEC.slots[1:]))),
        "wrong slot",
        "leaves the state after token 3 in slot 9",
    ),
    "unstable order": (
        replace(RIGHT, spec=replace(SPEC, order=(3, 2, 1, 0, 4, 5, 6, 7))), "wrong tokens", "order 3,2,1,0"),
    "tokens of a neighbour": (
        replace(RIGHT, spec=replace(SPEC, query_start_loc=(0, 3, 5, 8))), "wrong tokens", "is given 0-2 and 3,4"),
    "stale state": (replace(RIGHT, plain=replace(PLAIN, has_initial_state=(True,))), "stale state", "reads slot 13"),
    "decoded prompt": (replace(RIGHT, plain=replace(PLAIN, decodes=1)), "stale state", "(decode path)"),
    "padded row as prefill": (
        replace(RIGHT, num_prefills=2,
                plain=replace(PLAIN, query_start_loc=(0, 5, 5), slots=(13, 0), has_initial_state=(False, False))),
        "padding",
        "1 padded rows of no tokens are counted as prefills",
    ),
    "padded row on a live slot": (
        replace(RIGHT, spec=replace(SPEC, query_start_loc=(0, 4, 5, 8, 8), slots=(*SPEC.slots, (9, 0, 0, 0)),
                                    accepted=(2, 3, 1, 1))),
        "padding",
        "points at slot 9 of r2",
    ),
    "stale graph": (replace(RIGHT, replays_stale=True), "stale graph", "earlier step"),
    "crash": (Refused(message="AssertionError: no (gdn_attn.py:1)"), "crash", "AssertionError"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_named(name: str) -> None:
    packed, kind, words = WRONG[name]
    found = judge(STEP, packed)
    assert kind in {finding.kind for finding in found}
    assert any(words in finding.message for finding in found), found


def test_padding_with_the_null_slot_is_right() -> None:
    padded = replace(
        SPEC, query_start_loc=(0, 4, 5, 8, 8), slots=(*SPEC.slots, (0,) * 4), accepted=(2, 3, 1, 1)
    )
    assert judge(STEP, replace(RIGHT, spec=padded)) == []


@pytest.mark.parametrize(
    ("variant_name", "kinds"),
    [("fixed", set()), ("as-merged", {"wrong slot"}), ("before-fix", {"wrong slot", "count"})],
)
def test_our_own_batches_are_right_and_our_own_faults_are_found(variant_name: str, kinds: set[str]) -> None:
    """The embedded engine packs rows, too: neither the check nor its batches know anything of it."""
    config = EngineConfig(k=2, max_num_seqs=8)
    builder = BatchBuilder(config, variant(variant_name))
    steps = [step for step in small_batches(k=2, most=3) if not step.capture_sizes]
    found = {finding.kind for step in steps for finding in judge(step, packed_by_us(builder, step))}
    assert found == kinds


def packed_by_us(builder: BatchBuilder, step: Batch) -> Packed:
    def scheduled(given: Row) -> ScheduledRow:
        prompt = tuple(range(given.start + given.tokens + 1 if given.in_prompt else given.start))
        request = EngineRequest(id=given.request, prompt=prompt, max_tokens=9)
        request.slots, request.num_accepted, request.blocks = list(given.slots), given.previous, [1, 2]
        tokens = list(range(given.tokens))
        drafts = tokens[1:] if not given.in_prompt else []
        return ScheduledRow(
            request=request, input_ids=tokens, drafts=drafts, start=given.start, in_prompt=given.in_prompt
        )

    made = builder.build([scheduled(given) for given in step.rows])
    spec, plain = made.spec, made.plain
    mask = spec.token_mask.tolist() if spec else [False] * step.num_tokens
    return Packed(
        num_tokens=made.num_actual_tokens,
        num_prefills=0,
        spec=None
        if spec is None
        else SpecRows(
            count=len(spec.num_accepted_tokens),
            order=tuple(i for i, mine in enumerate(mask) if mine),
            query_start_loc=tuple(spec.query_start_loc.tolist()),
            slots=tuple(map(tuple, spec.state_indices.tolist())),
            accepted=tuple(spec.num_accepted_tokens.tolist()),
        ),
        plain=None
        if plain is None
        else PlainRows(
            decodes=0,
            order=tuple(i for i, mine in enumerate(mask) if not mine),
            query_start_loc=tuple(plain.query_start_loc.tolist()),
            slots=tuple(plain.state_indices.flatten().tolist()),
            has_initial_state=tuple(plain.has_initial_state.tolist()),
        ),
    )


def test_batches_are_what_the_committed_tokens_say() -> None:
    scenario = Scenario(
        name="s",
        k=2,
        requests=(
            Request(id="a", prompt=(1, 2, 3), max_tokens=9),
            Request(id="b", prompt=(4,), max_tokens=9),
        ),
    )

    def line(name: str, prompt: int, kept: tuple[int, ...], committed: tuple[int, ...]) -> RowTrace:
        return RowTrace(
            request=name,
            prompt_tokens=prompt,
            kept=kept,
            committed=committed,
            num_computed=0,
            previous_accepted=99,
        )

    steps = (
        (line("a", 2, (), ()),),
        (line("a", 1, (), (7,)), line("b", 1, (), (8,))),
        (line("a", 0, (5, 6), (5, 6, 7)), line("b", 0, (5,), (9,))),
        (line("a", 0, (), (1,)), line("b", 0, (), (1,))),
        (line("a", 0, (2,), (2, 3)),),
    )
    trace = Trace(
        scenario="s",
        target="t",
        steps=tuple(StepTrace(index=i, rows=rows) for i, rows in enumerate(steps)),
        completions={},
        linear_layers=(),
    )
    made = list(batches(scenario, trace))
    assert [[(r.tokens, r.start, r.previous, r.in_prompt) for r in batch.rows] for batch in made] == [
        [(2, 0, 1, True)],
        [(1, 2, 1, True), (1, 0, 1, True)],
        [(3, 3, 1, False), (2, 1, 1, False)],
        [(1, 6, 3, False), (1, 2, 1, False)],
        [(2, 7, 1, False)],
    ]
    assert [r.reads for r in made[3].rows] == [3, 4]
    assert made[4].rows[0].unrefreshed == 3, "a step without drafts leaves the older count"


OWN = Feed(zero_draft=-1, without_drafts=False, refreshes=True, pads_with=0)


def test_the_runner_says_minus_one_for_prompts_and_its_own_value_for_rows_without_drafts() -> None:
    assert hand_over(STEP, OWN, no_row=-1)["drafts"] == [3, -1, 2, -1]
    assert hand_over(STEP, replace(OWN, zero_draft=0), no_row=-1)["drafts"] == [3, 0, 2, -1]


def test_a_step_without_drafts_is_passed_as_the_runner_passes_it() -> None:
    step = replace(STEP, rows=(row(0, 0, 2),))
    assert hand_over(step, OWN, no_row=-1)["drafts"] is None
    assert hand_over(step, replace(OWN, without_drafts=True), no_row=-1)["drafts"] == [-1]


def test_rows_are_padded_only_where_a_graph_is_replayed() -> None:
    full = replace(STEP, rows=(row(0, K, 2),), capture_sizes=(8, 16))
    padded = hand_over(full, OWN, no_row=-1)
    assert (padded["query_start_loc"], padded["num_actual_tokens"]) == ([0, 4, 4], 8)
    assert padded["block_table"][1] == [0, 0, 0, 0]
    assert padded["drafts"] == [3, -1]
    unequal = replace(full, rows=(row(0, K, 2), row(1, 1, 1)))
    assert hand_over(unequal, OWN, no_row=-1)["num_actual_tokens"] == 6
    assert hand_over(full, replace(OWN, pads_with=None), no_row=-1)["query_start_loc"] == [0, 4]


def test_model_runner_v2_replays_no_prompts_and_takes_a_last_token_as_a_row() -> None:
    second = read_second(
        {
            SECOND[0]: "    num_decode_draft_tokens_np = np.full(num_reqs, -1, dtype=np.int32)\n"
            "        is_decode, num_draft_tokens_per_req, -1\n    _scatter_num_accepted_kernel[(num_reqs,)](\n",
            SECOND[1]: "\n    one_token_ext = (num_new_tokens == 1)\n",
        }
    )
    assert second is not None
    feed, lines = second
    assert feed.zero_draft == 0
    assert any("gpu/model_runner.py:2 `one_token_ext" in line for line in lines.values())
    last = row(0, 0, 1, in_prompt=True)
    fresh = row(1, 0, 1, in_prompt=True, start=0)
    handed = hand_over(replace(STEP, rows=(last, fresh)), feed, no_row=-1)
    assert (handed["drafts"], handed["is_prefilling"]) == ([0, -1], [False, True])
    full = replace(STEP, rows=(row(0, K, 1, in_prompt=True),), capture_sizes=(8,))
    assert hand_over(full, feed, no_row=-1)["num_actual_tokens"] == 4
    assert hand_over(full, OWN, no_row=-1)["num_actual_tokens"] == 8


def test_runner_order_puts_prompts_last_and_keeps_the_rest() -> None:
    prompt = row(9, 0, 1, tokens=7, start=0, in_prompt=True)
    ordered = in_runner_order(replace(STEP, rows=(prompt, *STEP.rows[:3])))
    assert ordered.rows == (*STEP.rows[:3], prompt)


def test_small_batches_are_many_different_and_begin_with_the_smallest() -> None:
    made = list(small_batches(k=1, most=2))
    assert len(made) == len(set(map(str, made)))
    assert sorted(len(batch.rows) for batch in made) == [len(batch.rows) for batch in made]
    assert {"k=1: n=0 a=2", "k=1: n=1 a=2 | n=0 a=1", "k=1, graphs of 4 tokens: n=1 a=1"} <= set(
        map(str, made)
    )


RUNNER = """\
class Runner:
    def prepare(self):
        use_spec_decode = len(scheduler_output.scheduled_spec_decode_tokens) > 0
        num_draft_tokens = np.zeros(num_reqs, dtype=np.int32)
        num_decode_draft_tokens = np.full(num_reqs, -1, dtype=np.int32)
        blk_table_tensor[num_reqs:num_reqs_padded].fill_(NULL_BLOCK_ID)
        uniform = (
                (max_num_scheduled_tokens == uniform_decode_query_len)
                and (num_tokens == max_num_scheduled_tokens * num_reqs)
        )

    def sample(self):
        self._update_states_after_model_execute(sampled)
"""


def test_the_runner_s_decisions_are_found_with_their_lines() -> None:
    facts = read_runner(RUNNER)
    assert not isinstance(facts, str)
    found = (facts.zero_draft, facts.without_drafts, facts.refreshes, facts.replays, facts.pads_with)
    assert [(fact.value, fact.line) for fact in found if fact] == [
        (-1, 5),
        (False, 3),
        (True, 13),
        (True, 9),
        (0, 6),
    ]
    assert "gpu_model_runner.py:5 `num_decode_draft_tokens = np.full" in str(facts.zero_draft)


def test_a_later_assignment_of_zero_wins() -> None:
    later = (
        "        num_decode_draft_tokens[\n            (num_decode_draft_tokens < 0) & mask\n        ] = 0\n"
    )
    facts = read_runner(RUNNER.replace("        blk_table", f"{later}        blk_table"))
    assert not isinstance(facts, str)
    assert facts.zero_draft.value == 0


def test_counts_updated_after_the_rejection_sampler_alone_go_stale() -> None:
    facts = read_runner(
        RUNNER.replace("def sample(self):", "def sample(self):\n        self.rejection_sampler(x)")
    )
    assert not isinstance(facts, str)
    assert facts.refreshes.value is False


@pytest.mark.parametrize(
    "lost", ["use_spec_decode = len", "np.full", "_update_states_after", "max_num_scheduled_tokens \\*"]
)
def test_a_runner_that_does_not_say_is_told_so(lost: str) -> None:
    answer = read_runner(RUNNER.replace(lost.replace("\\", ""), "something_else"))
    assert isinstance(answer, str) or "np.zeros" in str(answer.zero_draft)


@pytest.mark.parametrize(
    ("version", "since"),
    [
        ("0.10.2", "0.10.2"),
        ("0.11.2", "0.11.1"),
        ("0.13.0", "0.11.1"),
        ("0.22.1", "0.14.0"),
        ("1.0.0", LAYOUTS[-1].since),
    ],
)
def test_a_version_takes_the_last_line_that_is_not_newer(version: str, since: str) -> None:
    assert [line.since for line in layouts_for(version)] == [since]


def test_versions_are_numbers() -> None:
    assert sorted(["0.10.2", "0.9.1", "0.8.5.post1", "0.8.5"], key=version_key) == [
        "0.8.5",
        "0.8.5.post1",
        "0.9.1",
        "0.10.2",
    ]
    assert layouts_for("0.9.0") == []
    assert layouts_for(None)[0] is LAYOUTS[-1]


def test_equal_entries_come_back_in_reverse_unless_the_sort_is_stable() -> None:
    argsort = reverse_ties(torch.argsort)
    values = torch.tensor([True, False, True, False, True])
    assert argsort(values).tolist() == [3, 1, 4, 2, 0]
    assert argsort(values, stable=True).tolist() == [1, 3, 0, 2, 4]


def test_a_stub_may_be_used_but_not_computed_with() -> None:
    stub = make_stub("vllm.x")
    assert stub.y(lambda: 1)() == 1, "a decorator"
    assert type("Derived", (stub[int],), {})
    for compute in (bool, int, len, list):
        with pytest.raises(Exception, match=r"vllm\.x.* is a stub"):
            compute(stub("value"))


BUILDER = """
    from dataclasses import dataclass
    import torch
    from vllm.config import VllmConfig
    from vllm.logger import init_logger
    from vllm.v1.attention.backends.utils import CommonAttentionMetadata
    from vllm.v1.kv_cache_interface import MambaSpec

    logger = init_logger(__name__)
    print("noise on stdout")

    @dataclass
    class GDNAttentionMetadata:
        num_prefills: int
        num_prefill_tokens: int
        num_decodes: int
        num_decode_tokens: int
        num_spec_decodes: int
        num_spec_decode_tokens: int
        has_initial_state: object
        spec_query_start_loc: object
        non_spec_query_start_loc: object
        spec_state_indices_tensor: object
        non_spec_state_indices_tensor: object
        num_accepted_tokens: object
        spec_token_indx: object
        non_spec_token_indx: object

    class GDNAttentionMetadataBuilder:
        def __init__(self, spec, names, config, device):
            self.k = config.speculative_config.num_speculative_tokens
            self.spec_query_start_loc = self.non_spec_query_start_loc = torch.empty(99)

        def build(self, common_prefix_len, common_attn_metadata, num_accepted_tokens=None,
                  num_decode_draft_tokens_cpu=None):
            m = common_attn_metadata
            spec = num_decode_draft_tokens_cpu >= 0
            lengths = m.query_start_loc.diff()
            order = torch.argsort(torch.repeat_interleave(spec, lengths), stable=True)
            plain_tokens = int(lengths[~spec].sum())
            starts = lambda rows: torch.nn.functional.pad(lengths[rows].cumsum(0), (1, 0))
            return GDNAttentionMetadata(
                int((~spec).sum()), plain_tokens, 0, 0, int(spec.sum()), int(lengths[spec].sum()),
                m.seq_lens[~spec] > lengths[~spec], starts(spec), starts(~spec),
                m.block_table_tensor[spec, : self.k + 1], m.block_table_tensor[~spec, 0],
                num_accepted_tokens[spec], order[plain_tokens:], order[:plain_tokens],
            )
"""
UTILS = """
    from dataclasses import dataclass
    from typing import Any

    @dataclass
    class CommonAttentionMetadata:
        query_start_loc: Any
        seq_lens: Any
        num_reqs: int
        num_actual_tokens: int
        block_table_tensor: Any
"""
SPECS = """
    from dataclasses import dataclass

    @dataclass(frozen=True)
    class MambaSpec:
        block_size: int
"""


@pytest.fixture
def make_release(tmp_path: Path) -> Callable[..., Release]:
    """A release as small as can be, written here: its builder is right unless something is replaced in it."""

    def make(
        seen: str = "", replaced: str = "", *, runner: str = RUNNER, version: str | None = "0.14.0"
    ) -> Release:
        files = {
            "v1/attention/backends/gdn_attn.py": BUILDER.replace(seen, replaced) if seen else BUILDER,
            "v1/attention/backends/utils.py": UTILS,
            "v1/attention/backends/registry.py": "",
            "v1/attention/backend.py": "",
            "v1/kv_cache_interface.py": SPECS,
            "utils/math_utils.py": "",
        }
        for name, text in files.items():
            path = tmp_path / "vllm" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(dedent(text))
        path = tmp_path / "vllm/v1/worker/gpu_model_runner.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(runner)
        return Release(project="vllm", version=version, root=tmp_path)

    return make


def found_in(release: Release, *, other: bool = False) -> list[Finding]:
    builder = MetadataBuilder(release)
    answer = builder.pack([STEP], builder.other if other else builder.own)
    return [finding for batch, packed in answer for finding in judge(batch, packed)]


def test_a_release_is_asked_in_a_child_and_its_answer_is_judged(make_release: Callable[..., Release]) -> None:
    found = only(found_in(make_release()))
    assert "reads slot 5 where its accepted count of 3 needs slot 7" in found.message


def test_the_other_value_for_rows_without_drafts_is_tried_too(make_release: Callable[..., Release]) -> None:
    assert found_in(make_release(), other=True) == []


FAULTS = {
    "m.block_table_tensor[spec, : self.k + 1]": (
        "m.block_table_tensor[spec, : self.k + 1] + 1",
        "wrong slot",
    ),
    "num_accepted_tokens[spec]": ("num_accepted_tokens[spec] * 0 + 1", "wrong slot"),
    ", stable=True": ("", "wrong tokens"),
    "int(lengths[spec].sum())": ("int(spec.sum()) * (self.k + 1)", "count"),
    "m.seq_lens[~spec] > lengths[~spec]": ("m.seq_lens[~spec] > 0", "stale state"),
    "lengths = m": ("assert not spec.any(); lengths = m", "crash"),
}


@pytest.mark.parametrize("seen", FAULTS)
def test_a_fault_of_a_builder_is_found_through_the_child(
    make_release: Callable[..., Release], seen: str
) -> None:
    replaced, kind = FAULTS[seen]
    assert kind in {finding.kind for finding in found_in(make_release(seen, replaced), other=True)}


UNKNOWN = {
    "num_decode_draft_tokens_cpu": "num_drafts_of_each_row",
    "spec_token_indx: object": "spec_tokens: object",
    "spec = num": "assert init_logger('x'); spec = num",
}


@pytest.mark.parametrize("seen", UNKNOWN)
def test_an_unknown_layout_is_unsupported_with_the_reason(
    make_release: Callable[..., Release], seen: str
) -> None:
    with pytest.raises(
        Unsupported, match=r"has no num_decode_draft_tokens_cpu|has no spec_token_indx|is a stub"
    ):
        found_in(make_release(seen, UNKNOWN[seen]))


def test_a_checkout_without_a_version_takes_the_line_that_fits(make_release: Callable[..., Release]) -> None:
    release = make_release(version=None)
    newest = release.root / "vllm/v1/kv_cache_layout.py"
    assert not newest.exists(), "so the newest line does not fit"
    assert only(found_in(release)).kind == "wrong slot"


def test_an_old_release_or_one_without_a_builder_is_unsupported(
    make_release: Callable[..., Release], tmp_path: Path
) -> None:
    with pytest.raises(Unsupported, match=r"older than 0\.10\.2"):
        MetadataBuilder(make_release(version="0.9.0"))
    with pytest.raises(Unsupported, match="does not say"):
        MetadataBuilder(make_release(runner="nothing"))
    with pytest.raises(Unsupported, match=r"has no vllm/v1/attention/backends/gdn_attn\.py"):
        MetadataBuilder(Release(project="vllm", version="0.14.0", root=tmp_path / "elsewhere"))


def test_a_child_that_hangs_or_dies_is_one_clear_error(make_release: Callable[..., Release]) -> None:
    hanging = make_release("spec = num", "import time; time.sleep(99); spec = num")
    builder = MetadataBuilder(hanging, time_limit=8)
    with pytest.raises(TargetError, match="no answer in 8 s"):
        builder.pack([STEP], builder.own)
    with pytest.raises(TargetError, match="ended with 7: last words"):
        ask_child(["sh", "-c", "echo last words >&2; exit 7"], {}, "vllm x", 5)


@pytest.mark.slow
def test_the_command_bisects_what_is_in_the_cache(
    make_release: Callable[..., Release],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Two made-up releases in a cache of their own: the older sends rows without drafts the wrong way."""
    ours = ensure("peaked")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("harness.upstream_verbs.ensure", lambda *_: ours)
    passes = RUNNER.replace(
        "len(scheduler_output.scheduled_spec_decode_tokens) > 0", "self.speculative_config is not None"
    )
    keeps = passes.replace(
        "        blk",
        "        num_decode_draft_tokens[(num_decode_draft_tokens < 0) & mask] = 0\n        blk",
    )
    for version, runner in {"0.14.0": passes, "0.14.1": keeps}.items():
        kept = tmp_path / "home" / "specharness" / "upstream" / f"vllm-{version}"
        shutil.copytree(make_release(runner=runner).root / "vllm", kept / "vllm")
        sums = {
            str(path.relative_to(kept)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in kept.rglob("*.py")
        }
        (kept / "release.json").write_text(json.dumps({"wheel": "made up", "files": sums}))
    words = [
        "24881",
        "--suspects",
        "metadata",
        "--scenario",
        "d",
        "--reports",
        str(tmp_path),
        "--releases",
        "0.14.0",
        "--releases",
        "0.14.1",
    ]
    assert cli.main(["bisect", *words, "--good", "0.14.1", "--bad", "0.14.0"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert any("0.14.1 repairs it" in line for line in out)
    assert json.loads(out[-1])["symptoms"] == ["metadata builder, 24881 d: trimmed to zero: wrong slot"]
    assert cli.main(["bisect", *words, "--good", "0.14.0", "--bad", "0.14.1"]) == 125, "the ends are mixed up"
    assert cli.main(["bisect", *words, "--good", "0.14.0", "--bad", "0.15.0"]) == 2
    assert cli.main(["bisect", "24881", "--scenario", "zz", "--good", "0.14.0", "--bad", "0.14.1"]) == 2


REAL = {
    "0.10.2": {"count", "wrong slot"},
    "0.11.0": {"wrong slot"},
    "0.12.0": {"wrong tokens"},
    "0.33.0": set(),
}


@pytest.mark.parametrize("version", REAL)
def test_real_releases_pack_the_step_as_is_known(version: str) -> None:
    cache = default_cache(os.environ).parent
    if not (cache / "upstream" / f"vllm-{version}").is_dir():
        pytest.skip(f"vllm {version} is not in the cache: specharness upstream-table --releases {version}")
    assert {finding.kind for finding in found_in(release_files("vllm", version, cache))} == REAL[version]
