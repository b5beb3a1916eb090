"""What happens often is summed up: the log grows with time, and nothing is left unsaid."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from structlog.testing import capture_logs

from tests.support.timers import ACME, GLOBEX, reached
from timer_service.domain.callback import Callback
from timer_service.domain.delivery import Answered, DeliveryState, open_delivery
from timer_service.domain.errors import RefusalReason
from timer_service.domain.timer import Outcome
from timer_service.observability.log_summary import LogSummary
from timer_service.observability.work_log import WorkLog
from timer_service.ports.command_source import Refusal
from timer_service.ports.delivery_store import Finished
from timer_service.testing import START
from timer_service.workflows.catch_up import CatchUpChange
from timer_service.workflows.deliver_callbacks import Attempted
from timer_service.workflows.fire_due_timers import FireReport
from timer_service.workflows.hold_back import HoldBackChange
from timer_service.workflows.schedule_timers import ScheduleReport


@dataclass(slots=True)
class Appointments:
    """Time that a test lets pass."""

    now_s: float = 0.0
    kept: list["Appointment"] = field(default_factory=list)

    def later(self, seconds: float, action: Callable[[], None]) -> "Appointment":
        self.kept.append(Appointment(self.now_s + seconds, action))
        return self.kept[-1]

    def pass_to(self, moment_s: float) -> None:
        while open_ones := [a for a in self.kept if not a.over and a.at_s <= moment_s]:
            first = min(open_ones, key=lambda a: a.at_s)
            self.now_s, first.over = first.at_s, True
            first.action()
        self.now_s = moment_s


@dataclass(slots=True)
class Appointment:
    at_s: float
    action: Callable[[], None]
    over: bool = False

    def cancel(self) -> None:
        self.over = True


def summary(time: Appointments, told: list[tuple[float, int]]) -> LogSummary[int]:
    return LogSummary(lambda n: told.append((time.now_s, n)), lambda one, other: one + other, time.later)


def test_the_first_is_told_at_once() -> None:
    time, told = Appointments(), list[tuple[float, int]]()

    summary(time, told).note(7)

    assert told == [(0.0, 7)]


def test_a_load_that_lasts_writes_one_line_per_second_with_the_totals() -> None:
    time, told = Appointments(), list[tuple[float, int]]()
    lines = summary(time, told)

    for number in range(5_000):
        time.pass_to(number / 1_000)
        lines.note(1)
    time.pass_to(10)

    assert [moment for moment, _ in told] == [0, 1, 2, 3, 4, 5]
    assert sum(count for _, count in told) == 5_000


def test_after_a_quiet_second_the_next_is_told_at_once_again() -> None:
    time, told = Appointments(), list[tuple[float, int]]()
    lines = summary(time, told)

    for moment in (0.0, 1.5, 3.0):
        time.pass_to(moment)
        lines.note(1)

    assert told == [(0.0, 1), (1.5, 1), (3.0, 1)]


def test_at_the_end_nothing_is_left_unsaid_or_said_twice() -> None:
    time, told = Appointments(), list[tuple[float, int]]()
    lines = summary(time, told)
    for _ in range(3):
        lines.note(1)

    lines.close()
    time.pass_to(10)

    assert told == [(0.0, 1), (0.0, 2)]
    assert all(appointment.over for appointment in time.kept)


def refusal(reason: RefusalReason, sequence: int) -> ScheduleReport:
    refused = Refusal(reason, "what is wrong", "timer.commands.acme.ScheduleTimer", sequence)
    return ScheduleReport(Counter(), [refused], 0, None)


def test_refused_messages_are_counted_with_one_example_per_reason() -> None:
    time = Appointments()

    with capture_logs() as log:
        work_log = WorkLog(time.later)
        for sequence in range(1, 1_001):
            reason = RefusalReason.INVALID if sequence % 4 else RefusalReason.NOT_JSON
            work_log.scheduled(refusal(reason, sequence))
        time.pass_to(1)

    assert [(line["reason"], line["messages"], line["sequence"]) for line in log] == [
        ("invalid", 1, 1),
        ("not_json", 1, 4),
        ("invalid", 749, 2),
        ("not_json", 249, 8),
    ]


def fired(name: str, due_s: float, marked: int = 1, catch_up: CatchUpChange | None = None) -> FireReport:
    return FireReport(
        looked_at=START,
        confirmed=[reached(name, due_s)],
        failed=[],
        confirmed_at=START,
        marked=marked,
        hold_back=HoldBackChange(held=0, freed=0),
        catch_up=catch_up or CatchUpChange(),
        disconnected=False,
        more=False,
        read_ahead=False,
    )


def test_firings_are_summed_up_with_the_latest_of_them() -> None:
    time = Appointments()

    with capture_logs() as log:
        work_log = WorkLog(time.later)
        for due_s, marked in ((-1, 1), (-2, 1), (-9, 0), (-3, 1)):
            work_log.fired(fired("order-1", due_s, marked))
        work_log.close()

    first, rest = log
    assert first["max_lateness_ms"] == 1000
    assert rest == {
        "event": "batch.fired",
        "log_level": "info",
        "batches": 3,
        "timers": 3,
        "expired": 0,
        "superseded": 1,
        "max_lateness_ms": 9000,
    }


def test_commands_are_summed_up_by_outcome() -> None:
    time = Appointments()
    kinds = Counter({("ScheduleTimer", Outcome.SCHEDULED): 2, ("CancelTimer", Outcome.CANCELLED): 1})

    with capture_logs() as log:
        work_log = WorkLog(time.later)
        for _ in range(3):
            work_log.scheduled(ScheduleReport(kinds, [], 1, None))
        time.pass_to(1)

    assert log[1] == {
        "event": "commands.applied",
        "log_level": "info",
        "batches": 2,
        "redelivered": 2,
        "scheduled": 4,
        "cancelled": 2,
    }


def test_what_had_expired_or_waited_for_our_own_store_is_no_attempt() -> None:
    before = open_delivery(reached(), Callback("https://shop.example/hooks"))
    tried = replace(before, attempts=1, state=DeliveryState.DELIVERED)
    log = WorkLog(Appointments().later)

    with capture_logs() as lines:
        log.delivered(
            [
                Attempted(Finished(before, tried), Answered(204), START, START),
                Attempted(Finished(before, before), None, START, START),
            ]
        )

    [line] = lines
    assert (line["attempts"], line["delivered"], line["waiting"]) == (1, 1, 1)


def test_the_log_tells_at_once_of_tenants_that_are_no_longer_waited_for_and_of_their_recovery() -> None:
    time = Appointments()
    given_up = CatchUpChange(waiting=3, let_go=7, given_up=(ACME, GLOBEX))

    with capture_logs() as log:
        work_log = WorkLog(time.later)
        work_log.fired(fired("order-1", -1, catch_up=given_up))
        work_log.fired(fired("order-2", -1, catch_up=CatchUpChange(waiting=2)))
        work_log.fired(fired("order-3", -1, catch_up=CatchUpChange(recovered=True)))

    assert log[1:] == [
        {
            "event": "catch_up.given_up",
            "log_level": "warning",
            "tenants": 2,
            "tenant_id": ACME,
            "timers": 7,
        },
        {"event": "catch_up.recovered", "log_level": "info"},
    ]
