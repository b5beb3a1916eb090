"""A small checker of JSON schemas: as much as our own schemas use, and no more."""

import re
from collections.abc import Callable
from typing import Any

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
_SAYS_NOTHING = {"$schema", "title", "description", "format", "default", "$defs"}


def complaints(value: Any, schema: dict[str, Any], root: dict[str, Any] | None = None) -> list[str]:
    """Return what is wrong with a value; a field that the schema does not know is wrong as well."""
    root = root or schema
    found: list[str] = []
    for keyword, rule in schema.items():
        if keyword not in _SAYS_NOTHING and keyword != "additionalProperties":
            found += _RULES[keyword](value, rule, root)
    return found


def _type(value: Any, rule: str, _: dict[str, Any]) -> list[str]:
    fits = isinstance(value, _TYPES[rule]) and (rule == "boolean" or not isinstance(value, bool))
    return [] if fits else [f"{value!r} is not of type {rule}"]


def _properties(value: Any, rule: dict[str, Any], root: dict[str, Any]) -> list[str]:
    found = [f"{name} is not in the schema" for name in value if name not in rule]
    for name in value.keys() & rule.keys():
        found += [f"{name}: {text}" for text in complaints(value[name], rule[name], root)]
    return found


def _required(value: Any, rule: list[str], _: dict[str, Any]) -> list[str]:
    return [f"{name} is missing" for name in rule if name not in value]


def _items(value: Any, rule: dict[str, Any], root: dict[str, Any]) -> list[str]:
    return [text for item in value for text in complaints(item, rule, root)]


def _any_of(value: Any, rule: list[dict[str, Any]], root: dict[str, Any]) -> list[str]:
    tries = [complaints(value, choice, root) for choice in rule]
    return [] if any(not found for found in tries) else tries[0]


def _one_of(value: Any, rule: list[dict[str, Any]], root: dict[str, Any]) -> list[str]:
    fitting = [choice for choice in rule if not complaints(value, choice, root)]
    return [] if len(fitting) == 1 else [f"{len(fitting)} of {rule} fit"]


def _reference(value: Any, rule: str, root: dict[str, Any]) -> list[str]:
    return complaints(value, root["$defs"][rule.removeprefix("#/$defs/")], root)


_RULES: dict[str, Callable[[Any, Any, dict[str, Any]], list[str]]] = {
    "type": _type,
    "properties": _properties,
    "required": _required,
    "items": _items,
    "anyOf": _any_of,
    "oneOf": _one_of,
    "$ref": _reference,
    "enum": lambda value, rule, _: [] if value in rule else [f"{value!r} is none of {rule}"],
    "const": lambda value, rule, _: [] if value == rule else [f"{value!r} is not {rule!r}"],
    "pattern": lambda value, rule, _: [] if re.search(rule, value) else [f"{value!r} is not {rule}"],
    "minLength": lambda value, rule, _: [] if len(value) >= rule else [f"{value!r} is too short"],
    "maxLength": lambda value, rule, _: [] if len(value) <= rule else [f"{value!r} is too long"],
    "minimum": lambda value, rule, _: [] if value >= rule else [f"{value!r} is too small"],
    "maximum": lambda value, rule, _: [] if value <= rule else [f"{value!r} is too large"],
}
