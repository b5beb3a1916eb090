"""Letters as a visitor may see them, and what becomes of one that is sent again."""

from collections.abc import Sequence
from typing import Any, Final

from timer_client.subjects import Subjects
from timer_service.adapters.http.pages import letters as reading
from timer_service.adapters.http.pages.auditing import Auditor
from timer_service.adapters.http.pages.visit import PageError, Visit
from timer_service.domain.errors import BusUnavailable, CommandRefused, RightMissing, TimerNotFound
from timer_service.domain.messages import Command, TenantId, TimerKey
from timer_service.domain.timer import Timer
from timer_service.ports.letter_box import Letter, LetterBox, LettersFound
from timer_service.timers import Timers
from timer_service.waiting import within

PAGE_LETTERS: Final = 200
"""Letters that are looked at together; a group is of these."""
MAX_TENANTS: Final = 20
"""Tenants whose letters are looked at together."""


class LetterDesk:
    """Finds letters, reads them, and carries out what they ask for."""

    def __init__(self, letters: LetterBox, timers: Timers, subjects: Subjects, auditor: Auditor) -> None:
        self._letters = letters
        self._timers = timers
        self._subjects = subjects
        self._auditor = auditor

    async def look(self, visit: Visit, tenant: str | None = None) -> tuple[LettersFound, str]:
        """Return letters that the visitor may see, or why there are none to be seen."""
        named = visit.tenant(visit.query.get("tenant") if tenant is None else tenant)
        before = visit.query.get("before", "")
        older = int(before) if before.isascii() and before.isdigit() and len(before) < 16 else None
        whose: Sequence[TenantId | None] = [named]
        if named is None and visit.user.tenants is not None:
            whose = sorted(visit.user.tenants)[:MAX_TENANTS]
        try:
            pages = [await self._letters.page(each, older, PAGE_LETTERS) for each in whose]
        except (BusUnavailable, RightMissing) as error:
            return LettersFound(), str(error) if visit.user.tenants is None else error.public
        letters = sorted((one for page in pages for one in page.letters), key=lambda one: -one.number)
        ends = [page.older for page in pages if page.older is not None]
        looked_at = sum(page.looked_at for page in pages)
        return LettersFound(tuple(letters[:PAGE_LETTERS]), looked_at, max(ends, default=None)), ""

    async def get(self, visit: Visit, number: str) -> Letter:
        """Return a letter that the visitor may see. Raises PageError."""
        if not (number.isascii() and number.isdigit() and len(number) < 16):
            raise PageError(404, "There is no such letter.")
        try:
            letter = await self._letters.get(int(number))
        except (BusUnavailable, RightMissing) as error:
            raise PageError(503, str(error) if visit.user.tenants is None else error.public) from error
        # A letter of nobody may hold anybody's message.
        if letter is None or (visit.user.tenants is not None and letter.tenant_id not in visit.user.tenants):
            raise PageError(404, "There is no such letter.")
        return letter

    async def naming(self, key: TimerKey, limit_s: float) -> Sequence[Letter] | None:
        """Return letters that name a timer; None if they cannot be read within a time."""
        try:
            return (await within(limit_s, self._letters.naming(*key))).letters
        except (BusUnavailable, RightMissing, TimeoutError):
            return None

    def read(self, visit: Visit, subject: str, body: str) -> Command | CommandRefused:
        """Read a message as the service reads those of the stream."""
        return reading.check(self._subjects, subject, body, visit.now)

    async def carry_out(self, visit: Visit, letter: Letter, command: Command, job: int | None = None) -> str:
        """Do what a letter asks for, note it, and return the outcome. Raises PageError, TransientError."""
        if not visit.user.sees(command.tenant_id):
            raise PageError(403, "The message is for a tenant that is not yours.")
        before = await self._as_it_is(command)
        settled = await self._timers.carry_out(command)
        await self._auditor.note(
            visit.user,
            "replay",
            settled.outcome.value,
            tenant=command.tenant_id,
            subject=command.service_call_id,
            before=before,
            after=settled.timer,
            reason=f"letter {letter.number}",
            job=job,
        )
        return settled.outcome.value

    async def _as_it_is(self, command: Command) -> Timer | None:
        try:
            return await self._timers.get(*command.key)
        except TimerNotFound:
            return None


def letter_view(letter: Letter) -> dict[str, Any]:
    """Return what a list shows of a letter."""
    return {
        "number": letter.number,
        "tenant_id": letter.tenant_id,
        "received_at": letter.received_at,
        "reason": letter.reason,
        "detail": letter.detail,
        "subject": letter.subject,
        "field": reading.field_of(letter),
        "is_cut": letter.is_cut,
        "bytes": len(letter.body),
    }


def command_view(command: Command) -> dict[str, Any]:
    """Return what a message asks for, as a screen shows it."""
    return {
        "kind": type(command).__name__,
        "tenant_id": command.tenant_id,
        "service_call_id": command.service_call_id,
        "due_at": getattr(command, "due_at", None),
    }
