"""A group of letters: looked at with one correction for all, then sent again."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from timer_service.adapters.http.pages import letters as reading
from timer_service.adapters.http.pages.auditing import Auditor
from timer_service.adapters.http.pages.letter_desk import LetterDesk, command_view
from timer_service.adapters.http.pages.rows import timer_row
from timer_service.adapters.http.pages.visit import PageError, Redirect, Screen, Visit, address, by_curl
from timer_service.bulk import Ending
from timer_service.domain.api_keys import Scope
from timer_service.domain.errors import CommandRefused, TransientError
from timer_service.domain.messages import Command, TimerKey
from timer_service.domain.timer import Timer
from timer_service.ports.letter_box import Letter
from timer_service.ports.timer_insight import TimerInsight

_GROUP: Final = ("tenant", "reason", "field")
"""What the letters of a group have in common."""


class ReplayScreens:
    """Looks, and sends."""

    def __init__(self, desk: LetterDesk, insight: TimerInsight, auditor: Auditor) -> None:
        self._desk = desk
        self._insight = insight
        self._auditor = auditor
        self._sending = asyncio.Lock()

    async def preview(self, visit: Visit) -> Screen:
        """Show what it would mean to send a group again; nothing is changed."""
        values = visit.query
        members, fix = await self._members(visit, values), values.get("fix", reading.AS_IT_IS)
        read = [(letter, self._read(visit, letter, fix)) for letter in members]
        commands = {letter.number: command for letter, command in read if not isinstance(command, str)}
        timers = await self._insight.get([command.key for command in commands.values()])
        chosen = {name: values.get(name, "") for name in _GROUP}
        fixes = _fixes(members, visit)
        model = {
            "group": chosen,
            "fix": fix,
            "fixes": [(each, label, address("refused-replay", **chosen, fix=each)) for each, label in fixes],
            "count": len(members),
            "good": len(commands),
            "letters": [_preview(letter, command, timers) for letter, command in read],
        }
        return Screen(
            "replay.html", model, "Send a group again", by_curl("refused-replay", **chosen, fix=fix)
        )

    async def start(self, visit: Visit) -> Redirect:
        """Carry out all messages of a group, each with the same correction; it is noted as a job is."""
        if Scope.WRITE not in visit.user.scopes:
            raise PageError(403, "This needs the right to write: letters schedule and cancel timers.")
        members = await self._members(visit, {name: visit.field(name) for name in _GROUP})
        if str(len(members)) != visit.field("count"):
            raise PageError(409, f"The group has {len(members)} letters now: look at it again.")
        reason = visit.field("reason_for").strip()
        if not reason:
            raise PageError(400, "Say why: the reason is kept with what is done.")
        subject = f"letters: {visit.field('reason')} {visit.field('field')}".strip()
        tenant = visit.tenant(visit.field("tenant"))
        if self._sending.locked():
            raise PageError(409, "A group of letters is being sent: wait for its end, then look again.")
        async with self._sending:
            notes = self._auditor.of_job(visit.user, "replay", tenant, subject, reason)
            job = await notes.begin(len(members))
            # The oldest first: what a newer one says of the same timer counts in the end.
            outcomes = Counter([await self._replay_one(visit, each, job) for each in reversed(members)])
            await notes.close(job, Ending.FINISHED, outcomes)
        return Redirect(address("job", n=job))

    async def _members(self, visit: Visit, values: Mapping[str, str]) -> list[Letter]:
        """Return the letters of a group. Raises PageError."""
        tenant = values.get("tenant", "")
        found, trouble = await self._desk.look(visit, tenant)
        if trouble:
            raise PageError(503, trouble)
        members = reading.chosen(found.letters, values.get("reason"), values.get("field", ""))
        return [each for each in members if (each.tenant_id or "") == tenant]

    def _read(self, visit: Visit, letter: Letter, fix: str) -> Command | str:
        """Return what a letter asks for with a correction, or why nothing can be done with it."""
        body = reading.corrected(reading.text_of(letter.body), fix, visit.look.zone)
        if letter.is_cut or body is None:
            return "the correction does not apply to this one"
        command = self._desk.read(visit, letter.subject, body)
        if isinstance(command, CommandRefused):
            return command.detail
        return command if visit.user.sees(command.tenant_id) else "it is for a tenant that is not yours"

    async def _replay_one(self, visit: Visit, letter: Letter, job: int) -> str:
        """Carry out one letter of a group, and note what came of it."""
        command = self._read(visit, letter, visit.field("fix"))
        if isinstance(command, str):
            return await self._not_replayed(visit, letter, job, "refused", command)
        try:
            return await self._desk.carry_out(visit, letter, command, job)
        except TransientError as error:
            return await self._not_replayed(visit, letter, job, "try_again", error.public)

    async def _not_replayed(self, visit: Visit, letter: Letter, job: int, outcome: str, why: str) -> str:
        subject = f"letter {letter.number}"
        await self._auditor.note(
            visit.user, "replay", outcome, tenant=letter.tenant_id, subject=subject, reason=why, job=job
        )
        return outcome


def _fixes(letters: Sequence[Letter], visit: Visit) -> list[tuple[str, str]]:
    """Return the corrections that apply to some of a group, each with its name."""
    look = visit.look
    found = {
        each.fix: each.label
        for letter in letters
        for each in reading.corrections(letter, look.zone_name, look.zone)
    }
    return [(reading.AS_IT_IS, "as it is"), *found.items()]


def _preview(letter: Letter, command: Command | str, timers: Mapping[TimerKey, Timer]) -> dict[str, Any]:
    """Return what would become of a letter, and the timer of that name as it is now."""
    told = {"number": letter.number, "received_at": letter.received_at}
    if isinstance(command, str):
        return told | {"problem": command, "command_of": None, "timer": None}
    timer = timers.get(command.key)
    return told | {
        "problem": "",
        "command_of": command_view(command),
        "timer": None if timer is None else timer_row(timer),
    }
