"""Dead letters on JetStream, read backwards in windows: the newest first, never the whole stream."""

import base64
import binascii
import json
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

from timer_client.subjects import UNKNOWN_TENANT
from timer_client.wire import parse_time, read_letter
from timer_service.adapters.nats.looking_back import Stored, StreamReader
from timer_service.adapters.nats.options import NatsOptions
from timer_service.domain.messages import ServiceCallId, TenantId
from timer_service.ports.letter_box import Letter, LettersFound

FIRST_WINDOW: Final = 256
GROWTH: Final = 4
"""Each window is so many times as wide as the one after it: most of the stream may be other tenants'."""
MAX_LOOKED_AT: Final = 2_000
"""Letters that one question reads."""
MAX_NAMING: Final = 20
"""Letters about one timer that are told of."""
NOT_A_LETTER: Final = "not_a_letter"


class NatsLetterBox:
    """The letter box on JetStream."""

    def __init__(self, options: NatsOptions, reader: StreamReader) -> None:
        self._reader = reader
        self._stream = options.streams.dead_letters
        self._subjects = options.subjects

    async def page(self, tenant_id: TenantId | None, before: int | None, limit: int) -> LettersFound:
        """Return the newest letters of a tenant, or of all, with a number below `before`."""
        subject = self._subjects.all_dead_letters if tenant_id is None else self._subject(tenant_id)
        return await self._search(subject, before, limit, lambda _: True, enough=limit)

    async def naming(self, tenant_id: TenantId, service_call_id: ServiceCallId) -> LettersFound:
        """Return the newest letters of a tenant that name a timer; older ones may not be looked at."""
        return await self._search(
            self._subject(tenant_id), None, MAX_NAMING, lambda letter: names(letter.body, service_call_id)
        )

    async def get(self, number: int) -> Letter | None:
        """Return one letter."""
        read, _ = await self._reader.read(
            self._stream, self._subjects.all_dead_letters, first=number, limit=1
        )
        return self._letter(read[0]) if read and read[0].sequence == number else None

    async def _search(
        self,
        subject: str,
        before: int | None,
        limit: int,
        wanted: Callable[[Letter], bool],
        enough: int = 1,
    ) -> LettersFound:
        first, last = await self._reader.ends(self._stream)
        above = last + 1 if before is None else min(before, last + 1)
        width, looked_at, found = FIRST_WINDOW, 0, list[Letter]()
        while above > first and looked_at < MAX_LOOKED_AT and len(found) < enough:
            below = max(first, above - width)
            read, left = await self._reader.read(
                self._stream, subject, first=below, limit=MAX_LOOKED_AT - looked_at
            )
            window = [each for each in read if each.sequence < above]
            looked_at += len(window)
            if left and len(window) == len(read) and width > 1:
                # More than one question reads: look at a narrower window, so that the newest come first.
                width = max(1, width // GROWTH)
                continue
            letters = [self._letter(each) for each in reversed(window)]
            found += [letter for letter in letters if wanted(letter)]
            above, width = below, width * GROWTH
        kept = found[:limit]
        older = kept[-1].number if len(found) > limit else above
        return LettersFound(tuple(kept), looked_at, older if older > first else None)

    def _subject(self, tenant_id: TenantId) -> str:
        return self._subjects.dead_letter(tenant_id)

    def _letter(self, stored: Stored) -> Letter:
        letter = read_letter(stored.sequence, stored.stored_at, stored.subject, stored.body)
        tenant = stored.subject.rpartition(".")[2]
        whose = None if tenant == UNKNOWN_TENANT else TenantId(tenant)
        received_at = _received_at(letter)
        if received_at is None:
            detail = "not a letter: the broker does not check reply subjects"
            return Letter(
                stored.sequence, whose, stored.stored_at, NOT_A_LETTER, detail, stored.subject, stored.body
            )
        return Letter(
            number=stored.sequence,
            tenant_id=whose,
            received_at=received_at,
            reason=letter["reason"],
            detail=letter["detail"],
            subject=letter["subject"],
            body=_body(letter),
            is_cut=letter.get("bodyTruncated") is True,
        )


def _received_at(letter: dict[str, Any]) -> datetime | None:
    """Return when the message of a letter came in; None if this is not a letter of ours."""
    try:
        return None if letter.get("notALetter") else parse_time(letter["receivedAt"])
    except ValueError:
        return None


def names(body: bytes, service_call_id: str) -> bool:
    """Return whether a message that was refused is about a timer, as far as one can read it."""
    try:
        message = json.loads(body)
    except (ValueError, RecursionError):
        return json.dumps(service_call_id, ensure_ascii=False).encode() in body
    if not isinstance(message, dict):
        return False
    payload = message.get("payload")
    named = payload.get("serviceCallId") if isinstance(payload, dict) else None
    return service_call_id in (named, message.get("aggregateId"), message.get("serviceCallId"))


def _body(letter: dict[str, Any]) -> bytes:
    if letter["bodyEncoding"] != "base64":
        return str(letter["body"]).encode("utf-8", "surrogatepass")
    try:
        return base64.b64decode(letter["body"])
    except (ValueError, binascii.Error):
        return str(letter["body"]).encode()
