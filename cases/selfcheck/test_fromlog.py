"""A scheduler dump becomes a scenario whose dumped step has the same rows; what is no dump is told so."""

from __future__ import annotations

import json
import random
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.check.observe import missing, observe
from harness.errors import UsageError
from harness.fromlog import Dump, read_dump
from harness.lab import Lab
from harness.run import Judge
from harness.scenario import Scenario
from harness.targets.registry import TargetOptions, open_target
from harness.verdict import Verdict

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
LOGS = sorted((FIXTURES / "logs").glob("*.log"))
PREFIXES = [
    "",
    "ERROR 06-18 17:03:09 [dump_input.py:65] ",
    "(EngineCore_0 pid=4242) ERROR 09-15 08:12:41 [logging_utils/dump_input.py:76] ",
    "2026-03-05T05:40:33.86Z stdout F (EngineCore_DP0 pid=286) \x1b[31mERROR 03-05 05:40:33 [dump_input.py:79]\x1b[0m ",
    "vllm-1  | (EngineCore pid=6709) ERROR 07-20 14:20:39 [dump_input.py:79] ",
]


@dataclass(frozen=True)
class Row:
    """What a generated row is made from; ``tokens`` of a prompt, or drafts."""

    id: str
    drafts: tuple[int, ...]
    prompt: int
    computed: int
    guided: bool


ids = st.text("abcdef0123456789-_.:", min_size=1, max_size=40).filter(
    lambda text: text[0] not in ":" and text[-1] != ":"
)
rows = st.lists(
    st.builds(
        Row,
        id=ids,
        drafts=st.lists(st.integers(-1, 160_000), max_size=8).map(tuple),
        prompt=st.sampled_from([0, 0, 0, 2, 70, 9000]),
        computed=st.integers(0, 130_000),
        guided=st.booleans(),
    ),
    min_size=1,
    max_size=12,
    unique_by=lambda row: row.id,
)


def write(rows: list[Row], style: str, prefix: str, wrap: int, seed: int) -> str:
    """A log with these rows: decoding rows first, new prompts last, mappings in any order."""
    dice = random.Random(seed)

    def mapping(items: dict[str, object]) -> str:
        entries = [f"{key}: {value}" for key, value in items.items()]
        dice.shuffle(entries)
        return "{" + ", ".join(entries) + "}"

    cached, new = [row for row in rows if not row.prompt], [row for row in rows if row.prompt]
    scheduled = {row.id: row.prompt or len(row.drafts) + 1 for row in rows}
    fresh = ", ".join(
        f"NewRequestData(req_id={row.id},prompt_token_ids_len={row.prompt},sampling_params=SamplingParams(n=1, "
        f"stop_token_ids=[], json={{'a': ['}}', '(']}}),block_ids=([1],),num_computed_tokens={row.computed})"
        for row in new
    )
    if style == "one a request":
        each = [
            f"CachedRequestData(req_id='{row.id}',new_token_ids=[7],num_computed_tokens={row.computed})"
            for row in cached
        ]
        running = f"[{', '.join(each)}]"
    else:
        names, counts = [f"'{row.id}'" for row in cached], [str(row.computed) for row in cached]
        running = (
            f"CachedRequestData(req_ids=[{', '.join(names)}], new_block_ids=[None, ([], [3])], "
            f"num_computed_tokens=[{', '.join(counts)}])"
        )
    guided = (
        f"has_structured_output_requests={str(any(row.guided for row in rows)).lower()}"
        if style == "newer"
        else f"structured_output_request_ids={mapping({row.id: 0 for row in rows if row.guided})}, "
        "grammar_bitmask=array([[1, ..., 0]], dtype=int32)"
    )
    dump = (
        f"Dumping scheduler output for model execution: SchedulerOutput(scheduled_new_reqs=[{fresh}], "
        f"scheduled_cached_reqs={running}, num_scheduled_tokens={mapping(dict(scheduled))}, "
        f"total_num_scheduled_tokens={sum(scheduled.values())}, scheduled_spec_decode_tokens="
        f"{mapping({row.id: list(row.drafts) for row in cached if row.drafts})}, {guided}, kv_connector_metadata=null)"
    )
    pieces = [dump[at : at + wrap] for at in range(0, len(dump), wrap)] if wrap else [dump]
    # a wrapped line may lose its prefix or keep it; another process may cut in
    lines = [f"{prefix if i == 0 or seed % 2 else ''}{piece}" for i, piece in enumerate(pieces)]
    if prefix:
        lines.insert(1, "(APIServer pid=1) INFO 09-15 08:12:41 [loggers.py:123] num_scheduled_tokens={x: 1}")
    return "\n".join(["started", *lines, f"{prefix}Dumping scheduler stats: SchedulerStats()", ""])


def read(text: str | bytes) -> Dump:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "engine.log"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return read_dump(path)


@settings(max_examples=150, deadline=None)
@given(
    rows=rows,
    style=st.sampled_from(["one a request", "one for all", "newer"]),
    prefix=st.sampled_from(PREFIXES),
    wrap=st.sampled_from([0, 0, 61, 160]),
    seed=st.integers(0, 99),
)
def test_a_dump_reads_back_as_what_it_was_made_from(
    rows: list[Row], style: str, prefix: str, wrap: int, seed: int
) -> None:
    dump = read(write(rows, style, prefix, wrap, seed))
    expected = sorted(rows, key=lambda row: bool(row.prompt))
    assert [row.request for row in dump.rows] == [row.id for row in expected]
    assert dump.row_lengths == [row.prompt or len(row.drafts) + 1 for row in expected]
    assert [row.drafts for row in dump.rows] == [() if row.prompt else row.drafts for row in expected]
    assert [row.computed for row in dump.rows] == [row.computed for row in expected]
    assert [row.prompt for row in dump.rows] == [bool(row.prompt) for row in expected]
    unknown = style == "newer" and any(row.guided for row in rows)
    assert [row.guided for row in dump.rows] == [None if unknown else row.guided for row in expected]
    assert str(dump)


@settings(max_examples=150, deadline=None)
@given(junk=st.one_of(st.binary(max_size=400), st.text(max_size=400).map(str.encode)))
def test_junk_is_told_so(junk: bytes) -> None:
    with pytest.raises(UsageError, match="expected"):
        read(junk)
    with pytest.raises(UsageError):
        read(b"SchedulerOutput(scheduled_new_reqs=[], num_scheduled_tokens={" + junk)


@settings(max_examples=300, deadline=None)
@given(log=st.sampled_from(LOGS), data=st.data())
def test_a_log_with_a_part_lost_is_read_right_or_refused(log: Path, data: st.DataObject) -> None:
    text = log.read_bytes()
    whole = read_dump(log)
    start = data.draw(st.integers(0, len(text)))
    stop = data.draw(st.one_of(st.just(len(text)), st.integers(start, min(start + 200, len(text)))))
    try:
        dump = read(text[:start] + text[stop:])
    except UsageError:
        return
    assert sum(dump.row_lengths) == sum(whole.row_lengths)


@pytest.mark.parametrize("cut_before", ["num_scheduled_tokens", "scheduled_spec_decode_tokens"])
def test_a_dump_that_ends_early_names_what_it_lacks(cut_before: str) -> None:
    text = LOGS[-1].read_text()
    with pytest.raises(UsageError, match=rf"ends before {cut_before}"):
        read(text[: text.index(f" {cut_before}=")])
    with pytest.raises(UsageError, match=rf"ends inside {cut_before}"):
        read(text[: text.index(f" {cut_before}=") + len(cut_before) + 60])


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("total_num_scheduled_tokens=44", "total_num_scheduled_tokens=45", "part of the dump is lost"),
        ("[151645]", "[151645, 1, 2]", "more tokens than drafts"),
        ("[151645]", "[151645, ...]", "values were left out"),
        ("SchedulerOutput(scheduled", "SchedulerOutput<scheduled", "no scheduler dump"),
    ],
)
def test_a_dump_that_contradicts_itself_is_refused(old: str, new: str, complaint: str) -> None:
    text = (FIXTURES / "logs" / "vllm-24881.log").read_text()
    assert old in text
    with pytest.raises(UsageError, match=complaint):
        read(text.replace(old, new))


def test_a_missing_file_and_a_folder_are_told_so(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.log", tmp_path):
        with pytest.raises(UsageError, match="cannot be read"):
            read_dump(path)


def test_ids_that_an_early_version_printed_as_a_template_do_not_matter() -> None:
    text = (FIXTURES / "logs" / "mixed-prompt-0.9.log").read_text().replace("\n", "")
    for line in text.split("req_id='")[1:]:
        text = text.replace(f"'{line.partition(chr(39))[0]}'", "'{obj}'")
    dump = read(text)
    assert sorted(dump.row_lengths) == [1, 2, 3, 4, 70]
    assert dump.rows[-1].prompt
    assert dump.rows[0].computed is None


def test_the_public_dump_says_its_arithmetic() -> None:
    dump = read_dump(FIXTURES / "logs" / "vllm-24881.log")
    assert "15 requests, 44 tokens in verify rows, 15 x 3 = 45 if every row were full" in str(dump)
    assert "44 is no multiple of 15" in str(dump)
    assert "9 is 3 x 3" in str(read_dump(FIXTURES / "logs" / "mixed-prompt-0.9.log"))
    assert [row.drafts for row in dump.short_rows] == [(151645,)]
    assert "151645, an end token" in str(dump)
    assert (dump.version, dump.k) == ("v0.10.2", 2)


def test_more_drafts_than_a_scenario_can_have_are_refused(lab: Lab) -> None:
    dump = read(write([Row("a", tuple(range(9)), 0, 5, False)], "newer", "", 0, 0))
    with pytest.raises(UsageError, match="saw 9 drafts"):
        dump.scenario(lab)
    with pytest.raises(UsageError, match="at most 1"):
        read_dump(LOGS[0]).scenario(lab, k=1)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=rows, seed=st.integers(0, 99))
def test_any_dump_becomes_a_scenario_that_runs_with_its_rows(
    rows: list[Row], seed: int, peaked: Path
) -> None:
    dump = read(write(rows, "one for all", "", 0, seed))
    scenario = dump.scenario(Lab(peaked, FIXTURES))
    target = open_target("embedded", TargetOptions(folder=peaked, kernels="naive"))("fixed")
    trace = target.run(scenario)
    dumped = trace.steps[2 if dump.decoding_rows else 0]
    assert [row.tokens for row in dumped.rows] == [min(count, 64 + count % 64) for count in dump.row_lengths]
    assert not list(missing(scenario.must_observe, observe(scenario, trace)))


@pytest.fixture
def lab(peaked: Path) -> Lab:
    return Lab(peaked, FIXTURES)


@pytest.mark.parametrize(
    ("log", "crash"),
    [
        ("vllm-24881", "shape '[15, -1, {D}]' is invalid for input of size {44D}"),
        ("mixed-prompt-0.9", "shape '[83, "),  # 4 + 3 + 2 + 1 + 70 tokens, but 3 x 4 in the rows with drafts
        ("newer-0.16", "shape '[5, -1, {D}]' is invalid for input of size {17D}"),
    ],
)
def test_a_dump_replays_with_the_same_rows_and_dies_the_same_way(
    log: str, crash: str, peaked: Path, lab: Lab
) -> None:
    dump = read_dump(FIXTURES / "logs" / f"{log}.log")
    written = dump.scenario(lab)
    scenario = Scenario.from_json(json.dumps(json.loads(written.to_json())))
    assert scenario == written
    open_variant, judge = (
        open_target("embedded", TargetOptions(folder=peaked, kernels="naive")),
        Judge(peaked),
    )

    fixed = open_variant("fixed").run(scenario)
    assert [row.tokens for row in fixed.steps[2].rows] == dump.row_lengths
    assert [row.prompt_tokens > 0 for row in fixed.steps[2].rows] == [row.prompt for row in dump.rows]
    assert len(fixed.steps) > 3, "a wrong state would have no step to show in"
    assert len({row.previous_accepted for row in fixed.steps[2].rows}) > 1
    gauges = judge.calibrate(open_variant("fixed"), scenario, fixed)
    assert judge.judge(scenario, fixed, gauges).verdict is Verdict.PASS

    before = judge.judge(scenario, open_variant("before-fix").run(scenario), gauges)
    assert before.first is not None
    assert (before.first.kind, before.first.at.step) == ("crash", 2)
    size = lab.conv_dim
    assert (
        crash.replace("{D}", str(size)).replace("{44D}", str(44 * size)).replace("{17D}", str(17 * size))
        in before.first.message
    )
