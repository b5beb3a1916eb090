"""Refused: what was not accepted or not delivered, why, and how to repair it."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from timer_client.subjects import Subjects
from timer_service.adapters.http.pages import letters as reading
from timer_service.adapters.http.pages.auditing import Auditor
from timer_service.adapters.http.pages.visit import Download, PageError, Redirect, Screen, Visit, address
from timer_service.deliveries import Deliveries
from timer_service.domain.delivery import Delivery, DeliveryState
from timer_service.domain.errors import BusUnavailable, CommandRefused, RightMissing, TransientError
from timer_service.domain.messages import Command, TenantId
from timer_service.ports.delivery_store import DeliveryQuery
from timer_service.ports.letter_box import Letter, LetterBox, LettersFound
from timer_service.ports.timer_insight import TimerInsight
from timer_service.timers import Timers

PAGE_LETTERS: Final = 200
"""Letters that are looked at together; a group is of these."""
SHOWN_LETTERS: Final = 50
MAX_FAILED: Final = 100
"""Failed callbacks that are shown of one tenant."""
MAX_TENANTS: Final = 20
"""Tenants whose failed callbacks are looked at together."""


class RefusedScreens:
    """Dead letters and failed callbacks, one by one and in groups."""

    def __init__(
        self,
        letters: LetterBox,
        timers: Timers,
        deliveries: Deliveries,
        insight: TimerInsight,
        subjects: Subjects,
        auditor: Auditor,
    ) -> None:
        self._letters = letters
        self._timers = timers
        self._deliveries = deliveries
        self._insight = insight
        self._subjects = subjects
        self._auditor = auditor

    async def show(self, visit: Visit) -> Screen:
        """Show what was refused, in groups and newest first."""
        found, trouble = await self._look(visit)
        chosen = _chosen(found.letters, visit.query.get("reason"), visit.query.get("field"))
        tenant = visit.query.get("tenant", "")
        model = {
            "tenant": tenant,
            "reason": visit.query.get("reason", ""),
            "field": visit.query.get("field"),
            "trouble": trouble,
            "groups": [_group_view(group) for group in reading.grouped(found.letters)],
            "letters": [_letter_view(letter) for letter in chosen[:SHOWN_LETTERS]],
            "looked_at": found.looked_at,
            "older": found.older,
            "failed": await self._failed(visit),
        }
        command = "timer-service deadletters list" + (f" --tenant {tenant}" if tenant else "")
        return Screen("refused.html", model, "Refused", command)

    async def letter(self, visit: Visit) -> Screen:
        """Show one letter, with the broken rule marked and a form to repair it."""
        letter = await self._letter(visit, visit.query.get("n", ""))
        fix = visit.query.get("fix", reading.AS_IT_IS)
        text = reading.text_of(letter.body)
        body = reading.corrected(text, fix, visit.look.zone) or text
        return self._repair(visit, letter, letter.subject, body, checked=bool(fix))

    async def body(self, visit: Visit) -> Download:
        """Give the bytes of a refused message away as a file."""
        letter = await self._letter(visit, visit.query.get("n", ""))
        return Download(letter.body, f"letter-{letter.number}.bin")

    async def check(self, visit: Visit) -> Screen:
        """Read an edited message as the service would, and change nothing."""
        letter = await self._letter(visit, visit.field("n"))
        return self._repair(visit, letter, visit.field("subject"), visit.field("body"), checked=True)

    async def replay(self, visit: Visit) -> Redirect | Screen:
        """Carry out a repaired message; the letter stays where it is."""
        letter = await self._letter(visit, visit.field("n"))
        subject, body = visit.field("subject"), visit.field("body")
        command = reading.check(self._subjects, subject, body, visit.now)
        if isinstance(command, CommandRefused):
            return self._repair(visit, letter, subject, body, checked=True)
        _may(visit, command)
        outcome = (await self._timers.carry_out(command)).outcome.value
        key = {"tenant": command.tenant_id, "id": command.service_call_id}
        await self._note(visit, letter, command, outcome)
        return Redirect(address("timer", **key, done=outcome))

    async def replay_group(self, visit: Visit) -> Screen:
        """Carry out all messages of a group, each with the same correction, and tell what each came to."""
        found, trouble = await self._look(visit, visit.field("tenant"))
        if trouble:
            raise PageError(503, trouble)
        members = _chosen(found.letters, visit.field("reason"), visit.field("field"))
        members = [each for each in members if (each.tenant_id or "") == visit.field("tenant")]
        if str(len(members)) != visit.field("count"):
            raise PageError(409, f"The group has {len(members)} letters now: look at it again.")
        results = [await self._replay_one(visit, letter) for letter in members]
        model = {
            "results": results,
            "counts": dict(Counter(result["outcome"] for result in results)),
            "tenant": visit.field("tenant"),
        }
        return Screen("replayed.html", model, "Sent again")

    async def retry(self, visit: Visit) -> Redirect:
        """Send the failed callbacks of a receiver again, or one of them."""
        tenant = visit.tenant(visit.field("tenant"))
        if tenant is None:
            raise PageError(400, "Say whose callbacks: choose a tenant.")
        query = DeliveryQuery(tenant, DeliveryState.FAILED, visit.field("origin") or None, limit=MAX_FAILED)
        count = await self._deliveries.retry_all(query)
        await self._auditor.note(
            visit.user, "retry failed", f"{count} retried", tenant=tenant, reason=visit.field("origin")
        )
        return Redirect(address("refused", tenant=tenant, done="retried"))

    async def _replay_one(self, visit: Visit, letter: Letter) -> dict[str, Any]:
        body = reading.corrected(reading.text_of(letter.body), visit.field("fix"), visit.look.zone)
        told: dict[str, Any] = {"number": letter.number, "id": "", "detail": ""}
        if letter.is_cut or body is None:
            return told | {"outcome": "skipped", "detail": "the correction does not apply to this one"}
        command = reading.check(self._subjects, letter.subject, body, visit.now)
        if isinstance(command, CommandRefused):
            return told | {"outcome": "refused", "detail": command.detail}
        _may(visit, command)
        told["id"] = command.service_call_id
        try:
            settled = await self._timers.carry_out(command)
        except TransientError as error:
            return told | {"outcome": "try_again", "detail": error.public}
        await self._note(visit, letter, command, settled.outcome.value)
        return told | {"outcome": settled.outcome.value}

    async def _note(self, visit: Visit, letter: Letter, command: Command, outcome: str) -> None:
        await self._auditor.note(
            visit.user,
            "replay",
            outcome,
            tenant=command.tenant_id,
            subject=command.service_call_id,
            reason=f"letter {letter.number}",
        )

    async def _look(self, visit: Visit, tenant: str | None = None) -> tuple[LettersFound, str]:
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

    async def _letter(self, visit: Visit, number: str) -> Letter:
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

    async def _failed(self, visit: Visit) -> list[dict[str, Any]]:
        named = visit.tenant(visit.query.get("tenant"))
        tenants = [named] if named is not None else sorted(visit.user.tenants or ())
        if named is None and visit.user.tenants is None:
            tenants = [*await self._insight.tenants(MAX_TENANTS)]
        found: list[Delivery] = []
        for tenant in tenants[:MAX_TENANTS]:
            query = DeliveryQuery(tenant, DeliveryState.FAILED, limit=MAX_FAILED)
            found += await self._deliveries.list(query)
        groups: dict[tuple[str, str, str], list[Delivery]] = {}
        for delivery in found:
            groups.setdefault((delivery.tenant_id, delivery.origin, delivery.error or ""), []).append(
                delivery
            )
        return [
            {"tenant_id": tenant, "origin": origin, "error": error, "count": len(each), "newest": each[-1]}
            for (tenant, origin, error), each in groups.items()
        ]

    def _repair(self, visit: Visit, letter: Letter, subject: str, body: str, *, checked: bool) -> Screen:
        verdict = reading.check(self._subjects, subject, body, visit.now)
        model = {
            "letter": _letter_view(letter),
            "pieces": reading.pieces(letter),
            "is_whole": len(letter.body) <= reading.MAX_SHOWN_CHARS and not letter.is_cut,
            "corrections": reading.corrections(letter, visit.look.zone_name, visit.look.zone),
            "subject": subject,
            "body": body,
            "checked": checked,
            "problem": verdict.detail if isinstance(verdict, CommandRefused) else "",
            "command_of": None if isinstance(verdict, CommandRefused) else _command_view(verdict),
        }
        line = f"timer-service deadletters show {letter.number}"
        return Screen("letter.html", model, f"Letter {letter.number}", line)


def _may(visit: Visit, command: Command) -> None:
    if not visit.user.sees(command.tenant_id):
        raise PageError(403, "The message is for a tenant that is not yours.")


def _chosen(letters: Sequence[Letter], reason: str | None, field: str | None) -> list[Letter]:
    return [
        letter
        for letter in letters
        if (not reason or letter.reason == reason) and (field is None or reading.field_of(letter) == field)
    ]


def _letter_view(letter: Letter) -> dict[str, Any]:
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


def _group_view(group: reading.Group) -> dict[str, Any]:
    newest = group.letters[0]
    may_be_zoneless = any(reading.corrections(letter, "", None) for letter in group.letters)
    return {
        "tenant_id": group.tenant_id,
        "reason": group.reason,
        "field": group.field,
        "count": len(group.letters),
        "newest": _letter_view(newest),
        "fixes": [(reading.AS_IT_IS, "as it is")] + ([(reading.IN_UTC, "dueAt in UTC")] * may_be_zoneless),
    }


def _command_view(command: Command) -> dict[str, Any]:
    return {
        "kind": type(command).__name__,
        "tenant_id": command.tenant_id,
        "service_call_id": command.service_call_id,
        "due_at": getattr(command, "due_at", None),
    }
