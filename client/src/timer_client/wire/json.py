"""JSON, read strictly and written densely."""

import json
from typing import Any, Final, NoReturn, TypeVar

from pydantic import ValidationError
from pydantic_core import from_json

from timer_client.wire.rules import Model, WireError, explain, quoted

MAX_COMMAND_BYTES: Final = 65_536
MAX_NESTING: Final = 32

Read = TypeVar("Read", bound=Model)

_write: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
"""Made once: `json.dumps` makes an encoder for every call that is not its usual one."""


def read_object(model: type[Read], body: bytes) -> Read:
    """Read a JSON object by its model; raise WireError if a rule is broken."""
    if len(body) > MAX_COMMAND_BYTES:
        raise WireError("too_large", f"the body must be at most {MAX_COMMAND_BYTES} bytes (got {len(body)})")
    return read_value(model, parse_json(body))


def read_value(model: type[Read], value: object) -> Read:
    """Read what JSON held by its model; raise WireError if a rule is broken."""
    if not isinstance(value, dict):
        raise WireError("invalid", f"the body must be a JSON object (got {quoted(value)})")
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise WireError("invalid", explain(error)) from error


def parse_json(body: bytes) -> Any:
    """Read JSON text; raise WireError for what is not JSON or nested too deep."""
    # Each level costs one opening bracket, so few brackets need no closer look.
    deep = body.count(b"{") + body.count(b"[") > MAX_NESTING
    try:
        value = from_json(body, allow_inf_nan=False, cache_strings="keys")
    except ValueError as error:
        detail = str(error)
        if "recursion" in detail:
            raise _too_deep() from error
        if _only_has_lone_surrogates(body):
            raise WireError("invalid", f"the body must not contain lone surrogates: {detail}") from error
        raise WireError("not_json", f"the body must be JSON in UTF-8: {detail}") from error
    if deep and _depth(value) > MAX_NESTING:
        raise _too_deep()
    return value


def _only_has_lone_surrogates(body: bytes) -> bool:
    """Return whether a refused body is JSON all the same, as the more lenient standard library reads it."""

    def refuse(constant: str) -> NoReturn:
        raise ValueError(constant)

    try:
        json.loads(body.decode(), parse_constant=refuse)
    except (ValueError, RecursionError):
        return False
    return True


def write_json(value: object) -> bytes:
    """Write JSON without spaces, in UTF-8."""
    return _write(value).encode()


def write_model(model: Model) -> bytes:
    """Write a request or an answer; what is not set is absent."""
    return model.model_dump_json(by_alias=True, exclude_none=True).encode()


def fields_of(model: Model) -> dict[str, Any]:
    """Return a request or an answer as the JSON has it; what is not set is absent."""
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)


def _too_deep() -> WireError:
    return WireError("invalid", f"the body must not be nested deeper than {MAX_NESTING} levels")


_NESTED = (dict, list)


def _depth(value: object) -> int:
    """Return how deep the value is nested; one level beyond what is allowed is enough."""
    level: list[Any] = [value] if type(value) in _NESTED else []
    depth = 0
    while level and depth <= MAX_NESTING:
        depth += 1
        # All of one level together: one by one takes four times as long.
        level = [
            child
            for each in level
            for child in (each.values() if type(each) is dict else each)
            if type(child) in _NESTED
        ]
    return depth
