"""Frozen dataclasses to JSON and back, strictly: an unknown key, a missing key or a wrong type is one clear error.

Only what scenarios and verdicts are made of: dataclasses, tuples, string-keyed mappings, literals, enums, optionals
and scalars.
"""

from __future__ import annotations

import dataclasses
import enum
import types
from collections.abc import Mapping
from math import isfinite
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from harness.errors import ScenarioError

T = TypeVar("T")


def encode(value: Any) -> Any:
    """A JSON-ready copy of ``value``; fields that hold their default are left out."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: encode(getattr(value, field.name))
            for field in dataclasses.fields(value)
            if not _is_default(field, getattr(value, field.name))
        }
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, float) and not isfinite(value):
        return str(value)  # JSON has no number for it
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [encode(item) for item in value]
    return value


def decode(kind: type[T], data: Any, where: str) -> T:
    """``data`` (parsed JSON) as an instance of ``kind``; raises ScenarioError naming the place."""
    result: T = _decode(kind, data, where)
    return result


def _is_default(field: dataclasses.Field[Any], value: Any) -> bool:
    if field.default is not dataclasses.MISSING:
        return bool(value == field.default)
    if field.default_factory is not dataclasses.MISSING:
        return bool(value == field.default_factory())
    return False


def _decode(kind: Any, data: Any, where: str) -> Any:
    origin, args = get_origin(kind), get_args(kind)
    if dataclasses.is_dataclass(kind):
        return _decode_dataclass(kind, data, where)
    if origin is Literal:
        return _expect(data in args, data, where, f"one of {', '.join(map(repr, args))}")
    if origin in (Union, types.UnionType):
        if data is None and type(None) in args:
            return None
        (inner,) = [arg for arg in args if arg is not type(None)]
        return _decode(inner, data, where)
    if origin is tuple:
        _expect(isinstance(data, list), data, where, "a list")
        return tuple(_decode(args[0], item, f"{where}[{i}]") for i, item in enumerate(data))
    if origin in (dict, Mapping):
        _expect(isinstance(data, dict), data, where, "an object")
        return {key: _decode(args[1], item, f"{where}.{key}") for key, item in data.items()}
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        values = [member.value for member in kind]
        return kind(_expect(data in values, data, where, f"one of {', '.join(map(repr, values))}"))
    if kind is float and data in ("inf", "-inf", "nan"):
        return float(data)
    if kind is float:
        number = isinstance(data, (int, float)) and not isinstance(data, bool) and -1e308 < data < 1e308
        return float(_expect(number, data, where, "a number"))
    right_type = isinstance(data, kind) and (kind is bool or not isinstance(data, bool))
    return _expect(right_type, data, where, f"a value of type {kind.__name__}")


def _decode_dataclass(kind: Any, data: Any, where: str) -> Any:
    _expect(isinstance(data, dict), data, where, f"an object ({kind.__name__})")
    fields = {field.name: field for field in dataclasses.fields(kind)}
    for key in data:
        _expect(key in fields, key, where, f"one of the fields of {kind.__name__}: {', '.join(fields)}")
    for name, field in fields.items():
        optional = (field.default, field.default_factory) != (dataclasses.MISSING, dataclasses.MISSING)
        _expect(optional or name in data, sorted(data), where, f"the field {name!r} of {kind.__name__}")
    hints = get_type_hints(kind)
    return kind(**{key: _decode(hints[key], item, f"{where}.{key}") for key, item in data.items()})


def _expect(holds: bool, seen: Any, where: str, expected: str) -> Any:
    if not holds:
        shown = repr(seen)
        shown = shown if len(shown) <= 80 else shown[:77] + "..."
        raise ScenarioError(f"{where}: saw {shown}, expected {expected}")
    return seen
