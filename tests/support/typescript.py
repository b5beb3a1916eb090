"""The types of the TypeScript client, written from the schemas: `make docs`."""

from typing import Any

from tests.support.asyncapi import schemas
from tests.support.documents import ROOT

TYPES = "clients/typescript/src/wire.ts"
_WANTED = (
    *("DueTimeReached", "TimerExpired", "ListRequest"),
    *("GetAnswer", "ListAnswer", "ScheduleAnswer", "CancelAnswer"),
)
_PLAIN = {"string": "string", "integer": "number", "number": "number", "boolean": "boolean"}


def written() -> str:
    """Return the module of types."""
    found: dict[str, Any] = {}
    for name in _WANTED:
        schema = schemas()[name]
        found |= {**schema.get("$defs", {}), name: schema}
    types = (f"export interface {name} {_type(schema, 0)}\n" for name, schema in sorted(found.items()))
    return "// Written from the code by make docs.\n\n" + "\n".join(types)


def _type(schema: dict[str, Any], depth: int) -> str:
    if "$ref" in schema:
        return str(schema["$ref"]).removeprefix("#/$defs/")
    if "const" in schema or "enum" in schema:
        return " | ".join(f'"{word}"' for word in schema.get("enum", [schema.get("const")]))
    if schema["type"] == "array":
        return f"{_type(schema['items'], depth)}[]"
    if schema["type"] != "object":
        return _PLAIN[schema["type"]]
    indent, needed = "  " * (depth + 1), schema.get("required", [])
    fields = (
        f"{indent}{name}{'' if name in needed else '?'}: {_type(field, depth + 1)};\n"
        for name, field in schema["properties"].items()
    )
    return "{\n" + "".join(fields) + "  " * depth + "}"


if __name__ == "__main__":
    (ROOT / TYPES).write_text(written(), "utf-8")
