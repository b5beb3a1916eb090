"""The OpenAPI document for people: one page, without a script."""

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any, Final

_STYLE: Final = (
    "body{font:16px/1.5 system-ui;max-width:62rem;margin:2rem auto;padding:0 1rem;color-scheme:light dark}"
    "section{border-top:1px solid #8886;margin-top:2rem;padding-top:.5rem}"
    "h2 b{color:#0a6;font-weight:600}h2 code{font-size:1em}"
    "table{border-collapse:collapse;width:100%;margin:.5rem 0 1rem}"
    "th,td{text-align:left;vertical-align:top;padding:.25rem .75rem .25rem 0;border-bottom:1px solid #8883}"
    "th{font-weight:600}code,pre{font:14px/1.5 ui-monospace,monospace}nav{columns:2}"
    "pre{overflow:auto;background:#8882;padding:1rem}@media(max-width:40rem){nav{columns:1}}"
)
_TRY: Final = """curl -X POST "$URL/v1/timers" -H "X-API-Key: $KEY" -H "Content-Type: application/json" \\
  -d '{"delayMs": 3000, "callback": {"url": "https://example.com/hook"}}'"""
_ROW: Final = "<tr><td><code>{0}</code></td><td>{1}</td><td>{2}</td></tr>"


def page_of(content: Mapping[str, Any]) -> str:
    """Return the page of an OpenAPI document."""
    told = [
        (f"{method.upper()} {path}", operation)
        for path, methods in content["paths"].items()
        for method, operation in methods.items()
    ]
    links = "".join(
        f"<div><a href=#{operation['operationId']}><code>{escape(name)}</code></a></div>"
        for name, operation in told
    )
    sections = "".join(_operation(name, operation) for name, operation in told)
    schemas = "".join(
        f"<section id=schema-{escape(name)}><h2>{escape(name)}</h2>{_fields(schema)}</section>"
        for name, schema in content["components"]["schemas"].items()
    )
    return (
        '<!doctype html><html lang=en><meta name=viewport content="width=device-width">'
        f"<title>timer-service API</title><style>{_STYLE}</style>"
        f"<main><h1>timer-service {escape(content['info']['version'])}</h1>"
        "<p>Send a key as <code>X-API-Key</code> or as a bearer token; it also says whose timers they are. "
        "For programs: <a href=openapi.json>openapi.json</a>.</p>"
        f"<pre tabindex=0>{escape(_TRY)}</pre><nav>{links}</nav>{sections}"
        f"<h1>Bodies and answers</h1>{schemas}</main></html>"
    )


def _operation(name: str, told: Mapping[str, Any]) -> str:
    method, _, path = name.partition(" ")
    asked = [
        (each["name"], each["schema"], f"{each['in']}{', required' if each.get('required') else ''}")
        for each in told["parameters"]
    ]
    if "requestBody" in told:
        [schema, *_] = [each["schema"] for each in told["requestBody"]["content"].values()]
        asked.append(("body", schema, "required"))
    rows = "".join(_ROW.format(escape(what), _kind(schema), place) for what, schema, place in asked)
    alike: dict[tuple[str, str], list[str]] = {}
    for status, answer in told["responses"].items():
        alike.setdefault((_answer(answer), escape(answer["description"])), []).append(status)
    answers = "".join(_ROW.format(", ".join(statuses), *shown) for shown, statuses in alike.items())
    table = f"<table><tr><th>Send<th>Type<th>Where</tr>{rows}</table>" if rows else ""
    return (
        f"<section id={told['operationId']}><h2><b>{method}</b> <code>{escape(path)}</code></h2>"
        f"<p>{escape(told['summary'])}.</p>{table}"
        f"<table><tr><th>Status<th>Answer<th>Meaning</tr>{answers}</table></section>"
    )


def _answer(answer: Mapping[str, Any]) -> str:
    return next((_kind(each["schema"]) for each in answer.get("content", {}).values()), "")


def _fields(schema: Mapping[str, Any]) -> str:
    rows = "".join(
        _ROW.format(escape(name), _kind(each), "always" if is_required else "")
        for name, each, is_required in _members(schema)
    )
    return f"<table><tr><th>Member<th>Type<th></tr>{rows}</table>" if rows else f"<p>{_kind(schema)}</p>"


def _members(schema: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any], bool]]:
    for part in schema.get("allOf", [schema]):
        if "$ref" in part:
            yield f"all of {part['$ref'].rpartition('/')[2]}", part, True
        for name, each in part.get("properties", {}).items():
            yield name, each, name in part.get("required", ())


def _kind(schema: Mapping[str, Any]) -> str:
    """Return what a value is, with links to what is described by itself."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f"<a href=#schema-{name}>{name}</a>"
    if "anyOf" in schema:
        return " or ".join(_kind(each) for each in schema["anyOf"])
    kind = _shape(schema)
    if "description" in schema:
        kind = f"{kind}: {escape(schema['description'])}" if kind else escape(schema["description"])
    return kind


def _shape(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return " or ".join(f"<code>{escape(str(value))}</code>" for value in schema["enum"])
    if "const" in schema:
        return f"<code>{escape(str(schema['const']))}</code>"
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {})) or 'values'}"
    if schema.get("type") == "object" and "properties" in schema:
        return "{ " + ", ".join(f"{escape(n)}: {_kind(each)}" for n, each, _ in _members(schema)) + " }"
    return escape(str(schema.get("format", schema.get("type", ""))))
