"""Bugs planted into the service on purpose, to see whether the simulation finds them."""

import inspect
import itertools
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from types import FunctionType, ModuleType
from typing import Any
from unittest.mock import patch
from uuid import UUID

from tests.simulation import process
from timer_client.wire import Wanted
from timer_client.wire import rules as wire_rules
from timer_service.adapters import retrying
from timer_service.adapters.nats import batches, inbox, letters, positions, publisher
from timer_service.adapters.postgres import delivery_statements
from timer_service.adapters.postgres import looks as postgres_looks
from timer_service.adapters.postgres import store as postgres_store
from timer_service.adapters.sqlite import deliveries, exclusion, looks, marks, places, statements, store
from timer_service.adapters.system import SystemClock
from timer_service.domain import attempts, delivery, due_timer, messages, pace
from timer_service.domain import timer as rules
from timer_service.domain.delivery import CallbackRequest, CallResult, Trouble, Unreachable
from timer_service.domain.epochs import StreamEpoch
from timer_service.ports.delivery_store import ClaimedDelivery
from timer_service.ports.event_sink import Published
from timer_service.service import consume, deliver, fire, purge, run
from timer_service.service.fire import Firing, Unmarked
from timer_service.service.pauses import Pauses
from timer_service.workflows import (
    catch_up,
    decide_timer,
    deliver_callbacks,
    fire_due_timers,
    hold_back,
    open_questions,
    purge_timers,
    schedule_timers,
    unanswered,
)

Change = Callable[[ExitStack], None]


def rewritten(owner: type | ModuleType, name: str, *replacements: tuple[str, str]) -> Change:
    """Plant a bug by changing the text of a function; each text to replace must stand there exactly once."""
    attribute = inspect.getattr_static(owner, name)
    function = getattr(attribute, "__wrapped__", attribute)
    assert isinstance(function, FunctionType)
    source = inspect.getsource(function)
    for old, new in replacements:
        assert source.count(old) == 1, f"{name} no longer holds {old!r} once: plant this bug in another way"
        source = source.replace(old, new)
    found: dict[str, Any] = {}
    exec(compile(textwrap.dedent(source), f"<planted in {name}>", "exec"), function.__globals__, found)
    return replaced(owner, name, found[function.__name__])


def replaced(owner: type | ModuleType, name: str, value: object) -> Change:
    """Plant a bug by putting something else in the place of a function or constant."""

    def plant(stack: ExitStack) -> None:
        stack.enter_context(patch.object(owner, name, value))

    return plant


def sql(name: str, old: str, new: str, owner: ModuleType = statements) -> Change:
    """Plant a bug in a statement of the store."""
    statement: str = getattr(owner, name)
    assert old in statement, f"{name} no longer holds {old!r}: plant this bug in another way"
    return replaced(owner, name, statement.replace(old, new))


def _as_imported(owner: ModuleType, name: str, by: ModuleType) -> Change:
    """Plant the bug also in a module that has imported the function by name."""

    def plant(stack: ExitStack) -> None:
        stack.enter_context(patch.object(by, name, getattr(owner, name)))

    return plant


def together(*changes: Change) -> Change:
    """Plant a bug in several places."""

    def plant(stack: ExitStack) -> None:
        for change in changes:
            change(stack)

    return plant


def _fresh_id(kind: type[messages.Event]) -> Change:
    numbers = itertools.count(1)

    def fresh(event: messages.Event) -> str:
        due_ms = max(messages.epoch_ms(event.due_at), 0)
        return str(UUID(int=due_ms << 80 | 0x7 << 76 | 0b10 << 62 | next(numbers)))

    return replaced(kind, "id_text", property(fresh))


def _delay_from_delivery() -> Change:
    """Let a delay count from the delivery: in the simulation a second later each time."""
    deliveries: Counter[object] = Counter()

    def due_from(wanted: Wanted, moment: datetime) -> datetime:
        if wanted.delay_ms is None:
            return original(wanted, moment)
        deliveries[moment] += 1
        return original(wanted, moment + timedelta(seconds=deliveries[moment] - 1))

    original = Wanted.due_from
    return replaced(Wanted, "due_from", due_from)


class _Gone:
    """Sends nothing."""

    async def send(self, _: CallbackRequest) -> CallResult:
        return Unreachable(Trouble.CONNECT)


def _attempts_for_a_breaker() -> Change:
    """Let an open breaker fail whatever is sent, in place of holding it back."""
    original = deliver.Delivering._call

    async def call(self: deliver.Delivering, claimed: ClaimedDelivery) -> None:
        if not self._waiting.lanes.open_breakers:
            await original(self, claimed)
            return
        self._sender, sender = _Gone(), self._sender
        try:
            await original(self, claimed)
        finally:
            self._sender = sender

    return together(
        replaced(deliver.Delivering, "_call", call),
        replaced(pace.Pace, "allows", lambda self, under_way, now_s: under_way < self.limit),
    )


def _first_epoch(created_us: int) -> StreamEpoch:
    return StreamEpoch(created_us, created_us)


async def _at_once(_: open_questions.OpenQuestions) -> None:
    """Wait for nothing."""


PLANTED: dict[str, Callable[[], Change]] = {
    "mark before publish": lambda: together(
        rewritten(
            fire_due_timers,
            "_publish",
            (
                "        results = await sink.publish(events) if events else []\n",
                """\
        if events:
            await claim.mark_reached(events)
        results = await sink.publish(events) if events else []
""",
            ),
        ),
    ),
    "acknowledge before commit": lambda: together(
        rewritten(
            schedule_timers,
            "schedule_timers",
            ("        await batch.acknowledge()\n", ""),
            (
                "        outcomes = await store.apply",
                "        await batch.acknowledge()\n        outcomes = await store.apply",
            ),
        ),
        _as_imported(schedule_timers, "schedule_timers", by=consume),
    ),
    "a fresh id for a repetition": lambda: _fresh_id(messages.DueTimeReached),
    "earlier than instead of not later than": lambda: together(
        sql("FIND_DUE", "pending_due_ms <= :now_ms", "pending_due_ms < :now_ms", looks),
        sql("FIND_DUE_OF_TENANT", "pending_due_ms <= :now_ms", "pending_due_ms < :now_ms", looks),
        sql("FIND_DUE_IN_TURNS", "pending_due_ms <= :now_ms", "pending_due_ms < :now_ms", looks),
        sql("FIND_FIRST_IN_TURNS", "pending_due_ms <= :now_ms", "pending_due_ms < :now_ms", looks),
    ),
    "no generation guard": lambda: together(
        sql("MARK_REACHED", "timer_schedules.generation = fired.generation", "fired.generation > 0", marks),
        sql("MARK_ALIKE", "generation = :generation", ":generation > 0", marks),
    ),
    "no redelivery guard": lambda: rewritten(rules, "apply", ("command.position > timer.position", "True")),
    "an overtaken command is dropped whole": lambda: replaced(
        rules, "_complete", lambda timer, command: timer
    ),
    "no new epoch after the broker lost its tail": lambda: replaced(
        positions,
        "epoch_to_begin",
        lambda known, created_us, *_, **__: (
            None
            if any(epoch.stream_created_us == created_us for epoch in known)
            else _first_epoch(created_us)
        ),
    ),
    "a message that outlived the loss counts as new": lambda: replaced(
        positions, "epoch_of", lambda epochs, *_: epochs[-1].number
    ),
    "an expired timer fires all the same": lambda: rewritten(
        due_timer.DueTimer, "judged", ("if is_late else", "if False else")
    ),
    "which event a timer gets is decided anew at each try": lambda: rewritten(
        due_timer.DueTimer, "judged", ("self.verdict is not None", "False")
    ),
    "a verdict is kept after the event is out": lambda: rewritten(
        fire_due_timers,
        "_publish",
        ("settled = await _settle(claim, undecided, now)", "settled = {timer.key for timer in timers}"),
        ("        refused = {", "        await _settle(claim, undecided, now)\n        refused = {"),
    ),
    "a verdict in doubt is taken back": lambda: replaced(
        fire_due_timers, "_NOT_PUBLISHED", frozenset(Published) - {Published.CONFIRMED}
    ),
    "an expiry has a fresh id each time": lambda: _fresh_id(messages.TimerExpired),
    "if absent overwrites": lambda: replaced(rules, "_is_conditional", lambda command: False),
    "a delay counts from the delivery": _delay_from_delivery,
    "missing tenant filter on mark": lambda: together(
        sql("MARK_REACHED", "timer_schedules.tenant_id = fired.tenant_id", "fired.tenant_id <> ''", marks),
        sql("MARK_ALIKE", "tenant_id = :tenant_id", ":tenant_id <> ''", marks),
    ),
    "a timer that is being marked is claimed again": lambda: together(
        rewritten(looks.Looks, "find", ("_keys((*claimed, *held_back.timers))", "_keys(held_back.timers)")),
        replaced(places.Places, "to_pass", lambda *_: []),
        replaced(places.Places, "found", lambda *_, **__: None),
        rewritten(exclusion.Exclusion, "claim", (" - self._claimed", "")),
    ),
    "a timer that was changed is fired as it was read": lambda: rewritten(
        looks.Looks, "saved", ("self._ahead.saved(timers)", "pass")
    ),
    "an unmarked timer is given back before its mark": lambda: together(
        rewritten(
            fire_due_timers,
            "publish_due_timers",
            ("        yield PublishedBatch(report, claim)", "    yield PublishedBatch(report, claim)"),
        ),
        _as_imported(fire_due_timers, "publish_due_timers", by=fire),
    ),
    "a mark that fails is forgotten": lambda: rewritten(
        retrying._RetryingClaim,
        "mark_reached",
        (
            'await self._store.retry("mark", lambda: self._claim.mark_reached(events))',
            "await self._claim.mark_reached(events)",
        ),
    ),
    "a mark that is lost with its group counts as done": lambda: rewritten(
        marks.Marks, "_mark_all", ("mark.marked, mark.error = count, error", "mark.marked = count")
    ),
    "no bound on what is published and not marked": lambda: rewritten(
        Unmarked,
        "room",
        ("while self._timers >= self._max_timers or", "while"),
        ("min(wanted, self._max_timers - self._timers)", "wanted"),
    ),
    "what was changed before its mark is not looked for": lambda: rewritten(
        Firing, "_fire_batch", ("if report.marked < len(report.confirmed):", "if False:")
    ),
    "missing tenant filter on get": lambda: sql("GET", "tenant_id = ?", "? <> ''"),
    "wake-up checked before waiting": lambda: rewritten(
        Firing,
        "run",
        ("            self._wake.clear()\n", ""),
        (
            "                await self._sleep_until(next_look_at)",
            "                self._wake.clear()\n                await self._sleep_until(next_look_at)",
        ),
    ),
    "cancel without tombstone": lambda: rewritten(
        store.SqliteTimerStore,
        "_change",
        (
            "if after is not before:",
            "if after is not before and outcome is not Outcome.NOT_FOUND:",
        ),
    ),
    "due time rounded down": lambda: rewritten(
        wire_rules,
        "_round_up",
        ('milliseconds + 1 if fraction[3:].strip("0") else milliseconds', "milliseconds"),
    ),
    "a new due time keeps the generation": lambda: rewritten(
        rules, "_schedule", ("_next_generation(timer) if moved else {}", "{}")
    ),
    "a reached timer is scheduled again": lambda: together(
        rewritten(
            rules,
            "apply",
            (
                "timer.state in FINAL",
                "timer.state in FINAL and not isinstance(command, ScheduleTimer)",
            ),
        ),
        rewritten(
            rules,
            "_schedule",
            (
                "again = timer.state is TimerState.CANCELLED",
                "again = timer.state is not TimerState.SCHEDULED",
            ),
            ("cancelled_at=None,", "cancelled_at=None, reached_at=None,"),
        ),
    ),
    "terminate before the letter": lambda: rewritten(
        letters.Letters,
        "_write",
        (
            "        results = [_DISCONNECTED] * len(refused)\n",
            """\
        await self._answer([(message, b"+TERM") for message in refused])
        results = [_DISCONNECTED] * len(refused)
""",
        ),
    ),
    "a letter that cannot be written is dropped": lambda: rewritten(
        letters.Letters,
        "_give_back",
        ("len(self._parked) >= self._limits.max_parked", "True"),
    ),
    "a refused message is given back without a delay": lambda: rewritten(
        letters.Letters,
        "_give_back",
        ('b"-NAK " + json.dumps({"delay": int(delay_s * 1e9)}).encode()', 'b"-NAK"'),
    ),
    "a pause without an end": lambda: rewritten(
        hold_back, "_holds", ("now < pause.until <= now + 3 * MAX_PAUSE", "True")
    ),
    "a stream that takes nothing is never tried again": lambda: rewritten(
        hold_back.HoldBack,
        "everything_until",
        ("pause is not None and _holds(pause, now)", "pause is not None"),
    ),
    "purge forgets the retention": lambda: together(
        rewritten(purge_timers, "purge_timers", ("clock.now() - retention", "clock.now()")),
        _as_imported(purge_timers, "purge_timers", by=purge),
    ),
    "a clock that is rounded up": lambda: rewritten(
        SystemClock, "now", ("milliseconds=boot_ms + offset_ms", "milliseconds=boot_ms + offset_ms + 1")
    ),
    "a leap that nobody can confirm": lambda: rewritten(
        SystemClock, "accept_step", ("self._highest_ms = self._wall_ms() - self._boot_ms()", "pass")
    ),
    "a stop cuts off the batch in hand": lambda: together(
        rewritten(run, "run_service", ("timeout=grace_s)", "timeout=0)")),
        _as_imported(run, "run_service", by=process),
    ),
    "a pull that is lost is waited for forever": lambda: rewritten(
        inbox.Inbox, "top_up", ("if pull.lost_at < now", "if False")
    ),
    "an unconfirmed event counts as confirmed": lambda: rewritten(
        fire_due_timers, "_sorted_out", ("if result.outcome is not Published.CONFIRMED]", "if False]")
    ),
    "an error inside a batch is forgotten": lambda: rewritten(
        batches.Batches, "_on_answer", ('if "error" in answer or', "if")
    ),
    "a batch that the broker left open counts as confirmed": lambda: rewritten(
        publisher.Publisher,
        "_publish_batch",
        ("            self._singly_until = now_s() + SINGLY_FOR_S", "            return _CONFIRMED"),
    ),
    "fire without asking what waits": lambda: replaced(catch_up.CatchUp, "is_off", property(lambda _: True)),
    "what is applied while the broker is asked is acknowledged at once": lambda: replaced(
        open_questions.OpenQuestions, "answered", _at_once
    ),
    "a silent command stream is waited for forever": lambda: rewritten(
        unanswered.Unanswered, "note", ("if self._looks[0].counted > over:", "if True:")
    ),
    "a silent command stream counts as empty at once": lambda: rewritten(
        fire_due_timers, "_who_waits", ("waits = catch_up.unanswered(now) if", "waits = Waits(now) if")
    ),
    "whatever was stored at the look before counts as applied": lambda: rewritten(
        catch_up.CatchUp, "_passed", (" if f.sequence < oldest", "")
    ),
    "who has waited in vain never waits again": lambda: rewritten(
        catch_up.CatchUp,
        "_give_up",
        ("stuck = min(expired_sequence, backlog.handled_sequence)", "stuck = backlog.last_sequence + 10**6"),
    ),
    "what came while a timer waited in vain is given up too": lambda: rewritten(
        catch_up.CatchUp,
        "_give_up",
        ("min(expired_sequence, backlog.", "min(backlog.last_sequence, backlog."),
    ),
    "what nobody has come to yet is given up too": lambda: rewritten(
        catch_up.CatchUp,
        "_give_up",
        ("min(expired_sequence, backlog.handled_sequence)", "expired_sequence"),
    ),
    "sleep without regard to the poll interval": lambda: rewritten(
        Pauses,
        "sleep",
        ("seconds = min(seconds, ", "seconds = ("),
    ),
    "a look from memory puts off the poll": lambda: rewritten(
        Pauses, "looked", ("if not read_ahead", "if True")
    ),
    "a request is answered before the commit": lambda: rewritten(
        decide_timer.RequestDesk,
        "_work",
        (
            "            results = await self._store.decide(requests, self._clock.now())\n",
            """\
            from timer_service.domain.timer import decide
            now = self._clock.now()
            known = [await self._store.get(r.tenant_id, r.service_call_id) for r in requests]
            decided = [decide(timer, request, now) for timer, request in zip(known, requests)]
            results = [Decided(outcome, timer) for timer, outcome in decided]
            asyncio.ensure_future(self._store.decide(requests, now))
""",
        ),
    ),
    "a request changes a timer that is being fired": lambda: together(
        rewritten(
            exclusion.Exclusion,
            "requesting",
            ("closed = self._claimed.union(*self._wanted.values())", "closed = set()"),
        ),
        rewritten(rules, "decide", ("_is_due(timer, now)", "False")),
    ),
    "a delivery is opened outside the transaction of its mark": lambda: together(
        rewritten(marks.Marks, "_execute", ("if mark.sink is Sink.HTTP", "if False")),
        rewritten(
            marks.Marks,
            "_mark_all",
            (
                "        except TimerServiceError as failed:\n",
                """\
            for mark in group:
                if mark.sink is Sink.HTTP:
                    async with self._transaction():
                        await open_deliveries(self._writer, mark.events)
        except TimerServiceError as failed:
""",
            ),
        ),
    ),
    "a fresh id for each attempt": lambda: together(
        rewritten(
            attempts,
            "next_request",
            ("id=delivery.id,", "id=type(delivery.id)(int=delivery.id.int + delivery.attempts),"),
        ),
        _as_imported(attempts, "next_request", by=deliver_callbacks),
    ),
    "an open breaker uses up attempts": _attempts_for_a_breaker,
    "an attempt before the receiver allows it": lambda: replaced(
        delivery, "_asked_for", lambda *_: timedelta()
    ),
    "an attempt before its time": lambda: together(
        sql("DUE", "next_attempt_at <= :now", ":now <> ''", deliveries),
        sql("CLAIM", "d.next_attempt_at <= :now", ":now <> ''", deliveries),
    ),
    "what has been handed over is cancelled": lambda: together(
        rewritten(
            rules,
            "decide",
            ("if timer.state in FINAL:", "if timer.state in FINAL and isinstance(request, ScheduleTimer):"),
        ),
        rewritten(rules, "_cancel", ("cancelled_at=now,", "cancelled_at=now, reached_at=None,")),
    ),
    "an outcome that cannot be kept is forgotten": lambda: rewritten(
        deliver.Delivering,
        "_keep_outcomes",
        ("                    continue\n", "                    del self._unkept[: len(group)]\n"),
    ),
    "a callback is sent although it has expired": lambda: replaced(
        delivery.Delivery, "has_expired", lambda *_: False
    ),
    "an outcome that comes late counts for what was abandoned": lambda: sql(
        "FINISH", "state = 'Waiting' AND next_attempt_at = ended.value ->> 4", "state <> ''", deliveries
    ),
    "whatever a receiver leaves open is waited for by all": lambda: rewritten(
        deliver.Delivering, "__init__", ("Lanes[TimerKey](slots, ", "Lanes[TimerKey](1, ")
    ),
    "two requests for one timer share a transaction": lambda: rewritten(
        decide_timer.RequestDesk,
        "_next_group",
        ("group.setdefault(waiting.key, waiting)", "group[*waiting.key, len(group)] = waiting"),
    ),
}
"""Name of the bug to what plants it."""
_TAKEN = "d.claimed_by IS NULL OR"
PLANTED_IN_PAIRS: dict[str, Callable[[], Change]] = {
    "two instances claim one timer": lambda: together(
        sql("FIND_DUE", "FOR UPDATE SKIP LOCKED", "", postgres_store),
        sql("FIND_DUE_IN_TURNS", "FOR UPDATE SKIP LOCKED", "", postgres_looks),
    ),
    "two instances claim one callback": lambda: together(
        *(
            sql(name, _TAKEN, "d.tenant_id <> '' OR", delivery_statements)
            for name in ("DUE", "DUE_AMONG", "CLAIM")
        )
    ),
}
"""The same, where two instances share a database."""


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Run the block with one bug in the service."""
    change = {**PLANTED, **PLANTED_IN_PAIRS}[name]()
    with ExitStack() as stack:
        change(stack)
        yield
