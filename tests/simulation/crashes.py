"""Crash the service at every step of a few short stories that together use all of it."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from random import Random
from shutil import rmtree

from tests.simulation.awaits import Place, all_places, places_of
from tests.simulation.clock import START_MS
from tests.simulation.hooks import ABANDON, CANCEL, RETRY, SCHEDULE, Hook, Want
from tests.simulation.model import Wish
from tests.simulation.plan import (
    Asking,
    CrashPoint,
    Fault,
    Plan,
    Sending,
    asking,
    hostile_message,
    iso,
    sendings,
    with_payload,
)
from tests.simulation.world import Tally, World
from timer_service.domain.delivery import Answered, TimedOut, Trouble, Unreachable

QUICK_S, SLOW_S = 0.02, 2.5
"""Restarts: before the broker delivers again what was not acknowledged, and after."""


def _schedule(at: float, tenant: str, call: str, due_s: float, number: int) -> list[Sending]:
    wish = Wish("schedule", tenant, call, START_MS + round(due_s * 1000), f"request {number}")
    return sendings(Random(number), at, wish, iso(wish.due_ms), number)


def _expiring(at: float, tenant: str, call: str, due_s: float, expires_ms: int, number: int) -> list[Sending]:
    wish = Wish("schedule", tenant, call, START_MS + round(due_s * 1000), expires_ms=expires_ms)
    return [
        replace(sending, body=with_payload(sending.body, expiresAfterMs=expires_ms))
        for sending in sendings(Random(number), at, wish, iso(wish.due_ms), number)
    ]


def _relative(at: float, tenant: str, call: str, delay_ms: int, number: int) -> list[Sending]:
    wish = Wish("schedule", tenant, call, delay_ms=delay_ms, if_absent=True)
    return [
        replace(sending, body=with_payload(sending.body, delayMs=delay_ms, ifAbsent=True))
        for sending in sendings(Random(number), at, wish, None, number)
    ]


def _cancel(at: float, tenant: str, call: str, number: int) -> list[Sending]:
    return sendings(Random(number), at, Wish("cancel", tenant, call), None, number)


def _ask(at: float, kind: str, tenant: str, call: str = "", due_s: float = 0.0) -> Asking:
    due_ms = START_MS + round(due_s * 1000) if kind == "schedule" else 0
    return asking(at, Wish(kind, tenant, call, due_ms), iso(due_ms) if due_ms else None)


def _plan(*sent: list[Sending], **values: object) -> Plan:
    plan = Plan(
        seed=0,
        sendings=[sending for group in sent for sending in group],
        ends_at=0.6,
        poll_interval_ms=1_000,
        ack_wait_ms=1_000,
        batch_size=2,
        disk_latency_s=0.002,
        net_latency_s=0.002,
        suspends=1.0,
        settled_at_least_s=1.5,
        is_probed=False,
        crash_from_s=0.12,
    )
    return replace(plan, **values)  # type: ignore[arg-type]


STORIES: dict[str, Plan] = {
    "a first start, commands, and more due than a batch": _plan(
        *(
            _schedule(0.2, tenant, f"order-{number}", 0.25, number)
            for number, tenant in enumerate(("acme", "globex", "acme", "acme"), start=1)
        ),
        _schedule(0.21, "acme", "order-1", 0.4, 5),
        _cancel(0.25, "globex", "order-2", 6),
        [hostile_message(Random(1), 0.22, "acme", "order-1", 7)],
        fresh_database=True,
        crash_from_s=0.0,
    ),
    "requests that meet each other, commands and firings": _plan(
        _schedule(0.2, "acme", "order-1", 0.26, 1),
        _schedule(0.25, "acme", "order-2", 0.4, 2),
        _cancel(0.26, "acme", "order-1", 3),
        askings=[
            _ask(0.2, "schedule", "acme", "order-3", 0.27),
            _ask(0.2, "schedule", "globex", "order-1", 0.3),
            Asking(0.2, "timer.status", b"", None),
            Asking(0.2, "timer.clock.accept", b"", None),
            _ask(0.21, "get", "acme", "order-1"),
            _ask(0.21, "get", "acme", "order-9"),
            _ask(0.21, "list", "acme"),
            Asking(0.21, "timer.api.acme.explain", b'{"serviceCallId": "order-1"}', None),
            Asking(0.21, "timer.api.acme.cancel", b"no call", None),
            _ask(0.26, "cancel", "acme", "order-1"),
            _ask(0.265, "cancel", "acme", "order-3"),
            _ask(0.3, "cancel", "globex", "order-1"),
        ],
    ),
    "commands that are applied while the broker is asked what waits": _plan(
        *(_schedule(0.2, "acme", f"order-{number}", 0.25 + number / 400, number) for number in range(1, 13)),
        *(
            _schedule(0.25 + number / 400, "globex", f"order-{number}", 5.0, 20 + number)
            for number in range(1, 13)
        ),
        net_latency_s=0.005,
    ),
    "two requests for one timer at once": _plan(
        askings=[
            _ask(0.2, "schedule", "acme", "order-1", 5.0),
            _ask(0.2, "cancel", "acme", "order-1"),
            _ask(0.2, "schedule", "acme", "order-1", 0.4),
        ],
    ),
    "due timers in the hands of requests": _plan(
        *(_schedule(2.5, "acme", f"order-{number}", 3.0, number) for number in (1, 2, 3)),
        askings=[
            _ask(2.85 + turn / 25, "schedule", "acme", f"order-{number}", 3.5)
            for turn in range(4)
            for number in (1, 2)
        ],
        batch_size=1,
        disk_latency_s=0.03,
        ends_at=3.3,
        crash_from_s=2.95,
    ),
    "more requests than are worked on at once": _plan(
        askings=[_ask(0.2, "get", "acme", "order-1") for _ in range(70)],
        ends_at=0.22,
        suspends=0.0,
        crash_from_s=0.2,
    ),
    "a store that is busy, full, and lies": _plan(
        *(_schedule(0.2, "acme", f"order-{number}", 0.25, number) for number in range(10, 20)),
        _schedule(0.3, "acme", "order-2", 0.32, 2),
        _cancel(0.35, "acme", "order-3", 3),
        askings=[
            _ask(0.22, "schedule", "acme", "order-4", 0.33),
            _ask(0.31, "schedule", "acme", "order-5", 0.33),
            _ask(0.36, "cancel", "acme", "order-6"),
        ],
        faults=[
            Fault(0.205, "busy", 0.095, size=1.0),
            Fault(0.3, "lost answers", 0.1, size=0.6),
            Fault(0.35, "full", 0.1),
            Fault(0.45, "read busy", 0.1, size=0.6),
        ],
    ),
    "a start while the file is busy": _plan(
        _schedule(0.2, "acme", "order-1", 0.25, 1),
        faults=[Fault(0.0, "busy", 0.1, size=1.0)],
        crash_from_s=0.0,
        ends_at=0.3,
    ),
    "a disk that fails": _plan(
        _schedule(0.2, "acme", "order-1", 0.25, 1),
        askings=[_ask(0.24, "schedule", "acme", "order-2", 0.3)],
        faults=[Fault(0.23, "io error", 0.2)],
    ),
    "a broker that goes": _plan(
        _schedule(0.15, "acme", "order-1", 0.2, 1),
        _schedule(0.17, "globex", "order-1", 0.62, 2),
        askings=[_ask(0.3, "schedule", "acme", "order-3", 0.5)],
        # Its streams come back later than it does, whenever the service connects again.
        faults=[Fault(0.2, "outage", 0.3), Fault(0.45, "jetstream away", 0.4)],
        ends_at=1.0,
    ),
    "a broker that loses streams, consumer and permissions": _plan(
        _schedule(0.15, "acme", "order-1", 0.21, 1),
        _schedule(0.16, "acme", "order-2", 0.7, 2),
        _schedule(0.17, "globex", "order-1", 0.75, 3),
        [hostile_message(Random(1), 0.61, "acme", "order-1", 4)],
        faults=[
            Fault(0.2, "delete events"),
            Fault(0.6, "delete consumer"),
            Fault(0.65, "forbidden", 0.1),
            Fault(0.8, "cut"),
        ],
        ends_at=1.3,
    ),
    "a broker that comes back without its newest commands": _plan(
        _schedule(0.15, "acme", "order-1", 0.9, 1),
        _schedule(0.18, "acme", "order-2", 0.9, 2),
        _schedule(0.3, "acme", "order-1", 0.95, 3),
        _schedule(0.3, "globex", "order-1", 0.5, 4),
        _cancel(0.405, "acme", "order-1", 5),
        _schedule(0.42, "acme", "order-3", 0.7, 6),
        _schedule(0.43, "acme", "order-2", 0.8, 7),
        faults=[Fault(0.2, "lost tail", 0.2, size=0.001)],
        ends_at=1.8,
        settled_at_least_s=2.5,
    ),
    "a command stream that answers no question for long": _plan(
        _schedule(0.2, "acme", "order-1", 2.0, 1),
        _schedule(0.2, "acme", "order-2", 68.5, 2),
        _schedule(0.2, "globex", "order-1", 74.0, 3),
        faults=[Fault(1.0, "commands silent", 70.0)],
        ends_at=75.0,
        crash_from_s=68.0,
    ),
    "commands that come late, and some that came while a timer waited in vain": _plan(
        _schedule(0.2, "acme", "order-1", 2.0, 1),
        _schedule(0.2, "acme", "order-2", 3.4, 2),
        _schedule(1.05, "acme", "order-9", 60.0, 3),
        _cancel(2.8, "acme", "order-2", 4),
        _schedule(2.9, "acme", "order-8", 60.0, 5),
        faults=[Fault(1.04, "mute", 0.05), Fault(2.79, "mute", 0.05)],
        catch_up="1s",
        ack_wait_ms=10_000,
        ends_at=5.0,
        crash_from_s=2.85,
    ),
    "a command that nobody has come to yet, for which each timer waits": _plan(
        _schedule(0.2, "acme", "order-1", 2.0, 1),
        _schedule(0.2, "acme", "order-2", 3.4, 2),
        _cancel(1.05, "acme", "order-2", 3),
        faults=[Fault(1.04, "mute", 0.05)],
        catch_up="1s",
        ack_wait_ms=3_000,
        ends_at=5.0,
        crash_from_s=3.05,
    ),
    "an event stream that is full for a while": _plan(
        _schedule(0.15, "acme", "order-1", 0.2, 1),
        _schedule(0.16, "globex", "order-1", 0.22, 2),
        _schedule(0.17, "acme", "order-2", 0.35, 3),
        faults=[Fault(0.18, "events full", 0.12)],
    ),
    "timers that expire, and some that nearly do": _plan(
        _expiring(0.15, "acme", "order-1", -10.0, 1_000, 1),
        _expiring(0.15, "acme", "order-2", 0.2, 60_000, 2),
        _expiring(0.16, "globex", "order-1", 0.3, 150, 3),
        _expiring(0.16, "globex", "order-2", 0.31, 60_000, 4),
        _relative(0.2, "acme", "order-3", 60, 5),
        _relative(0.205, "acme", "order-3", 20, 6),
        _relative(0.21, "acme", "order-1", 10, 7),
        _cancel(0.3, "globex", "order-2", 8),
        faults=[Fault(0.28, "events full", 0.25)],
        ends_at=0.9,
    ),
    "a firing in doubt, until after it would expire": _plan(
        _expiring(0.15, "acme", "order-1", 0.2, 300, 1),
        _expiring(0.15, "globex", "order-1", 0.3, 60_000, 2),
        faults=[Fault(0.19, "lost confirmations", 0.3, size=1.0)],
        ends_at=6.0,
        crash_from_s=5.1,
    ),
    "an expiry in doubt": _plan(
        _expiring(0.2, "acme", "order-1", -10.0, 1_000, 1),
        faults=[Fault(0.19, "lost confirmations", 0.3, size=1.0)],
        ends_at=6.0,
        crash_from_s=5.1,
    ),
    "letters that cannot be written": _plan(
        _schedule(0.2, "acme", "order-1", 0.25, 1),
        [hostile_message(Random(n), 0.2, "acme", "order-1", n) for n in (1, 2, 3)],
        _schedule(0.35, "acme", "order-2", 0.4, 5),
        [hostile_message(Random(6), 0.35, "globex", "order-1", 6)],
        faults=[Fault(0.19, "letters full", 0.15), Fault(0.35, "letters forbidden", 0.2)],
        settled_at_least_s=2.5,
    ),
    "an orderly stop with work in hand, and retention": _plan(
        _schedule(0.1, "acme", "order-1", 0.12, 1),
        *(_schedule(0.25, "acme", f"order-{number}", 0.9, number) for number in range(2, 12)),
        _cancel(0.17, "acme", "order-3", 12),
        askings=[_ask(0.265, "schedule", "acme", "order-1", 0.3)],
        faults=[
            Fault(0.2, "step", size=120.0),
            Fault(0.255, "stop", 0.03),
            Fault(0.36, "busy", 0.1, size=1.0),
            Fault(0.6, "step", size=-120.0),
        ],
        retention="1m",
        ends_at=0.7,
    ),
    "a stop between an event and its mark": _plan(
        *(_schedule(2.5, "acme", f"order-{number}", 3.0, number) for number in (1, 2)),
        askings=[_ask(3.045, "cancel", "acme", "order-1")],
        faults=[Fault(3.055, "stop", 0.03)],
        disk_latency_s=0.03,
        ends_at=3.3,
        crash_from_s=3.0,
    ),
    "timers that come due one by one on a slow disk": _plan(
        *(_schedule(0.3, "acme", f"order-{number}", 1.0 + number / 50, number) for number in range(1, 17)),
        _cancel(1.07, "acme", "order-2", 17),
        _schedule(1.11, "acme", "order-4", 1.25, 18),
        askings=[_ask(1.15, "cancel", "acme", "order-6")],
        faults=[Fault(1.5, "busy", 0.1, size=1.0)],
        batch_size=4,
        disk_latency_s=0.012,
        ends_at=1.6,
        crash_from_s=1.0,
    ),
    "a command between two events and the mark that they share": _plan(
        _schedule(0.3, "acme", "order-1", 2.32, 1),
        _schedule(0.3, "acme", "order-2", 2.34, 2),
        _schedule(0.3, "globex", "order-1", 2.37, 3),
        _schedule(2.366, "acme", "order-2", 2.6, 4),
        batch_size=8,
        disk_latency_s=0.02,
        ends_at=2.9,
        crash_from_s=2.3,
    ),
    "a request between an event and its mark": _plan(
        *(_schedule(0.15, "acme", f"order-{number}", 0.2, number) for number in (1, 2)),
        askings=[_ask(0.3, "cancel", "acme", "order-1"), _ask(0.3, "schedule", "acme", "order-2", 0.7)],
        faults=[Fault(0.19, "late confirmations", 0.1, size=1.0)],
    ),
    "a clock that is behind at the start, and set right at the end": _plan(
        _schedule(0.2, "acme", "order-1", 0.3, 1),
        faults=[Fault(0.13, "step", size=-7200.0), Fault(0.14, "crash", 0.02)],
        max_clock_step="1h",
    ),
    "callbacks that are cancelled, and receivers that fail in every way": _plan(
        hooks=[
            # As many failures in a row as it takes for a receiver to count as gone; the last one comes then.
            *(
                Hook(0.15, "acme", f"order-{number}", 0.25, (Answered(503),), (1.0, 1.0), "gone")
                for number in range(10)
            ),
            Hook(0.15, "acme", "order-10", 0.55, receiver="gone"),
            Hook(0.15, "globex", "order-1", 0.25, (Answered(429, retry_after="1"), Answered(500))),
            Hook(0.15, "globex", "order-2", 0.26, (TimedOut(timedelta(seconds=0.1)),)),
            Hook(0.15, "globex", "order-3", 0.27, (Unreachable(Trouble.RESET), Unreachable(Trouble.DNS))),
            Hook(0.15, "globex", "order-4", 0.27, (Answered(500), Answered(500)), (0.1,)),
            Hook(0.5, "globex", "order-5", 0.2),
            *(
                Hook(0.15, "umbrella", f"order-{number}", 0.3, (Answered(500),), cancel_at=0.26 + number / 50)
                for number in range(5)
            ),
        ],
        faults=[Fault(0.45, "read busy", 0.1, size=0.6), Fault(0.6, "busy", 0.15, size=1.0)],
        batch_size=8,
        ends_at=0.8,
    ),
    "many callbacks beside timers on the bus, which go first": _plan(
        *(_schedule(0.15, "acme", f"order-{number}", 0.3 + number / 125, number) for number in range(1, 21)),
        hooks=[
            Hook(0.15, tenant, f"{receiver}-{number}", 0.3, receiver=receiver)
            for number in range(8)
            for tenant in ("acme", "globex", "umbrella")
            for receiver in ("one", "two")
        ],
        batch_size=20,
        net_latency_s=0.006,
        ends_at=0.6,
    ),
    "callbacks that move, expire, are given up and sent again": _plan(
        hooks=[
            Hook(0.15, "acme", "order-1", 0.25, later=(Want(0.2, SCHEDULE, 0.4),)),
            Hook(
                0.15,
                "acme",
                "order-2",
                0.3,
                later=(Want(0.3, SCHEDULE, 0.35), Want(0.36, CANCEL)),
                if_absent=True,
            ),
            Hook(0.15, "acme", "order-3", 0.35, later=(Want(0.2, CANCEL), Want(0.25, SCHEDULE, 0.3))),
            Hook(
                0.16,
                "acme",
                "order-4",
                0.3,
                later=(Want(0.2, SCHEDULE, 9.0, if_absent=True), Want(0.5, RETRY)),
            ),
            Hook(0.15, "globex", "order-1", 0.25, (Answered(500),) * 3, (0.1, 0.2, 0.2), expires_s=0.2),
            Hook(0.25, "globex", "order-2", 0.1, expires_s=0.05, later=(Want(0.5, RETRY),)),
            Hook(
                *(0.15, "globex", "order-3", 0.25, (Answered(500),) * 4, (0.2, 0.3, 0.3), "unwell"),
                later=(Want(0.3, ABANDON), Want(0.6, RETRY)),
            ),
            Hook(
                *(0.15, "globex", "order-4", 0.26, (TimedOut(timedelta(seconds=0.4)),), (0.5,), "slow"),
                later=(Want(0.35, ABANDON),),
            ),
        ],
        ends_at=0.8,
    ),
    "receivers that hang, and others that must not wait for them": _plan(
        hooks=[
            *(
                Hook(0.15, tenant, f"hanging-{number}", 0.3, (TimedOut(timedelta(seconds=5)),), (), "hanging")
                for tenant in ("acme", "globex")
                for number in range(6)
            ),
            *(Hook(0.15, "acme", f"order-{number}", 0.31) for number in range(3)),
            Hook(0.15, "umbrella", "order-1", 0.35),
        ],
        batch_size=20,
        ends_at=2.5,
    ),
    "callbacks that are asked for by batch, some while the broker is away": _plan(
        hooks=[
            *(
                Hook(0.2, "acme", f"order-{number}", 0.3, (Answered(500),), in_batch=True)
                for number in (1, 2)
            ),
            Hook(0.205, "globex", "order-1", 0.35),
            Hook(0.55, "globex", "order-2", 0.7, cancel_at=0.6),
            *(Hook(0.56, "acme", f"order-{number}", 0.65, in_batch=True) for number in (3, 4)),
        ],
        faults=[Fault(0.4, "outage", 0.5)],
        ends_at=1.2,
    ),
    "a crash right after callbacks were handed over": _plan(
        hooks=[Hook(1.6, "acme", f"order-{number}", 2.4, (Answered(500),)) for number in (1, 2, 3)],
        faults=[Fault(2.66, "crash", 0.02)],
        disk_latency_s=0.03,
        ends_at=5.5,
        crash_from_s=2.3,
    ),
    "a stop with a callback under way": _plan(
        hooks=[Hook(0.15, "acme", "order-1", 0.2, (TimedOut(timedelta(seconds=6)),))],
        # It is cut off five seconds later, right before the end.
        faults=[Fault(0.3, "stop", 0.02)],
        ends_at=5.31,
        crash_from_s=0.29,
    ),
    "callbacks that nobody asks for any more": _plan(
        hooks=[Hook(0.15, "acme", "order-1", 0.2)],
        faults=[Fault(1.0, "step", size=120.0)],
        retention="1m",
        # The second purge.
        ends_at=60.3,
        crash_from_s=60.0,
    ),
    "nothing, until a pull is lost": _plan(
        _schedule(7.5, "acme", "order-1", 7.55, 1),
        faults=[Fault(4.0, "lost statuses", 3.0)],
        ends_at=8.2,
        crash_from_s=4.5,
    ),
}
"""Each is short, so that it can be told again for each of its steps."""


@dataclass(slots=True)
class CrashReport:
    """What came of a set of scenarios."""

    scenarios: int = 0
    places: set[Place] = field(default_factory=set)
    """Where the service was waiting when it was killed."""
    failures: list[tuple[str, CrashPoint, Tally]] = field(default_factory=list)


def steps_of(story: str, folder: Path, template: Path) -> int:
    """Return how many steps a story takes, from where it is worth a crash to its end."""
    tally = undisturbed(story, folder, template)
    return tally.steps_to_calm - tally.steps_before


def undisturbed(story: str, folder: Path, template: Path) -> Tally:
    """Tell a story in which nobody kills the service."""
    return _run(STORIES[story], folder, template, CrashReport())


def watched(story: str, folder: Path, template: Path) -> tuple[Tally, list[set[Place]]]:
    """Tell a story in which nobody kills the service, and say where it waits before each step."""
    found: list[set[Place]] = []
    with _world(STORIES[story], folder, template) as world:

        def look() -> None:
            found.append(places_of(world.process.tasks) if world.process is not None else set())

        world.on_counting = lambda: setattr(world.loop, "before_step", look)
        tally = world.run()
    return tally, found


def every_crash(steps: int, *, thorough: bool = False) -> Iterator[CrashPoint]:
    """Yield crashes at every step: before and after it, quick and slow restarts, twice in a row.

    Four of these ways at each step, so that all take turns; all seven if it is to be thorough.
    """
    for step in range(steps):
        before = [CrashPoint(step, after=False, down_for=down_for) for down_for in (QUICK_S, SLOW_S)]
        after = [CrashPoint(step, after=True, down_for=down_for) for down_for in (QUICK_S, SLOW_S)]
        twice = [
            CrashPoint(step, after=False, down_for=QUICK_S, again_in=again_in)
            for again_in in (step % 7, 20 + step % 40, 60 + step % 60)
        ]
        yield from before
        yield from after if thorough else [after[step % 2]]
        yield from twice if thorough else [twice[step % 3]]


def some_crashes(places: dict[str, list[set[Place]]]) -> dict[str, list[CrashPoint]]:
    """Return crashes for each story: at each place in the first that meets it, and at every 120th step."""
    met: set[Place] = set()
    return {story: list(_some_crashes(places[story], met)) for story in STORIES}


def _some_crashes(places: list[set[Place]], met: set[Place]) -> Iterator[CrashPoint]:
    for step, waits_at in enumerate(places):
        if waits_at - met:
            yield CrashPoint(step, after=False, down_for=QUICK_S)
        elif step % 120 == 0:
            again_in = step % 90 if step % 240 == 0 else None
            yield CrashPoint(step, after=True, down_for=SLOW_S, again_in=again_in)
        met |= waits_at


def crash_everywhere(
    story: str, points: Iterable[CrashPoint], folder: Path, template: Path, report: CrashReport
) -> None:
    """Tell a story once for each crash, and collect what goes wrong."""
    for point in points:
        tally = _run(replace(STORIES[story], crash=point), folder, template, report)
        report.scenarios += 1
        if tally.violations:
            report.failures.append((story, point, tally))


def _run(plan: Plan, folder: Path, template: Path, report: CrashReport) -> Tally:
    with _world(plan, folder, template) as world:
        world.on_crash = lambda process: report.places.update(places_of(process.tasks))
        return world.run()


@contextmanager
def _world(plan: Plan, folder: Path, template: Path) -> Iterator[World]:
    own = folder / "crash"
    own.mkdir()
    try:
        yield World(plan, own, template)
    finally:
        rmtree(own, ignore_errors=True)


NEVER_WAITS = {
    (
        "adapters/nats/requests.py",
        "self._refusals.flush(client)",
    ): "only where the last moment brought requests",
    ("adapters/nats/requests.py", "async with asyncio.TaskGroup()"): "all that it owns is over by then",
    ("adapters/endpoints.py", "accept_clock_step"): "sets a number and returns",
    (
        "workflows/fire_due_timers.py",
        "_take_back(claim, undecided)",
    ): "only where the connection ends meanwhile",
    (
        "workflows/fire_due_timers.py",
        "async with owned(asking)",
    ): "only where the claim fails: otherwise the question is answered by then",
    ("workflows/decide_timer.py", "self._work([waiting])"): "only after an error that nobody expects",
    ("bootstrap.py", "enter_async_context(way_in)"): "the simulation has no HTTP",
    ("workflows/decide_timer.py", "async with self._turn:"): "only where two decide at once",
    ("adapters/sqlite/store.py", "async with self._writer.lock:"): "only where two write at once",
    ("adapters/sqlite/writer.py", "async with self.lock:"): "the same",
    ("workflows/schedule_timers.py", "batch.dead_letter()"): "waits only where a thousand are queued",
    ("adapters/nats/inbox.py", "letters.take("): "the same",
    ("adapters/nats/letters.py", "self._wait_for_room("): "the same",
    ("adapters/nats/letters.py", "self._room.wait()"): "the same",
    ("adapters/nats/letters.py", "self._give_back(overflow)"): "the same",
    ("adapters/nats/connecting.py", "LEARNT_ROUND_S"): "the simulated server is alone",
    ("adapters/sqlite/store.py", "_pending.count()"): "asked for by an operator, who is not in the stories",
    ("adapters/sqlite/store.py", "COUNT_"): "the same",
    ("adapters/sqlite/pending.py", "a"): "the same",
    ("adapters/sqlite/schema.py", "FROM {MOVED}"): "the file was not copied elsewhere",
    ("adapters/sqlite/schema.py", "connection.interrupt()"): "sets a flag and returns",
    ("adapters/sqlite/schema.py", "asyncio.wait({turn}"): "only where the start is cancelled",
    ("adapters/sqlite/connections.py", "(await opening).close()"): "only where the start is cancelled",
    ("adapters/sqlite/questions.py", "self._allowed.wait()"): "only where the log is emptied meanwhile",
    ("adapters/sqlite/questions.py", "self._wait_until_quiet()"): "the same",
    ("adapters/sqlite/questions.py", "self._quiet.wait()"): "the same",
    ("adapters/sqlite/questions.py", "connection.interrupt()"): "sets a flag and returns",
    ("adapters/sqlite/questions.py", "self._quieten(connection)"): "only after a question that took too long",
    ("adapters/sqlite/questions.py", "owned(_turn_of(connection))"): "the same",
    ("adapters/sqlite/questions.py", "asyncio.wait({turn}"): "the same",
    ("adapters/sqlite/questions.py", 'execute_fetchall("SELECT 1")'): "the same",
    ("adapters/sqlite/questions.py", "self._lent()"): "takes a connection that is free",
    ("adapters/sqlite/write_ahead_log.py", "self._questions.held_back()"): "only where somebody asks",
    ("service/run.py", "self._watch.observe()"): "the same",
    ("adapters/retrying.py", "self._store.count(now)"): "the same",
    ("adapters/retrying.py", "async with AsyncExitStack()"): "what it leaves waits by itself",
    (
        "service/health.py",
        "self._store.count(now)",
    ): "asked for over HTTP, which is not simulated",
    (
        "adapters/nats/source.py",
        'b"-NAK") for reply in again',
    ): "only where a tail is lost while the connection stands",
    ("bootstrap.py", "bus.running()"): "starts a task and waits for nothing",
    ("bootstrap.py", "_request_api(settings"): "the same",
    ("bootstrap.py", "listen(service.heard_of)"): "starts a task on PostgreSQL and nothing on SQLite",
    ("bootstrap.py", "_sender(settings"): "the simulated sender is there at once",
    ("bootstrap.py", "resealing(settings"): "the stories have no secrets",
    ("service/run.py", "delivering.observe()"): "asked for over HTTP, which is not simulated",
    ("service/deliver.py", "self._store.count("): "the same",
    ("adapters/sqlite/deliveries.py", "self._questions.ask("): "the same",
    ("adapters/sqlite/deliveries.py", "execute(ABANDON"): "the same",
    ("adapters/sqlite/deliveries.py", "execute(REPLAY"): "the same",
    ("adapters/sqlite/deliveries.py", "self.get([key])"): "the same",
    (
        "adapters/sqlite/deliveries.py",
        "async with self._writer.transaction()",
    ): "the same, except for the outcomes of attempts",
    ("adapters/sqlite/deliveries.py", "forget_callbacks(connection, dropped)"): (
        "only where a callback is taken from its timer"
    ),
    (
        "adapters/sqlite/store.py",
        "self._claiming[sink]",
    ): "each sink has a loop, with one look at a time",
    ("service/deliver.py", "self._store.stay()"): "there is no other instance on SQLite",
    ("adapters/sqlite/deliveries.py", "DUE_OF_LANE"): "only where hundreds wait for one receiver",
    ("workflows/deliver_callbacks.py", "lane=lane)"): "the same",
    ("workflows/deliver_callbacks.py", "self._refill("): "the same",
}
"""Places at which nobody can be killed, each with the reason."""


def forgotten(killed_at: Iterable[Place]) -> dict[str, str]:
    """Return every place at which the service can wait and was not killed."""
    killed = set(killed_at)
    return {
        f"{place.module}:{place.line}": source
        for place, source in all_places().items()
        if place not in killed
        if not any(place.module == module and text in source for module, text in NEVER_WAITS)
    }


def outdated() -> set[tuple[str, str]]:
    """Return every exception for a place that is no longer in the source."""
    sources = {(place.module, source) for place, source in all_places().items()}
    return {
        (module, text)
        for module, text in NEVER_WAITS
        if not any(module == at and text in source for at, source in sources)
    }
