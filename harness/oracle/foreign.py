"""Judges written by other people, for when the oracle itself is in doubt.

transformers' Qwen3NextForCausalLM judges the model in float32 (it has no MTP head); llguidance judges the grammars.
Where the two grammar libraries read a grammar differently, neither is wrong by this module:

* JSON schema: xgrammar closes objects unless ``additionalProperties`` is true, llguidance leaves them open. Inside
  strings llguidance refuses the byte 0x7F, ``\\/``, and ``\\u`` for anything but control characters. xgrammar takes
  them, and under ``minLength`` or ``maxLength`` it takes raw control characters, but no escape at all.
* all: xgrammar lets the bytes ED A0 begin a character (a surrogate, which UTF-8 forbids).
* regex: ``\\d``, ``\\w`` and ``\\s`` are ASCII in xgrammar and Unicode in llguidance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.errors import ScenarioError, Unsupported
from harness.oracle.functions import Array
from harness.oracle.grammar import KINDS, GrammarJudge, Mask, Vocabulary, literals
from harness.oracle.model import State

if TYPE_CHECKING:
    import llguidance


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignReplay:
    """What transformers says after each of T tokens, and the state it is left with."""

    logits: Array  # [T, vocab]
    router: Array  # [T, num_layers, E] probability of every expert
    state: State  # after all T tokens


def foreign_logits(folder: Path | str, tokens: Sequence[int], *, one_by_one: bool = False) -> Array:
    """transformers' logits [T, vocab], as ``foreign_replay`` computes them."""
    return foreign_replay(folder, tokens, one_by_one=one_by_one).logits


def foreign_replay(folder: Path | str, tokens: Sequence[int], *, one_by_one: bool = False) -> ForeignReplay:
    """Runs transformers in float32 over T tokens, in one pass (chunked recurrence) or ``one_by_one`` (cached).

    Raises Unsupported if this environment has no transformers with Qwen3-Next.
    """
    import torch

    try:
        from transformers import Qwen3NextForCausalLM
    except ImportError as absent:
        raise Unsupported(f"the foreign model needs transformers: {absent}") from absent
    # Eager experts are a plain loop of float32 products; the default goes through a grouped kernel.
    model = Qwen3NextForCausalLM.from_pretrained(
        str(folder), dtype=torch.float32, experts_implementation="eager"
    ).eval()
    rows: list[torch.Tensor] = []
    router: list[torch.Tensor] = []
    cache: Any = None
    with torch.no_grad():
        for part in [[token] for token in tokens] if one_by_one else [list(tokens)]:
            output = model(
                torch.tensor([part]), past_key_values=cache, use_cache=True, output_router_logits=True
            )
            cache = output.past_key_values
            rows.append(output.logits[0])
            router.append(torch.stack(output.router_logits, dim=1))
    linear = [
        cache.layers[i] for i, kind in enumerate(model.config.layer_types) if kind == "linear_attention"
    ]
    # transformers keeps W columns of raw inputs, channels first, and the recurrent state as [HV, K, V].
    conv = torch.stack([layer.conv_states[0][0, :, 1:].T for layer in linear])
    recurrent = torch.stack([layer.recurrent_states[0][0].transpose(-1, -2) for layer in linear])
    return ForeignReplay(
        logits=torch.cat(rows).double().numpy(),
        router=torch.cat(router).double().softmax(dim=-1).numpy(),
        state=State(conv=conv.double().numpy(), recurrent=recurrent.double().numpy()),
    )


class ForeignGrammar(GrammarJudge):
    """llguidance, replayed."""

    def __init__(self, vocabulary: Vocabulary, tokenizer: llguidance.LLTokenizer, grammar: str) -> None:
        self.vocabulary = vocabulary
        self._tokenizer = tokenizer
        self._grammar = grammar

    @classmethod
    def compile(cls, folder: Path | str, kind: str, text: str) -> ForeignGrammar:
        """As GrammarOracle.compile. Raises Unsupported if llguidance cannot express the grammar."""
        from llguidance import LLMatcher, LLTokenizer
        from llguidance.gbnf_to_lark import GbnfToLarkError, gbnf_to_lark

        vocabulary = Vocabulary.read(Path(folder))
        if kind == "json_schema":
            grammar = LLMatcher.grammar_from_json_schema(
                text, overrides={"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
            )
        elif kind == "regex":
            grammar = LLMatcher.grammar_from_regex(text)
        elif kind == "choice":
            grammar = LLMatcher.grammar_from_lark("start: " + " | ".join(literals(text)))
        elif kind == "ebnf":
            try:
                grammar = LLMatcher.grammar_from_lark(gbnf_to_lark(text))
            except GbnfToLarkError as refusal:
                raise Unsupported(f"llguidance cannot read this ebnf: {refusal}") from refusal
        else:
            raise ScenarioError(f"unknown kind of grammar {kind!r}; there are {', '.join(KINDS)}")
        stop = list(vocabulary.stop_ids)
        tokenizer = LLTokenizer(str(Path(folder) / "tokenizer.json"), n_vocab=vocabulary.size, eos_token=stop)
        failed, messages = LLMatcher.validate_grammar_with_warnings(grammar, tokenizer)
        if failed:
            raise Unsupported(f"llguidance does not compile this {kind}: {messages[0]}")
        return cls(vocabulary, tokenizer, grammar)

    def legal_prefix(self, tokens: Sequence[int]) -> int:
        return self._read(tokens)[1]

    def next_mask(self, history: Sequence[int]) -> Mask:
        # compute_bitmask would leave only the canonical tokens where the text is forced, so ask for each token.
        matcher, _ = self._read(history)
        mask = np.array([matcher.validate_tokens([t]) == 1 for t in range(self.vocabulary.size)])
        mask[list(self.vocabulary.stop_ids)] = matcher.is_accepting()
        return mask

    def _read(self, tokens: Sequence[int]) -> tuple[llguidance.LLMatcher, int]:
        """A fresh matcher that has read the legal tokens, and their number."""
        from llguidance import LLMatcher

        matcher = LLMatcher(self._tokenizer, self._grammar, log_level=0)
        for legal, token in enumerate(tokens):
            if token in self.vocabulary.stop_ids:
                return matcher, legal + matcher.is_accepting()
            if not 0 <= token < self.vocabulary.size or not matcher.consume_token(token):
                return matcher, legal
        return matcher, len(tokens)
