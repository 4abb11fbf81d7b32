"""Does an answer keep its guide, and where not: cut by the length, broken grammar, or the grammar library's doing?

Judged after the run, off the timed path, on the text alone and (for JSON and regular expressions) by other libraries
than the engine's.
"""

from __future__ import annotations

import enum
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.bench.data.ask import Guide, GuideKind
from harness.bench.json_prefix import is_json_prefix
from harness.bench.metrics.span import complete
from harness.bench.record import RequestRecord

_LENGTH = "length"


class Validity(enum.Enum):
    """What became of a guided answer."""

    VALID = "valid"
    TRUNCATED = "truncated by length"  # right as far as it goes; max_tokens was too small
    INVALID_JSON = "invalid JSON"  # no continuation of it is JSON
    VIOLATION = "schema violation"  # JSON (or text) that the guide does not allow
    ENDED_EARLY = "ended early"  # the model stopped where the guide still wanted more
    GRAMMAR_LIBRARY = (
        "grammar library"  # raw control characters in a string: xgrammar lets them into maxLength ones
    )
    UNJUDGED = "cannot be judged"  # the guide is unknown, or no library here can read it


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One answer; ``detail`` says what is wrong with it."""

    id: str
    guide: str
    validity: Validity
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Validities:
    """All guided answers of the streams that succeeded. A free answer, or a stream that died, is in none of it."""

    answers: tuple[Judged, ...]

    @property
    def counts(self) -> dict[Validity, int]:
        """How many of each class."""
        return Counter(answer.validity for answer in self.answers)

    @property
    def by_guide(self) -> dict[str, dict[Validity, int]]:
        """The same for every guide."""
        found: dict[str, Counter[Validity]] = {}
        for answer in self.answers:
            found.setdefault(answer.guide, Counter())[answer.validity] += 1
        return {name: dict(found[name]) for name in sorted(found)}

    @property
    def valid_share(self) -> float | None:
        """Valid ones of those that could be judged; ``None`` where there were none."""
        judged = [answer for answer in self.answers if answer.validity is not Validity.UNJUDGED]
        return sum(a.validity is Validity.VALID for a in judged) / len(judged) if judged else None

    @property
    def invalid(self) -> frozenset[str]:
        """Ids of answers that are not valid: what valid-goodput leaves out."""
        return frozenset(answer.id for answer in self.answers if answer.validity is not Validity.VALID)


def validate(records: Sequence[RequestRecord], guides: Iterable[Guide]) -> Validities:
    """Judge every guided answer; ``guides`` by the name that a record's ``guide`` has."""
    known = {guide.name: guide for guide in guides}
    judges: dict[str, Callable[[str, bool], tuple[Validity, str]]] = {}
    answers = []
    for record in complete(records):
        if record.guide is None:
            continue
        if record.guide not in judges:
            judges[record.guide] = judge_for(known.get(record.guide))
        validity, detail = judges[record.guide](record.text, record.finish_reason == _LENGTH)
        answers.append(Judged(id=record.id, guide=record.guide, validity=validity, detail=detail))
    return Validities(answers=tuple(answers))


def judge_for(guide: Guide | None) -> Callable[[str, bool], tuple[Validity, str]]:
    """(text, whether the length cut it) -> (class, detail)."""
    if guide is None:
        return lambda text, cut: (Validity.UNJUDGED, "its guide is not among those of this run")
    try:
        if guide.kind is GuideKind.JSON_SCHEMA:
            return _schema(guide.rule)
        if guide.kind is GuideKind.REGEX:
            return _regex(guide.rule)
        return _choice(guide.rule) if guide.kind is GuideKind.CHOICE else _grammar(guide.rule)
    except _Unreadable as error:
        reason = str(error)
        return lambda text, cut: (Validity.UNJUDGED, reason)


class _Unreadable(Exception):
    """A guide that no library here can judge by."""


def strict_json(text: str, *, controls: bool = False) -> Any:
    """Parse as RFC 8259 has it: no NaN, no Infinity. ValueError says where it is wrong.

    ``controls``: raw control characters in strings are let through.
    """
    return json.loads(text, parse_constant=_refuse, strict=not controls)


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is no JSON")


def _schema(rule: Mapping[str, Any] | bool) -> Callable[[str, bool], tuple[Validity, str]]:
    from jsonschema import Draft202012Validator, exceptions
    from jsonschema.validators import validator_for
    from referencing.exceptions import Unresolvable

    kind = validator_for(rule, default=Draft202012Validator)
    try:
        kind.check_schema(rule)
    except (exceptions.SchemaError, re.error, RecursionError) as error:
        raise _Unreadable(f"its schema is none: {str(error).splitlines()[0]}") from None
    validator = kind(rule)

    def judge(text: str, cut: bool) -> tuple[Validity, str]:
        raw = ""
        try:
            value = strict_json(text)
        except RecursionError:
            return Validity.UNJUDGED, "nested too deeply to be read"
        except ValueError as error:
            raw = str(error)
            try:
                value = strict_json(text, controls=True)
            except ValueError:
                return _not_json(text, cut, raw)
        try:
            wrong = next(iter(validator.iter_errors(value)), None)
        except (Unresolvable, re.error, RecursionError) as error:
            return Validity.UNJUDGED, f"{type(error).__name__}: {error}"
        if wrong is not None:
            more = cut and type(value) in (int, float)  # only a number can go on behind its end
            told = f"{wrong.json_path}: {wrong.message[:200]}"
            return (Validity.TRUNCATED if more else Validity.VIOLATION), told
        return (Validity.GRAMMAR_LIBRARY, raw) if raw else (Validity.VALID, "")

    return judge


def _not_json(text: str, cut: bool, error: str) -> tuple[Validity, str]:
    """Cut off, ended early, or wrong? Raw control characters in strings are the library's doing and let through."""
    if is_json_prefix(text, controls=True):
        if cut:
            return Validity.TRUNCATED, error
        return Validity.ENDED_EARLY, error if text.strip() else "nothing"
    try:
        _, end = json.JSONDecoder(strict=False).raw_decode(text.lstrip())
    except (ValueError, RecursionError):
        return Validity.INVALID_JSON, error
    return Validity.INVALID_JSON, f"a document, then {len(text.lstrip()) - end} more characters (ignore_eos?)"


def _regex(rule: str) -> Callable[[str, bool], tuple[Validity, str]]:
    try:
        pattern = re.compile(rule)
    except re.error as error:
        raise _Unreadable(f"Python cannot read its expression: {error}") from None

    def judge(text: str, cut: bool) -> tuple[Validity, str]:
        if pattern.fullmatch(text):
            return Validity.VALID, ""
        return (Validity.TRUNCATED if cut else Validity.VIOLATION), "does not match"

    return judge


def _choice(rule: tuple[str, ...]) -> Callable[[str, bool], tuple[Validity, str]]:
    def judge(text: str, cut: bool) -> tuple[Validity, str]:
        if text in rule:
            return Validity.VALID, ""
        if any(choice.startswith(text) for choice in rule):
            return (Validity.TRUNCATED if cut else Validity.ENDED_EARLY), "the beginning of a choice"
        return Validity.VIOLATION, f"none of {len(rule)} choices"

    return judge


def _grammar(rule: str) -> Callable[[str, bool], tuple[Validity, str]]:
    """By xgrammar itself, byte by byte: there is no second reader of its EBNF, so a fault of its own is not seen."""
    import xgrammar

    vocabulary = [bytes([byte]) for byte in range(256)] + [b"<end>"]
    info = xgrammar.TokenizerInfo(vocabulary, vocab_type=xgrammar.VocabType.RAW, stop_token_ids=[256])
    try:
        compiled = xgrammar.GrammarCompiler(info, cache_enabled=False).compile_grammar(rule)
    except RuntimeError as error:
        raise _Unreadable(f"xgrammar cannot read its grammar: {str(error).splitlines()[0]}") from None

    def judge(text: str, cut: bool) -> tuple[Validity, str]:
        matcher = xgrammar.GrammarMatcher(compiled)
        for place, byte in enumerate(text.encode()):
            if not matcher.accept_token(byte):
                return Validity.VIOLATION, f"byte {place} is not in the grammar"
        if matcher.accept_token(256):
            return Validity.VALID, ""
        return (Validity.TRUNCATED if cut else Validity.ENDED_EARLY), "the grammar wants more"

    return judge
