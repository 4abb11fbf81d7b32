"""Grammars that nobody should send. The first of each kind are to be refused; the others may be done, quickly."""

from __future__ import annotations

from typing import Any

BAD_SCHEMAS: tuple[Any, ...] = (
    {"$ref": "#"},
    {"$ref": "#/$defs/none"},
    {"$ref": "http://127.0.0.1:1/schema"},
    {"type": "nonsense"},
    {"enum": []},
    {"type": "string", "pattern": "("},
    {"type": "string", "pattern": "(a)\\1"},
    {"const": "x" * 70_000},
    {"type": "integer", "minimum": 5, "maximum": 1},
    {"type": "object", "properties": {str(i): {} for i in range(2000)}},
)
ODD_SCHEMAS: tuple[Any, ...] = (
    {"allOf": [{"$ref": "#"}]},
    True,
    False,
    {},
    {"type": []},
    {"type": "string", "maxLength": 10**12},
    {"type": "string", "minLength": 10**6},
    {"type": "array", "minItems": 10**6},
    {"type": "array", "prefixItems": [{}] * 500},
    {"anyOf": [{"const": i} for i in range(3000)]},
    {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
    {"type": "number", "multipleOf": 1e-300},
    {"not": {}},
    {"type": "string", "format": "email"},
    {"type": "string", "pattern": "(a{1,200}){1,200}"},
    {"type": "string", "minLength": -1},
    {"oneOf": [{"type": "object", "properties": {"a": {"$ref": "#"}}}, {"type": "null"}]},
    {"patternProperties": {"(": {}}},
    {"type": "object", "properties": {'a\u0000"\n': {}}, "required": ['a\u0000"\n']},
    {"allOf": [{"type": "object", "properties": {str(i): {}}} for i in range(300)]},
)


ENDLESS: tuple[dict[str, Any], ...] = (
    {"regex": "(((([a-z ]+)+)+)+)+"},
    {"regex": "((([a-z]*)*)*)*"},
    {"grammar": 'root ::= s\ns ::= s s s | s s | [a-z] | ""'},
    {"grammar": 'root ::= s\ns ::= s s s s s s s | s s s | [a-zA-Z ]* | ""'},
    {"grammar": "root ::= root"},
    {"regex": "(a"},
    {"regex": "(?=a)b"},
    {"regex": "(" * 5000 + "a" + ")" * 5000},
    {"grammar": "root ::= " + "(" * 20_000},
    {"grammar": "root ::= nowhere"},
    {"grammar": ""},
    {"grammar": "x" * 70_000},
    {"regex": "a|" * 40_000},
    {"choice": []},
    {"choice": ["x" * 70_000]},
)
HEAVY: tuple[dict[str, Any], ...] = (
    {"regex": "(a+)+$"},
    {"regex": "(a|aa)+b"},
    {"regex": "((a{1,200}){1,200}){1,200}"},
    {"regex": "a{1,100000}"},
    {"regex": ".*.*.*.*.*.*.*.*x"},
    {"regex": "([a-z]?){300}[a-z]{300}"},
    {"regex": "[\U00010000-\U0010ffff]{1,1000}"},
    {"regex": ""},
    {"regex": "$"},
    {"grammar": 'root ::= root "a" | "a"'},
    {"grammar": 'root ::= (("a"{1,1000}){1,1000}){1,1000}'},
    {"choice": [""]},
    {"choice": ["x" * 100] * 500},
)
