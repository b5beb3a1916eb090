"""Inputs, results and memos as JSON, by the annotations of the functions that they belong to."""

import inspect
import json
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, Final, get_type_hints

from pydantic import TypeAdapter

from timer_client.flows.model import FlowError

MAX_VALUE_BYTES: Final = 256 * 1024
MAX_ADAPTERS: Final = 10_000


class Value:
    """How the values of one annotation are written and read."""

    def __init__(self, annotation: Any) -> None:
        self._adapter: TypeAdapter[Any] = TypeAdapter(annotation)

    def write(self, what: str, value: object) -> str:
        """Write a value; raise FlowError for one that is too large or could not be read back."""
        try:
            plain = self._adapter.dump_python(value, mode="json", warnings="error")
            text = json.dumps(plain, separators=(",", ":"), ensure_ascii=False)
            # What JSON has no number for would be read back as nothing.
            json.dumps(self._adapter.dump_python(value), default=str, skipkeys=True, allow_nan=False)
            if (size := len(text.encode())) > MAX_VALUE_BYTES:
                raise FlowError(f"{what} must be at most {MAX_VALUE_BYTES} bytes of JSON (got {size})")
            self._adapter.validate_json(text)
        except (ValueError, TypeError, RecursionError) as error:
            raise FlowError(f"{what} cannot be kept as JSON: {error}") from error
        return text

    def read(self, text: str | None) -> Any:
        """Read what was written; what the annotation no longer allows raises ValueError."""
        return self._adapter.validate_json(text or "null")


ANYTHING: Final = Value(Any)


@lru_cache(MAX_ADAPTERS)
def returned_by(function: Callable[..., Any]) -> Value:
    """Return how the results of a function are kept; without an annotation, as plain JSON."""
    return Value(_hints(function).get("return", Any))


def taken_by(function: Callable[..., Any], position: int) -> Value:
    """Return how the argument at a position is kept."""
    names = list(inspect.signature(function).parameters)
    return Value(_hints(function).get(names[position], Any) if len(names) > position else Any)


def _hints(function: Any) -> dict[str, Any]:
    while isinstance(function, partial):
        function = function.func
    if not inspect.isroutine(function):
        function = type(function).__call__
    return get_type_hints(function, include_extras=True)
