"""Every guided answer against its grammar, and every answer against itself."""

from __future__ import annotations

import json
import re
from collections import Counter

from harness.exchange import Answer, Exchange, Fate
from harness.live.finding import Finding
from harness.live.judges import Judges
from harness.live.noise import MOST
from harness.live.transcript import Transcript
from harness.scenario import Grammar
from harness.verdict import Verdict

VIOLATED = "violated"
ENDED_EARLY = "ended early"
WENT_ON = "went on behind its end"
LIBRARY = "grammar-library"
TRUNCATED = "truncated"
DIALECT = "valid by its text, written otherwise than our matcher writes it"
VALID = "valid"
CUT_LETTER = "\ufffd"
"""Stands for a letter that lacks some of its bytes; servers hold it back, or write it once or twice."""
MOST_LOGPROB = 0.01
"""That of a certain token, and what bfloat16 makes of it."""
BAD = (VIOLATED, ENDED_EARLY, WENT_ON)


def grammar(transcript: Transcript, judges: Judges) -> Finding:
    """Truncated, violated and ended early are told apart; what a fresh matcher allows and strict JSON refuses is the
    grammar library's doing, and no failure of the engine."""
    kinds: dict[str, str] = {}
    for exchange in transcript.generated:
        if exchange.ask.grammar is not None and exchange.answer.fate in (Fate.COMPLETE, Fate.ABORTED):
            kinds[exchange.ask.id] = kind_of(exchange, judges)
    if not kinds:
        reason = transcript.offer.lacks.get("grammars", "no guided answer came back")
        unsupported = transcript.offer.grammars is None
        return Finding(
            check="grammar", verdict=Verdict.UNSUPPORTED if unsupported else Verdict.INCONCLUSIVE, told=reason
        )
    counts = Counter(kinds.values())
    summary = ", ".join(f"{count} {kind}" for kind, count in counts.most_common())
    hit = tuple(name for name, kind in kinds.items() if kind in BAD)
    worst = ""
    if hit:
        text = transcript.exchanges[hit[0]].answer.text
        worst = f"{hit[0]} {kinds[hit[0]]}: {text[:120]!r}"
    by = (
        "a fresh matcher and the text"
        if judges.folder
        else "the text alone: --tokenizer FOLDER asks a matcher, too"
    )
    return Finding(
        check="grammar",
        verdict=Verdict.FAIL if hit else Verdict.PASS,
        told=f"{summary} (by {by})",
        hit=hit,
        of=len(kinds),
        worst=worst,
    )


def kind_of(exchange: Exchange, judges: Judges) -> str:
    """One guided answer's kind."""
    ask, answer = exchange.ask, exchange.answer
    assert ask.grammar is not None
    judge = judges.of(ask.grammar)
    tokens = answer.tokens
    whole = answer.fate is Fate.COMPLETE and answer.finish_reason == "stop"
    if judge is not None and tokens:
        legal = judge.legal_prefix(tokens)
        if legal < len(tokens):
            ended = judge.ended(tokens[:legal])
            if ended:
                return WENT_ON
            return DIALECT if whole and fits(answer.text, ask.grammar) else VIOLATED
        # some servers leave the end token out of the answer: then it must be legal there
        complete = judge.ended(tokens) or any(
            judge.next_mask(tokens)[stop] for stop in judge.vocabulary.stop_ids
        )
        if not whole:
            return TRUNCATED
        if not complete:
            return ENDED_EARLY
        return VALID if fits(answer.text, ask.grammar) is not False else LIBRARY
    if not whole:
        return TRUNCATED
    return VIOLATED if fits(answer.text, ask.grammar) is False else VALID


def fits(text: str, grammar: Grammar) -> bool | None:
    """Whether a whole text is what a grammar describes; ``None`` where only a matcher knows."""
    if grammar.kind == "choice":
        return text in json.loads(grammar.text)
    if grammar.kind == "regex":
        return re.fullmatch(grammar.text, text) is not None
    if grammar.kind == "json_schema":
        from jsonschema import Draft202012Validator

        try:
            value = json.loads(text)
        except ValueError:
            return False
        return bool(Draft202012Validator(json.loads(grammar.text)).is_valid(value))
    return None


def whole(transcript: Transcript, judges: Judges) -> Finding:
    """Nothing lost or doubled: chunks, tokens, text, log-probabilities and usage of an answer say the same."""
    wrong: dict[str, str] = {}
    answers = [e for e in transcript.audited if e.answer.fate is Fate.COMPLETE]
    for exchange in answers:
        if told := _contradiction(exchange, judges):
            wrong[exchange.ask.id] = told
    if not answers:
        return Finding(check="whole answers", verdict=Verdict.INCONCLUSIVE, told="no answer came to its end")
    first = next(iter(wrong.items()), None)
    return Finding(
        check="whole answers",
        verdict=Verdict.FAIL if wrong else Verdict.PASS,
        told="answers contradict themselves" if wrong else "chunks, tokens, text and usage agree",
        hit=tuple(wrong),
        of=len(answers),
        worst=": ".join(first) if first else "",
    )


def _contradiction(exchange: Exchange, judges: Judges) -> str:
    ask, answer = exchange.ask, exchange.answer
    count = answer.completion_tokens
    if count is not None and count > ask.max_tokens:
        return f"{count} tokens, {ask.max_tokens} were allowed"
    if answer.finish_reason == "length" and count is not None and count < ask.max_tokens:
        return f"ended for its length with {count} of {ask.max_tokens} tokens"
    if any(place.logprob > MOST_LOGPROB for place in answer.places):
        return f"a log-probability is {max(place.logprob for place in answer.places):.3g}"
    if not answer.tokens:
        return ""
    if told := _not_the_best(exchange):
        return told
    silent = answer.finish_reason == "stop"  # some leave the end token out of the ids and count it
    counts = (len(answer.tokens), len(answer.tokens) + silent)
    if count is not None and count not in counts:
        return f"usage counts {count} tokens, {len(answer.tokens)} came"
    if answer.prompt_tokens is not None and answer.prompt and answer.prompt_tokens != len(answer.prompt):
        return f"usage counts {answer.prompt_tokens} tokens of the prompt, which has {len(answer.prompt)}"
    if answer.places and len(answer.places) not in counts:
        return f"{len(answer.tokens)} tokens with {len(answer.places)} log-probabilities"
    return "" if ask.stop or ask.stop_token_ids else _text(answer, judges)


def _not_the_best(exchange: Exchange) -> str:
    """A free greedy token is the best one of the law that comes with it, give or take what no noise explains."""
    ask, answer = exchange.ask, exchange.answer
    if ask.temperature or ask.grammar is not None:
        return ""
    for index, place in enumerate(answer.places):
        lost = max(place.best.values(), default=place.logprob) - place.logprob
        if lost > MOST:
            return f"token {index}: by the law that came with it another one is {lost:.3g} likelier"
    return ""


def _text(answer: Answer, judges: Judges) -> str:
    said = judges.text(answer.tokens)
    if said is not None and said.replace(CUT_LETTER, "") == answer.text.replace(CUT_LETTER, ""):
        return ""
    return (
        f"the tokens say {said[:80]!r}, the text {answer.text[:80]!r}"
        if said is not None and said != answer.text
        else ""
    )
