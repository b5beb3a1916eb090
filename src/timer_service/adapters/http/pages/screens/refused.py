"""Refused: what was not accepted or not delivered, why, and how to repair it."""

import shlex
from collections.abc import Mapping
from typing import Any, Final

from timer_service.adapters.http.pages import letters as reading
from timer_service.adapters.http.pages.auditing import Auditor
from timer_service.adapters.http.pages.letter_desk import LetterDesk, command_view, letter_view
from timer_service.adapters.http.pages.visit import (
    Download,
    PageError,
    Redirect,
    Screen,
    Visit,
    address,
    by_curl,
)
from timer_service.deliveries import Deliveries
from timer_service.domain.delivery import DeliveryState
from timer_service.domain.errors import CommandRefused
from timer_service.domain.spoken import count_text
from timer_service.ports.delivery_store import DeliveryQuery
from timer_service.ports.letter_box import Letter
from timer_service.ports.timer_insight import TenantInsight

SHOWN_LETTERS: Final = 50
MAX_FAILED: Final = 100
"""Failed callbacks that are shown of one tenant."""


class RefusedScreens:
    """Dead letters and failed callbacks, one by one and in groups."""

    def __init__(
        self, desk: LetterDesk, deliveries: Deliveries, insight: TenantInsight, auditor: Auditor
    ) -> None:
        self._desk = desk
        self._deliveries = deliveries
        self._insight = insight
        self._auditor = auditor

    async def show(self, visit: Visit) -> Screen:
        """Show what was refused, in groups and newest first."""
        found, trouble = await self._desk.look(visit)
        chosen = reading.chosen(found.letters, visit.query.get("reason"), visit.query.get("field"))
        tenant = visit.query.get("tenant", "")
        model = {
            "tenant": tenant,
            "reason": visit.query.get("reason", ""),
            "field": visit.query.get("field"),
            "trouble": trouble,
            "groups": [_group_view(group) for group in reading.grouped(found.letters)],
            "letters": [letter_view(letter) for letter in chosen[:SHOWN_LETTERS]],
            "looked_at": found.looked_at,
            "older": found.older,
            "failed": await self._failed(visit),
        }
        return Screen("refused.html", model, "Refused", _command(visit.query))

    async def letter(self, visit: Visit) -> Screen:
        """Show one letter, with the broken rule marked and a form to repair it."""
        letter = await self._desk.get(visit, visit.query.get("n", ""))
        fix = visit.query.get("fix", reading.AS_IT_IS)
        text = reading.text_of(letter.body)
        body = reading.corrected(text, fix, visit.look.zone) or text
        return self._repair(visit, letter, letter.subject, body, checked=bool(fix))

    async def body(self, visit: Visit) -> Download:
        """Give the bytes of a refused message away as a file."""
        letter = await self._desk.get(visit, visit.query.get("n", ""))
        return Download(letter.body, f"letter-{letter.number}.bin")

    async def check(self, visit: Visit) -> Screen:
        """Read an edited message as the service would, and change nothing."""
        letter = await self._desk.get(visit, visit.field("n"))
        return self._repair(visit, letter, visit.field("subject"), visit.field("body"), checked=True)

    async def replay(self, visit: Visit) -> Redirect | Screen:
        """Carry out a repaired message; the letter stays where it is."""
        letter = await self._desk.get(visit, visit.field("n"))
        subject, body = visit.field("subject"), visit.field("body")
        command = self._desk.read(visit, subject, body)
        if isinstance(command, CommandRefused):
            return self._repair(visit, letter, subject, body, checked=True)
        outcome = await self._desk.carry_out(visit, letter, command)
        key = {"tenant": command.tenant_id, "id": command.service_call_id}
        return Redirect(address("timer", **key, done=outcome))

    async def retry(self, visit: Visit) -> Redirect:
        """Send the failed callbacks of a receiver again, or one of them."""
        tenant = visit.tenant(visit.field("tenant"))
        if tenant is None:
            raise PageError(400, "Say whose callbacks: choose a tenant.")
        query = DeliveryQuery(tenant, DeliveryState.FAILED, visit.field("origin") or None, limit=MAX_FAILED)
        count = (await self._deliveries.retry_all(query)).count
        await self._auditor.note(
            visit.user,
            "retry failed",
            f"{count} retried",
            tenant=tenant,
            subject=f"callbacks to {visit.field('origin') or 'all receivers'}",
            was=f"{count_text(count, 'callback')} Failed",
        )
        return Redirect(address("refused", tenant=tenant, done="retried"))

    async def _failed(self, visit: Visit) -> list[dict[str, Any]]:
        named = visit.tenant(visit.query.get("tenant"))
        whose = visit.user.tenants if named is None else frozenset({named})
        return [
            {
                "tenant_id": each.tenant_id,
                "origin": each.origin,
                "error": each.error,
                "count": each.count,
                "newest": {"tenant_id": each.tenant_id, "service_call_id": each.newest},
            }
            for each in await self._insight.failing(whose, MAX_FAILED)
        ]

    def _repair(self, visit: Visit, letter: Letter, subject: str, body: str, *, checked: bool) -> Screen:
        verdict = self._desk.read(visit, subject, body)
        model = {
            "letter": letter_view(letter),
            "pieces": reading.pieces(letter),
            "is_whole": len(letter.body) <= reading.MAX_SHOWN_CHARS and not letter.is_cut,
            "corrections": reading.corrections(letter, visit.look.zone_name, visit.look.zone),
            "subject": subject,
            "body": body,
            "checked": checked,
            "problem": verdict.detail if isinstance(verdict, CommandRefused) else "",
            "command_of": None if isinstance(verdict, CommandRefused) else command_view(verdict),
        }
        line = f"timer-service deadletters show {letter.number}"
        return Screen("letter.html", model, f"Letter {letter.number}", line)


def _command(query: Mapping[str, str]) -> str:
    """Return the command that lists the same; where the command line knows no such filter, the request."""
    chosen = {name: query[name] for name in ("tenant", "reason", "field", "before") if query.get(name)}
    if chosen.keys() - {"tenant"}:
        return by_curl("refused", **chosen)
    whose = ["--tenant", chosen["tenant"]] if chosen else []
    words = ["timer-service", "deadletters", "list", *whose, "--since", "30d", "--limit", str(SHOWN_LETTERS)]
    return shlex.join(words)


def _group_view(group: reading.Group) -> dict[str, Any]:
    newest = group.letters[0]
    return {
        "tenant_id": group.tenant_id,
        "reason": group.reason,
        "field": group.field,
        "count": len(group.letters),
        "newest": letter_view(newest),
        "link": address("refused-replay", tenant=group.tenant_id, reason=group.reason, field=group.field),
    }
