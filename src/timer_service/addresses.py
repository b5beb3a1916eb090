"""Addresses of servers as a person may see them: never with any part of a password."""

import re
from typing import Final

MASK: Final = "*****"

# An allow-list: whatever else stands where host and port belong may be half a password.
_SCHEME: Final = re.compile(r"[a-z]+")
_CREDENTIALS: Final = re.compile(r"[^/?#\s]*")
_HOST: Final = r"(?:[A-Za-z0-9._~%-]*|\[[0-9A-Fa-f:.%]+\])(?::[0-9]{1,5})?"
_PLACE: Final = re.compile(rf"{_HOST}(?:,{_HOST})*(?:/[^?#@\s]*)?")
_PAIR: Final = r"[A-Za-z_]+=[^&#@\s]*"
_QUERY: Final = re.compile(rf"{_PAIR}(?:&{_PAIR})*")

UNCLEAR: Final = "in a user name or password write / as %2F, ? as %3F and # as %23; in a query @ as %40"
"""What to do about an address that is not clear."""


def is_clear(url: str) -> bool:
    """Return whether it is certain which part of an address is the password."""
    scheme, separator, rest = url.partition("://")
    credentials, _, address = rest.rpartition("@")
    place, question_mark, query = address.partition("?")
    return bool(
        separator
        and _SCHEME.fullmatch(scheme)
        and _CREDENTIALS.fullmatch(credentials)
        and _PLACE.fullmatch(place)
        and (not question_mark or _QUERY.fullmatch(query))
    )


def masked(url: str) -> str:
    """Return an address with its credentials masked and without its query, which may hold a password, too."""
    scheme, separator, rest = url.partition("://")
    if not is_clear(url):
        return f"{scheme}{separator}{MASK}" if separator and _SCHEME.fullmatch(scheme) else MASK
    _, at, address = rest.rpartition("@")
    return f"{scheme}{separator}{MASK + at if at else ''}{address.partition('?')[0]}"


def without_credentials(url: str) -> str:
    """Return the same without a sign that there are credentials: what a server or a database is called."""
    return masked(url).replace(f"{MASK}@", "")
