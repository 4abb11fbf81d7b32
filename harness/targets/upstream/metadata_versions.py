"""The metadata builders of vLLM's releases, readable at a glance: from which version on they look how.

=========  ==============================  ==========  =========  =============================================
from       drafts argument of ``build``    tokens by   decodes    new since the line above
=========  ==============================  ==========  =========  =============================================
0.10.2     num_draft_tokens                mask        prefill    the builder pads captured steps by itself
0.11.0     num_decode_draft_tokens_cpu     mask        prefill    unequal rows are counted (PR 24957); -1 stands
                                                                  for a row that is none of a speculating request
0.11.1     num_decode_draft_tokens_cpu     indices     prefill    gather indices by argsort (PR 26437); from
                                                                  0.12.0 on the runner pads, from 0.13.0 on the
                                                                  sort is stable (PR 30632)
0.14.0     num_decode_draft_tokens_cpu     indices     prefill    the attention base classes have moved
0.23.0     num_decode_draft_tokens_cpu     indices     recurrent  decodes beside prompts are peeled off (PR 44700)
0.33.0     num_decode_draft_tokens_cpu     indices     recurrent  more modules
=========  ==============================  ==========  =========  =============================================

``decodes``: what runs one-token rows of no speculating request that stand beside prompts. A version is given the last
line that is not newer than it; the child process holds the builder's real signature and fields against that line, and
a difference is UNSUPPORTED, never a guess. A checkout that names no version takes the first line that fits.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

_BACKENDS = "vllm.v1.attention.backends"
_FIRST = (f"{_BACKENDS}.gdn_attn", f"{_BACKENDS}.utils", "vllm.v1.kv_cache_interface")
_SPLIT = (*_FIRST, "vllm.v1.attention.backend", f"{_BACKENDS}.registry", "vllm.utils.math_utils")
_COUNTS = (
    "num_prefills",
    "num_prefill_tokens",
    "num_decodes",
    "num_decode_tokens",
    "num_spec_decodes",
    "num_spec_decode_tokens",
)
_ROWS = (
    "has_initial_state",
    "spec_query_start_loc",
    "non_spec_query_start_loc",
    "spec_state_indices_tensor",
    "non_spec_state_indices_tensor",
    "num_accepted_tokens",
)
_MASK = ("spec_token_masks",)
_INDICES = ("spec_token_indx", "non_spec_token_indx")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """One line of the table. ``modules`` are served from the release, all others are stubs."""

    since: str
    drafts: str
    tokens: Literal["mask", "indices"]
    peels_decodes: bool = False
    modules: tuple[str, ...] = _SPLIT

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields of the builder's answer that are judged."""
        return (*_COUNTS, *_ROWS, *(_MASK if self.tokens == "mask" else _INDICES))


_OLD, _NEW = "num_draft_tokens", "num_decode_draft_tokens_cpu"
_NEWEST = (
    *_SPLIT,
    "vllm.v1.kv_cache_layout",
    "vllm.v1.kv_cache_spec_registry",
    "vllm.model_executor.layers.mamba.checkpoint",
)
LAYOUTS = (
    Layout(since="0.10.2", drafts=_OLD, tokens="mask", modules=_FIRST),
    Layout(since="0.11.0", drafts=_NEW, tokens="mask", modules=_FIRST),
    Layout(since="0.11.1", drafts=_NEW, tokens="indices", modules=(*_FIRST, "vllm.utils.math_utils")),
    Layout(since="0.14.0", drafts=_NEW, tokens="indices"),
    Layout(since="0.23.0", drafts=_NEW, tokens="indices", peels_decodes=True),
    Layout(since="0.33.0", drafts=_NEW, tokens="indices", peels_decodes=True, modules=_NEWEST),
)
"""Oldest first."""


def version_key(version: str) -> tuple[int, ...]:
    """A version as numbers, so that 0.9 comes before 0.10; what follows the numbers does not count."""
    return tuple(int(part) for part in re.findall(r"\d+", version.split("+")[0].split("rc")[0])[:4])


def layouts_for(version: str | None) -> list[Layout]:
    """The line for a version, none before the first; every line, newest first, where no version is known."""
    if version is None:
        return list(reversed(LAYOUTS))
    return [line for line in LAYOUTS if version_key(line.since) <= version_key(version)][-1:]
