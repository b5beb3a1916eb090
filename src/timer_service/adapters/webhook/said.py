"""What a receiver said that did not take a callback, without our secrets."""

from codecs import getincrementaldecoder
from collections.abc import Iterable, Iterator
from typing import Final

from timer_service.domain.delivery import MAX_ANSWER_BYTES

MIN_WORD_CHARS: Final = 8
"""A word of a secret that is at least this long is masked by itself, too: a token behind `Bearer`."""
MIN_CUT_CHARS: Final = 4
"""Of a secret where an answer was cut off within it: less is not told from other text."""


def kept_answer(body: bytes, secrets: Iterable[str]) -> str | None:
    """Return the beginning of an answer as text, asterisks in the place of secrets; None if it is empty."""
    for secret in sorted(_spellings(secrets), key=len, reverse=True):
        # As many asterisks: nothing moves, so that no secret is cut off before it is found.
        body = body.replace(secret, b"*" * len(secret))
        rest = _begun(body, secret)
        body = body[: len(body) - rest] + b"*" * rest
    # It leaves out a character that was cut off. PostgreSQL keeps no text with a NUL.
    decoder = getincrementaldecoder("utf-8")("replace")
    return decoder.decode(body[:MAX_ANSWER_BYTES]).replace("\x00", "\ufffd") or None


def without_secrets(header: str, secrets: Iterable[str]) -> str:
    """Return a header of an answer with asterisks in the place of secrets."""
    value = header.encode("latin-1")
    for secret in sorted(_spellings(secrets), key=len, reverse=True):
        value = value.replace(secret, b"*" * len(secret))
    return value.decode("latin-1")


def _begun(body: bytes, secret: bytes) -> int:
    """Return how many bytes at the end of an answer are the beginning of a secret."""
    beginning = secret[:MIN_CUT_CHARS]
    at = body.find(beginning, max(0, len(body) - len(secret)))
    while at >= 0 and not secret.startswith(body[at:]):
        at = body.find(beginning, at + 1)
    return 0 if at < 0 else len(body) - at


def _spellings(secrets: Iterable[str]) -> Iterator[bytes]:
    for secret in secrets:
        if secret:
            yield secret.encode()
        yield from (word.encode() for word in secret.split() if len(word) >= MIN_WORD_CHARS)
