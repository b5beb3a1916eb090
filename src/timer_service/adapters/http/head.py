"""What a request says before its body: headers, query and path, as they came."""

from collections.abc import Iterable
from typing import Final
from urllib.parse import parse_qsl, unquote_to_bytes

from timer_service.adapters.http.problems import Problem, invalid, invalid_parameter

MAX_QUERY_BYTES: Final = 8_192


def headers_of(lines: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Return the headers of a request; one that has several lines is the list of them (RFC 9110, 5.3)."""
    found: dict[str, str] = {}
    for raw_name, raw_value in lines:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        found[name] = f"{found[name]}, {value}" if name in found else value
    return found


def query_of(text: bytes) -> dict[str, str]:
    """Return the parameters of a query."""
    if len(text) > MAX_QUERY_BYTES:
        raise Problem("bad-request", f"the query must be at most {MAX_QUERY_BYTES} bytes")
    try:
        pairs = parse_qsl(text.decode("ascii"), keep_blank_values=True, errors="strict")
    except ValueError as error:
        raise invalid("the query must be UTF-8, percent-encoded") from error
    found: dict[str, str] = {}
    for name, value in pairs:
        if name in found:
            raise invalid_parameter(name, "must be given only once")
        found[name] = value
    return found


def decoded(segment: str) -> str:
    """Return a segment of a path as it is meant."""
    try:
        return unquote_to_bytes(segment).decode()
    except UnicodeDecodeError as error:
        raise Problem("not-found", "there is nothing at this path") from error
