"""What a release's model runner hands to the metadata builder: read off its source, each answer with its line.

The builder alone does not decide how a row without drafts arrives, whether a step without any draft arrives as
speculative at all, which accepted counts are kept, and how a captured step is padded. Where the text gives no answer
the fact is ``None``, and the suspect is UNSUPPORTED.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from harness.packing import Batch, Row

RUNNER = "vllm/v1/worker/gpu_model_runner.py"
SECOND = ("vllm/v1/worker/gpu/model_states/mamba_hybrid.py", "vllm/v1/worker/gpu/model_runner.py")
"""Model runner V2, which newer releases have beside the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A decision of the runner, and the line that says so."""

    value: int | bool | None
    line: int
    text: str
    file: str = "gpu_model_runner.py"

    def __str__(self) -> str:
        return f"{self.file}:{self.line} `{self.text}`"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerFacts:
    """The decisions of one release.

    ``zero_draft``: how a verify row without drafts arrives beside rows with drafts, 0 or -1. ``without_drafts``:
    whether a step in which no row has drafts is passed as speculative. ``refreshes``: whether accepted counts are
    updated after every step. ``replays``: a captured graph is replayed for every step whose rows all have k + 1
    tokens, prompts or not. ``pads_with``: the slot of padded rows, ``None`` where the runner pads no rows.
    """

    zero_draft: Fact
    without_drafts: Fact
    refreshes: Fact
    replays: Fact
    pads_with: Fact | None

    @property
    def sources(self) -> dict[str, str]:
        """Each decision in words, and the line that says so."""
        without = "as speculative" if self.without_drafts.value else "as not speculative"
        counts = "after every step" if self.refreshes.value else "only after steps with drafts"
        padding = "by the builder alone" if self.pads_with is None else f"with slot {self.pads_with.value}"
        return {
            f"a row without drafts arrives as {self.zero_draft.value}": str(self.zero_draft),
            f"a step without any draft arrives {without}": str(self.without_drafts),
            f"accepted counts are updated {counts}": str(self.refreshes),
            "a graph is replayed where every row has k + 1 tokens, prompts too": str(self.replays),
            f"captured steps are padded {padding}": str(self.pads_with or "no line pads the block table"),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """How a step is handed over: the decisions that are tried, those of the release or others.

    ``prompts_replay``: a captured graph is replayed for prompts of k + 1 tokens as well. ``one_token_prompts``: the
    last token of a prompt that is in cache otherwise is handed over as a row without drafts.
    """

    zero_draft: int
    without_drafts: bool
    refreshes: bool
    pads_with: int | None
    prompts_replay: bool = True
    one_token_prompts: bool = False


def read_runner(source: str) -> RunnerFacts | str:
    """The facts of a runner's source text, or what was looked for and not found."""
    found: dict[str, Fact | None] = {}
    lines = source.splitlines()
    for name, pattern, values in _PATTERNS:
        hits = [
            Fact(
                value=values[match.lastgroup or ""],
                line=_line(source, match.start()),
                text=_text(lines, source, match),
            )
            for match in re.finditer(pattern, source, re.MULTILINE)
        ]
        found[name] = max(hits, key=lambda fact: fact.line, default=None)
    found["refreshes"] = _refreshes(lines)
    for name in _QUESTIONS:
        if found[name] is None:
            return f"{RUNNER} does not say in a known way: {_QUESTIONS[name]}"
    facts: Any = found
    return RunnerFacts(**facts)


def read_second(sources: Mapping[str, str]) -> tuple[Feed, dict[str, str]] | None:
    """How model runner V2 hands steps over, from its two source texts, with the lines; ``None``: not in a known way."""
    facts = []
    for name, pattern, value in _SECOND_PATTERNS:
        match = re.search(pattern, sources.get(name, ""), re.MULTILINE)
        if match is None:
            return None
        line = _line(sources[name], match.start())
        zero = value if match.lastgroup is None else -1
        facts.append(
            Fact(value=zero, line=line, text=match.group().strip(), file=name.removeprefix("vllm/v1/worker/"))
        )
    row, step, counts, prompts = facts
    feed = Feed(
        zero_draft=int(row.value or 0),
        without_drafts=True,
        refreshes=True,
        pads_with=0,
        prompts_replay=False,
        one_token_prompts=True,
    )
    return feed, {
        f"a row without drafts arrives as {row.value}": str(row),
        "a step without any draft is passed all the same": str(step),
        "accepted counts are updated after every step": str(counts),
        "no graph is replayed for prompts, save for a last token": str(prompts),
    }


_SECOND_PATTERNS: tuple[tuple[str, str, int], ...] = (
    (SECOND[0], r"^ +(?:is_decode|(?P<minus>spec_decode_mask)), num_draft_tokens_per_req, -1$", 0),
    (SECOND[0], r"^ +num_decode_draft_tokens_np = np\.full\(num_reqs, -1, dtype=np\.int32\)$", 1),
    (SECOND[0], r"^ +_scatter_num_accepted_kernel\[\(num_reqs,\)\]\($", 1),
    (SECOND[1], r"^ +one_token_ext = .*$", 1),
)

_PATTERNS: tuple[tuple[str, str, dict[str, int | bool]], ...] = (
    (
        "zero_draft",
        r"num_decode_draft_tokens\[\s*\(num_decode_draft_tokens < 0\)[^\]]*\] = (?P<zero>0)$"
        r"|(?P<minus>num_decode_draft_tokens = np\.full\(num_reqs, -1)"
        r"|(?P<zeros> num_draft_tokens = np\.zeros\(num_reqs)(?![\s\S]*num_decode_draft_tokens)",
        {"zero": 0, "minus": -1, "zeros": 0},
    ),
    (
        "without_drafts",
        r"(?P<omits>^ {8}use_spec_decode = len\(\s*scheduler_output\.scheduled_spec_decode_tokens\) > 0$)"
        r"|(?P<passes>^ {8}use_spec_decode = self\.speculative_config is not None$)",
        {"omits": False, "passes": True},
    ),
    (
        "replays",
        r"(?P<counts>^ +and \(num_tokens(_padded)? == max_num_scheduled_tokens \* num_reqs\)$)"
        r"|(?P<older>^ +\)? ?and \(num_scheduled_tokens == num_reqs \* max_num_scheduled_tokens\)$)"
        r"|(?P<oldest>^ +== self\.input_batch\.num_reqs \* max_query_len\)$)",
        {"counts": True, "older": True, "oldest": True},
    ),
    (
        "pads_with",
        r"(?P<minus>^ +blk_table_tensor\[num_reqs:num_reqs_padded\]\.fill_\(-1\)$)"
        r"|(?P<null>^ +blk_table_tensor\[num_reqs:num_reqs_padded\]\.fill_\(NULL_BLOCK_ID\)$)",
        {"minus": -1, "null": 0},
    ),
)
_QUESTIONS = {
    "zero_draft": "how a row without drafts arrives at the builder",
    "without_drafts": "what a step without any draft passes to the builder",
    "refreshes": "when accepted counts are updated",
    "replays": "for which steps a captured graph is replayed",
}


def _which(match: re.Match[str]) -> str:
    return next(name for name, text in match.groupdict().items() if text is not None)


def _line(source: str, at: int) -> int:
    return source.count("\n", 0, at) + 1


def _text(lines: list[str], source: str, match: re.Match[str]) -> str:
    """The line on which a match begins, and its end where it goes over several."""
    first, last = _line(source, match.start()), _line(source, match.end())
    return " ".join(line.strip() for line in lines[first - 1 : last])


def _refreshes(lines: list[str]) -> Fact | None:
    """Right after the rejection sampler, the update happens only in steps with drafts; elsewhere, in every step."""
    for number, line in enumerate(lines, start=1):
        if re.match(r" +self\._update_states_after_model_execute\(", line):
            before = "\n".join(lines[max(number - 24, 0) : number - 1])
            only_with_drafts = "self.rejection_sampler(" in before
            return Fact(value=not only_with_drafts, line=number, text=line.strip())
    return None


def in_runner_order(batch: Batch) -> Batch:
    """Verify rows first, then pieces of prompts, then new prompts, short before long: legal in every release."""

    def region(row: Row) -> tuple[bool, bool, bool]:
        return (row.in_prompt, row.tokens > batch.k + 1, not row.start)

    return replace(batch, rows=tuple(sorted(batch.rows, key=region)))


def hand_over(batch: Batch, feed: Feed, *, no_row: int) -> dict[str, Any]:
    """The arrays that the runner would fill for a step; ``no_row`` is what stands for a row of a prompt.

    Only where a captured graph of the whole step is replayed are rows padded.
    """
    one_token = [feed.one_token_prompts and row.tokens == 1 and row.start > 0 for row in batch.rows]
    prompts = [row.in_prompt and not one for row, one in zip(batch.rows, one_token, strict=True)]
    drafts = [
        no_row if prompt else row.drafts or feed.zero_draft
        for row, prompt in zip(batch.rows, prompts, strict=True)
    ]
    accepted = [row.previous if feed.refreshes else row.unrefreshed for row in batch.rows]
    table = [list(row.slots) for row in batch.rows]
    starts = [0]
    for row in batch.rows:
        starts.append(starts[-1] + row.tokens)
    tokens = replayed_tokens(batch, feed) if feed.pads_with is not None else None
    padded = tokens // (batch.k + 1) - len(batch.rows) if tokens else 0
    passes = feed.without_drafts or any(row.drafts for row in batch.rows)
    return {
        "query_start_loc": starts + starts[-1:] * padded,
        "seq_lens": [row.start + row.tokens for row in batch.rows] + [0] * padded,
        "num_actual_tokens": tokens or batch.num_tokens,
        "block_table": table + [[feed.pads_with] * (batch.k + 1)] * padded,
        "is_prefilling": prompts + [False] * padded,
        "drafts": drafts + [no_row] * padded if passes else None,
        "accepted": accepted + [1] * padded,
    }


def replayed_tokens(batch: Batch, feed: Feed) -> int | None:
    """Tokens of the captured graph of the whole step that is replayed for it: where every row has k + 1 tokens."""
    width = batch.k + 1
    if any(row.tokens != width or (row.in_prompt and not feed.prompts_replay) for row in batch.rows):
        return None
    fits = [s for s in batch.capture_sizes if s >= batch.num_tokens and s % width == 0]
    return min((s for s in fits if s // width <= batch.max_num_seqs), default=None)
