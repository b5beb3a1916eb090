"""What a seed chooses: who sends what and when, and what goes wrong meanwhile."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any
from uuid import UUID

from tests.simulation.clock import START_MS
from tests.simulation.hooks import (
    AWAY_S,
    CALLING,
    CHANGING,
    CHANGING_AT,
    PATIENT,
    Hook,
    changed,
    some_hooks,
)
from tests.simulation.model import Wish
from timer_service.domain.callback import DEFAULT_DELAYS

SEEDS = (*range(24), 32, 45, 61, 66, 70, 101, 110, 116, 169, 181, 201)
"""What the default run plays: the first, and some for the faults and bugs that these do not have."""
TENANTS = ("acme", "Acme", "globex", "umbrella_1")
CALLS = (
    *(f"order-{number}" for number in range(1, 9)),
    "ünïcode-☃",
    "quote\"'%_;--",
    "dots.and*and>",
    "L" * 255,
)
CROWDED = 8
"""One seed in this many has many tenants, a burst, large batches or questions that take their time."""
WANTED = 8
"""One seed in this many uses delays, schedules that count only if absent, and timers that expire."""
SILENT = 16
"""One seed in this many has a command stream that answers no question for a while."""
HARMLESS = frozenset({"slow questions"})
"""Faults that must disturb nobody who does not ask."""
SMALL_LOG_BYTES, LARGE_LOG_BYTES = 50_000, 64 * 1024 * 1024
"""A write-ahead log that is emptied after a few batches, and one that no run fills."""
LOG_PATIENCE_S = 0.5
"""So long a batch waits for those who ask, where the log is emptied."""
VISITED_TENANTS = 2
"""So many tenants a look learns of at least, where due timers are taken in turns by tenant."""
RESTARTS = frozenset({"crash", "absence", "stop", "step", "drift", *HARMLESS})
"""Faults that leave broker and disk alone."""
LETTERS_DELAYED_S = 60.0
RECOVERED_AFTER_S = 25.0
"""After a fault a timer may be late for so long."""


@dataclass(frozen=True, slots=True)
class Sending:
    """A message that a tenant puts into the command stream."""

    at: float
    subject: str
    body: bytes
    headers: dict[str, str] | None
    wish: Wish


@dataclass(frozen=True, slots=True)
class Asking:
    """A request that a tenant sends and waits for."""

    at: float
    subject: str
    body: bytes
    wish: Wish | None
    """None for what an operator asks, and for nonsense: it has to be answered, and no more."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that goes wrong at a moment, for a while where it lasts."""

    at: float
    kind: str
    lasts: float = 0.0
    size: float = 0.0
    steps: int = 0
    """For a crash: this many steps of the process after that moment."""


@dataclass(frozen=True, slots=True)
class CrashPoint:
    """One step of the process, counted from a moment on, at which it is killed."""

    step: int
    after: bool
    """Right after the step instead of right before it: what it has asked for is not done yet."""
    down_for: float
    again_in: int | None = None
    """This many steps after the restart it is killed once more."""


@dataclass(slots=True)
class Plan:
    """Everything that a seed decides before the run."""

    seed: int
    sendings: list[Sending] = field(default_factory=list)
    askings: list[Asking] = field(default_factory=list)
    hooks: list[Hook] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    ends_at: float = 0.0
    """From here on nobody sends anything and nothing goes wrong."""
    poll_interval_ms: int = 5_000
    batch_size: int = 100
    ack_wait_ms: int = 10_000
    disk_latency_s: float = 0.002
    net_latency_s: float = 0.002
    suspends: float = 0.3
    max_clock_step: str = "off"
    retention: str = "off"
    catch_up: str = "30s"
    log_limit_bytes: int = SMALL_LOG_BYTES
    fresh_database: bool = False
    takes_batches: bool = True
    """Whether the broker confirms many events at once."""
    settled_at_least_s: float = 11.0
    """Longer than an acknowledgement is waited for, so that what comes again comes now."""
    is_probed: bool = True
    """Whether one more timer and a while of idleness follow at the end."""
    is_undisputed: bool = False
    """Whether every timer is asked for once, and by nobody else."""
    crash: CrashPoint | None = None
    crash_from_s: float = 0.0
    """The steps to a crash are counted from this moment on."""

    @property
    def catch_up_s(self) -> float:
        """How long a due timer waits for what its tenant sent before."""
        return float(self.catch_up.removesuffix("s"))

    @property
    def punctual_s(self) -> float:
        """How late a timer may be while nothing is wrong: a few batches and all requests in a row."""
        batch_s = 3 * self.net_latency_s + 16 * self.disk_latency_s + 0.005
        if self.hooks:  # The one writer takes turns: a hand-over and a group of outcomes come in between.
            batch_s += 16 * self.disk_latency_s
        # Under a backlog a look takes half of a batch.
        batches = 3 + len({(s.wish.tenant, s.wish.call) for s in self.sendings}) / max(
            1, self.batch_size // 2
        )
        # However large a batch may be, a look takes only timers of tenants that it knows of. Of that many
        # looks each takes half of the longest on average.
        tenants = len({s.wish.tenant for s in self.sendings if s.wish.kind == "schedule"})
        learning_s = max(0.0, tenants / VISITED_TENANTS - batches) * batch_s / 2
        if self.log_limit_bytes == SMALL_LOG_BYTES and any(f.kind == "slow questions" for f in self.faults):
            batch_s += LOG_PATIENCE_S
        return 0.2 + batches * batch_s + learning_s + len(self.askings) * 8 * self.disk_latency_s

    def is_disturbed(self, since: float, until: float) -> bool:
        """Return whether a fault, or what it leaves behind, falls between two moments."""
        return self.crash is not None or any(
            fault.at <= until and since <= self._recovered_at(fault)
            for fault in self.faults
            if fault.kind not in HARMLESS
            # Nothing waits for a silent stream for much longer than the limit.
            if fault.kind != "commands silent" or until - since < self.catch_up_s + RECOVERED_AFTER_S
        )

    @property
    def callbacks_punctual_s(self) -> float:
        """How late a callback may be while nothing is wrong: its receiver is given a few at once."""
        return 1.0 + self.punctual_s + len(self.hooks) * 8 * self.disk_latency_s

    @property
    def callbacks_s(self) -> float:
        """How long callbacks may take after the last fault, or after the last request to any receiver."""
        return max((hook.longest_s for hook in self.hooks), default=0.0)

    @property
    def only_restarts(self) -> bool:
        """Whether broker and disk work all the time, so that an orderly end leaves nothing half done."""
        return self.crash is None and all(fault.kind in RESTARTS for fault in self.faults)

    def _recovered_at(self, fault: Fault) -> float:
        # A clock that was stepped stays wrong to the end.
        over_at = self.ends_at if fault.kind in ("step", "drift") else fault.at + fault.lasts
        if fault.kind.startswith("letters"):
            # A refused message comes again a minute later at the latest; until then its tenant waits for it.
            return over_at + LETTERS_DELAYED_S + self.catch_up_s
        return over_at + RECOVERED_AFTER_S


def make_plan(seed: int) -> Plan:
    """Let the seed choose."""
    random = Random(f"plan-{seed}")
    lasts = random.choice((5.0, 20.0, 60.0))
    plan = Plan(
        seed,
        ends_at=1.0 + lasts,
        poll_interval_ms=random.choice((5_000, 5_000, 5_000, 1_000, 20_000)),
        batch_size=random.choice((2, 5, 20, 100)),
        ack_wait_ms=random.choice((10_000, 10_000, 1_000, 3_000)),
        disk_latency_s=random.choice((0.0, 0.0005, 0.002, 0.01)),
        net_latency_s=random.choice((0.0002, 0.001, 0.002, 0.02)),
        suspends=random.choice((0.0, 0.3, 1.0)),
        max_clock_step=random.choice(("off", "off", "1h")),
        retention=random.choice(("off", "off", "1m")),
        fresh_database=random.random() < 0.1,
        # From a source of its own, so that the other choices of a seed stay what they were.
        catch_up=Random(f"catch-up-{seed}").choice(("30s", "30s", "30s", "1s", "5s")),
        takes_batches=Random(f"batches-{seed}").random() < 0.7,
    )
    calm = random.random() < 0.25
    if calm:
        plan.batch_size = random.choice((20, 100))
        plan.disk_latency_s = random.choice((0.0005, 0.002, 0.01))
        plan.net_latency_s = random.choice((0.0005, 0.002))
        plan.poll_interval_ms = random.choice((5_000, 20_000))
    _Workload(random, plan, lasts).fill()
    if not calm:
        _add_faults(random, plan, lasts)
        _add_letter_fault(Random(f"letters-{seed}"), plan)
        _add_batch_fault(Random(f"failing-{seed}"), plan)
    if seed % CROWDED == 4:
        _add_crowd(Random(f"crowd-{seed}"), plan, lasts)
    if seed % WANTED == 6:
        _vary(Random(f"wanted-{seed}"), plan)
    if seed % SILENT == 7:
        _add_silence(Random(f"silence-{seed}"), plan)
    if seed % CALLING == 3:
        _add_hooks(Random(f"hooks-{seed}"), plan, lasts, patient=seed // CALLING % PATIENT == 0)
    if seed % CHANGING == CHANGING_AT:
        random = Random(f"changing-{seed}")
        _add_hooks(random, plan, lasts, patient=False)
        plan.hooks = [changed(random, hook) for hook in plan.hooks]
        plan.retention = "off"  # What was purged can be asked for again.
    return plan


def _add_crowd(random: Random, plan: Plan, lasts: float) -> None:
    """Let many tenants ask for timers that are due together, and somebody ask for everything meanwhile."""
    plan.batch_size = random.choice((2, 100, 500, 2_000))
    tenants = [f"tenant-{number}" for number in range(random.randint(5, 40))]
    at = 1.0 + random.random() * lasts / 2
    for number in range(random.randint(20, 200)):
        wish = Wish("schedule", random.choice(tenants), f"crowd-{number}", START_MS + round(at * 1000) + 500)
        sent_at = at + random.random() * 0.4
        plan.sendings.extend(sendings(random, sent_at, wish, iso(wish.due_ms), 100_000 + number))
    if random.random() < 0.5:
        plan.faults.append(Fault(at, "slow questions", 3.0, size=random.choice((0.05, 0.5))))
        plan.faults.sort(key=lambda fault: fault.at)
        plan.log_limit_bytes = Random(f"log-{plan.seed}").choice((SMALL_LOG_BYTES, LARGE_LOG_BYTES))
        for _ in range(random.randint(1, 10)):
            wish = Wish("list", random.choice(tenants))
            plan.askings.append(asking(at + random.random(), wish, None))
        plan.ends_at = max(plan.ends_at, at + 3.0)


def _vary(random: Random, plan: Plan) -> None:
    """Let tenants say more of some timers than when they are due."""
    plan.sendings = [_varied_sending(random, sending) for sending in plan.sendings]
    plan.askings = [_varied_asking(random, asked) for asked in plan.askings]


def _varied_sending(random: Random, sending: Sending) -> Sending:
    if sending.wish.kind != "schedule":
        return sending
    envelope = json.loads(sending.body)
    wish = _varied(random, sending.at, sending.wish, envelope["payload"])
    return replace(sending, wish=wish, body=json.dumps(envelope).encode())


def _varied_asking(random: Random, asked: Asking) -> Asking:
    if asked.wish is None or asked.wish.kind != "schedule":
        return asked
    request = json.loads(asked.body)
    wish = _varied(random, asked.at, asked.wish, request)
    return replace(asked, wish=wish, body=json.dumps(request).encode())


def _varied(random: Random, at: float, wish: Wish, fields: dict[str, Any]) -> Wish:
    """Change what is said of a timer, in the message and in what it means."""
    delay_ms = wish.due_ms - START_MS - int(at * 1000)
    if random.random() < 0.4 and 0 <= delay_ms < 10**11:
        del fields["dueAt"]
        fields["delayMs"] = delay_ms
        wish = replace(wish, delay_ms=delay_ms)
    if random.random() < 0.3:
        fields["ifAbsent"] = True
        wish = replace(wish, if_absent=True)
    if random.random() < 0.6:
        fields["expiresAfterMs"] = random.choice((0, 5, 50, 500, 5_000, 60_000))
        wish = replace(wish, expires_ms=fields["expiresAfterMs"])
    return wish


class _Workload:
    """Commands and requests over a small set of timers, so that they meet."""

    def __init__(self, random: Random, plan: Plan, lasts: float) -> None:
        self.random = random
        self.plan = plan
        self.lasts = lasts
        self.tenants = TENANTS[: random.randint(1, len(TENANTS))]
        self.calls = random.sample(CALLS, random.randint(1, len(CALLS)))
        self.dues: dict[tuple[str, str], int] = {}
        self.number = 0
        self.hostile = random.choice((0.0, 0.05, 0.2))
        self.asking = random.choice((0.0, 0.1, 0.3))
        self.cancelling = random.choice((0.1, 0.3))

    def fill(self) -> None:
        random = self.random
        for _ in range(random.choice((5, 20, 40, 80))):
            at = 1.0 + random.random() * self.lasts
            self._add(at, random.choice(self.tenants), random.choice(self.calls))
        if random.random() < 0.4:  # A burst.
            at = 1.0 + random.random() * self.lasts
            for _ in range(random.randint(10, 60)):
                self._add(at, random.choice(self.tenants), random.choice(self.calls))
        for _ in range(random.choice((0, 0, 10, 30))):  # Commands that race the firing.
            self._race()
        if random.random() < 0.5:  # One after the other, each soon due.
            at = 1.0 + random.random() * self.lasts
            gap_s = random.choice((0.005, 0.03, 0.2))
            for _ in range(random.randint(10, 60)):
                at += random.random() * gap_s
                self._add(at, random.choice(self.tenants), f"soon-{self.number}", soon=True)

    def _race(self) -> None:
        if not self.dues:
            return
        key = self.random.choice(sorted(self.dues))
        at = (self.dues[key] - START_MS) / 1000 + self.random.gauss(0.0, 0.01)
        if 1.0 < at < 1.0 + self.lasts:
            self._add(at, *key)

    def _add(self, at: float, tenant: str, call: str, *, soon: bool = False) -> None:
        chance = self.random.random
        self.number += 1
        if chance() < self.hostile:
            self.plan.sendings.append(hostile_message(self.random, at, tenant, call, self.number))
            return
        asks = chance() < self.asking
        if asks and chance() < 0.3:
            self.plan.askings.append(self._question(at, tenant, call))
            return
        if chance() < self.cancelling and not soon:
            wish = Wish("cancel", tenant, call)
            due_text = None
        else:
            due_us = self._due_us(at, tenant, call, soon=soon)
            due_ms = -(-due_us // 1000)
            self.dues[tenant, call] = due_ms
            correlation = f"request {self.number}" if chance() < 0.5 else None
            wish = Wish("schedule", tenant, call, due_ms, correlation)
            due_text = time_text(self.random, due_us)
        if asks:
            self.plan.askings.append(asking(at, wish, due_text))
        else:
            self.plan.sendings.extend(sendings(self.random, at, wish, due_text, self.number))

    def _question(self, at: float, tenant: str, call: str) -> Asking:
        match self.random.randrange(6):
            case 0:
                return Asking(at, "timer.status", b"", None)
            case 1:
                kind = self.random.choice(("schedule", "cancel", "get", "list"))
                body = self.random.choice((b"{", b"[]", b'{"serviceCallId": 1}', b'{"limit": -1}', b"\xff"))
                return Asking(at, f"timer.api.{tenant}.{kind}", body, None)
            case _:
                return asking(at, Wish(self.random.choice(("get", "list")), tenant, call), None)

    def _due_us(self, at: float, tenant: str, call: str, *, soon: bool) -> int:
        """Return a due time in microseconds since 1970."""
        random = self.random
        sent_us = START_MS * 1000 + int(at * 1_000_000)
        match 4 if soon else random.randrange(10):
            case 0:
                return sent_us - random.randrange(10 ** random.randint(3, 14))
            case 1:
                return sent_us + 864_000_000_000 + random.randrange(10**13)
            case 2 if (tenant, call) in self.dues:
                return self.dues[tenant, call] * 1000
            case 3 if self.dues:
                return random.choice(sorted(self.dues.values())) * 1000
            case 4 | 5:
                return sent_us + random.randrange(500_000)
            case 6:
                return sent_us + random.randrange(10_000)
            case 7:
                return (sent_us + random.randrange(5_000_000)) // 1_000_000 * 1_000_000
            case _:
                return sent_us + random.randrange(int(self.lasts * 1_000_000))


def asking(at: float, wish: Wish, due_text: str | None) -> Asking:
    request: dict[str, Any] = {} if wish.kind == "list" else {"serviceCallId": wish.call}
    if due_text is not None:
        request["dueAt"] = due_text
        if wish.correlation is not None:
            request["correlationId"] = wish.correlation
    return Asking(at, f"timer.api.{wish.tenant}.{wish.kind}", json.dumps(request).encode(), wish)


def with_payload(body: bytes, **fields: object) -> bytes:
    """Return a command with more said in its payload."""
    envelope = json.loads(body)
    return json.dumps({**envelope, "payload": {**envelope["payload"], **fields}}).encode()


def sendings(random: Random, at: float, wish: Wish, due_text: str | None, number: int) -> list[Sending]:
    kind = "ScheduleTimer" if wish.kind == "schedule" else "CancelTimer"
    message_id = str(UUID(int=number))
    payload: dict[str, Any] = {"tenantId": wish.tenant, "serviceCallId": wish.call}
    if random.random() < 0.5:
        payload["_tag"] = kind
    if due_text is not None:
        payload["dueAt"] = due_text
    envelope: dict[str, Any] = {
        "id": message_id,
        "type": kind,
        "tenantId": wish.tenant,
        "timestampMs": START_MS + int(at * 1000),
        "payload": payload,
    }
    if wish.correlation is not None:
        envelope["correlationId"] = wish.correlation
    if random.random() < 0.2:
        envelope |= {"causationId": None, "newField": {"deep": [1, 2, {"x": None}]}}
    body = json.dumps(envelope, ensure_ascii=random.random() < 0.5).encode()
    headers = {"Nats-Msg-Id": message_id} if random.random() < 0.7 else None
    sending = Sending(at, f"timer.commands.{wish.tenant}.{kind}", body, headers, wish)
    if random.random() < 0.05:  # The tenant did not hear the confirmation and sends it once more.
        again = Sending(at + random.random() * 3, sending.subject, body, headers, wish)
        return [sending, again]
    return [sending]


def iso(milliseconds: int) -> str:
    """Write a moment as the service would."""
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def time_text(random: Random, due_us: int) -> str:
    """Write a time in one of the forms that ISO 8601 allows."""
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=due_us)
    match random.randrange(5):
        case 0:
            return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
        case 1:
            return moment.strftime("%Y-%m-%dT%H:%M:%S.%f") + "000Z"
        case 2:
            shifted = moment + timedelta(hours=5, minutes=45)
            return shifted.strftime("%Y-%m-%dT%H:%M:%S.%f") + "+05:45"
        case 3:
            shifted = moment - timedelta(hours=8)
            return shifted.strftime("%Y-%m-%dt%H:%M:%S,%f") + "-0800"
        case _:
            return moment.isoformat()


def hostile_message(random: Random, at: float, tenant: str, call: str, number: int) -> Sending:
    """Return a message that is no command, and how it may be refused."""
    payload: dict[str, Any] = {"tenantId": tenant, "serviceCallId": call, "dueAt": "2026-02-25T06:13:25Z"}
    good: dict[str, Any] = {
        "id": str(UUID(int=number)),
        "type": "ScheduleTimer",
        "tenantId": tenant,
        "timestampMs": 1,
        "payload": payload,
    }
    other = "victim" if tenant != "victim" else "acme"
    subject = f"timer.commands.{tenant}.ScheduleTimer"
    letter_tenant = tenant

    def encoded(**changes: Any) -> bytes:
        return json.dumps({**good, **changes}).encode()

    def paid(**changes: Any) -> bytes:
        return encoded(payload={**payload, **changes})

    bodies: list[tuple[bytes, str]] = [
        (b"not json %d" % number, "not_json"),
        (b"\xff\xfe\x00 %d" % number, "not_json"),
        (b"[" * 500 + b"]" * 500 + b" " * (number % 50), "invalid"),
        (encoded(timestampMs=float("nan")), "not_json"),
        (json.dumps([good]).encode(), "invalid"),
        (encoded(id="no uuid"), "invalid"),
        (encoded(type="Explode"), "unknown_type"),
        (encoded(type="CancelTimer"), "invalid"),
        (encoded(tenantId=other), "tenant_mismatch"),
        (paid(tenantId=other), "tenant_mismatch"),
        (paid(dueAt="2026-02-25T06:13:25"), "invalid"),
        (paid(dueAt="2026-02-25"), "invalid"),
        (paid(dueAt="9999-12-31T23:59:59.9999Z"), "invalid"),
        (paid(dueAt="0001-01-01T00:00:00+01:00"), "invalid"),
        (paid(dueAt=1_772_000_000), "invalid"),
        (paid(serviceCallId="with space"), "invalid"),
        (paid(serviceCallId="nul\x00"), "invalid"),
        (paid(serviceCallId="\ud800"), "invalid"),
        (paid(serviceCallId=""), "invalid"),
        (paid(serviceCallId="x" * 256), "invalid"),
        (paid(_tag="CancelTimer"), "invalid"),
        (encoded(padding="x" * 70_000), "too_large"),
        (encoded(correlationId="line\nbreak"), "invalid"),
        (b"", "not_json"),
    ]
    body, reason = random.choice(bodies)
    match random.randrange(12):
        case 0:
            subject, body, reason, letter_tenant = (
                "timer.commands.ten ant.ScheduleTimer",
                encoded(),
                "invalid",
                "_",
            )
        case 1:
            subject, body, reason = f"timer.commands.{tenant}.Explode", encoded(), "unknown_type"
        case 2:
            subject, body, reason = f"timer.commands.{tenant}.ScheduleTimer.more", encoded(), "invalid"
        case _:
            pass
    # An escape for half a character is JSON by its grammar and none by its meaning.
    reasons = frozenset({reason, "not_json"} if rb"\ud800" in body else {reason})
    wish = Wish("refused", reasons=reasons, letter_tenant=letter_tenant)
    return Sending(at, subject, body, {"Nats-Msg-Id": f"hostile-{number}"}, wish)


def _add_faults(random: Random, plan: Plan, lasts: float) -> None:
    makers = _FAULTS if random.random() < 0.5 else random.sample(_FAULTS, 2)
    moments = [sending.at for sending in plan.sendings] + [
        (sending.wish.due_ms - START_MS) / 1000 for sending in plan.sendings
    ]
    moments = [moment for moment in moments if 0 < moment < plan.ends_at] or [2.0]
    for _ in range(random.randint(1, 6)):
        # Faults are worth most where something happens.
        at = random.choice(moments) if random.random() < 0.7 else random.random() * (1.0 + lasts)
        plan.faults.append(random.choice(makers)(random, at))
    if random.random() < 0.35:
        plan.faults.append(_absence(random, random.choice(moments)))
    plan.faults.sort(key=lambda fault: fault.at)
    plan.ends_at = max([plan.ends_at, *(fault.at + fault.lasts for fault in plan.faults)])


def _add_letter_fault(random: Random, plan: Plan) -> None:
    """Let no letter be written for a while, most of the time while there is something to refuse."""
    refused = [sending.at for sending in plan.sendings if sending.wish.kind == "refused"]
    if not refused or random.random() < 0.6:
        return
    kind = random.choice(("letters full", "letters forbidden", "letters silent"))
    fault = Fault(max(0.0, random.choice(refused) - random.random()), kind, random.choice((2.0, 10.0, 40.0)))
    plan.faults.append(fault)
    plan.faults.sort(key=lambda fault: fault.at)
    plan.ends_at = max(plan.ends_at, fault.at + fault.lasts)


def _add_batch_fault(random: Random, plan: Plan) -> None:
    """Let the broker take some events of a batch and not others for a while."""
    if random.random() < 0.7:
        return
    at = random.choice([sending.at for sending in plan.sendings] or [2.0])
    fault = Fault(at, "failing in batches", random.choice((2.0, 20.0)), size=random.choice((0.1, 0.5)))
    plan.faults.append(fault)
    plan.faults.sort(key=lambda fault: fault.at)
    plan.ends_at = max(plan.ends_at, fault.at + fault.lasts)


def _add_silence(random: Random, plan: Plan) -> None:
    """Let the command stream answer no question for a while."""
    at = random.choice([sending.at for sending in plan.sendings] or [2.0])
    lasts = random.choice((4.0, 15.0, 90.0))
    plan.faults.append(Fault(at, "commands silent", lasts))
    plan.faults.sort(key=lambda fault: fault.at)
    plan.ends_at = max(plan.ends_at, at + lasts)


def _add_hooks(random: Random, plan: Plan, lasts: float, *, patient: bool) -> None:
    """Let tenants ask for callbacks; the patient ones are repeated for days."""
    plan.hooks = some_hooks(random, lasts, patient=patient)
    # The next attempt is told by the clock: after one that goes wrong and is set right nobody waits for it.
    plan.faults = [fault for fault in plan.faults if fault.kind not in ("step", "drift") and not patient]
    at = 1.0 + lasts + 200.0
    for _ in DEFAULT_DELAYS if patient else ():
        plan.faults.append(Fault(at, "stop", AWAY_S))
        at += AWAY_S + 20.0
        plan.faults.append(Fault(at, "crash", 0.5, steps=random.randrange(60)))
        at += random.choice((5.0, 30.0))
        plan.ends_at = at


def _crash(random: Random, at: float) -> Fault:
    return Fault(at, "crash", random.choice((0.01, 0.5, 3.0, 15.0)), steps=random.randrange(60))


def _absence(random: Random, at: float) -> Fault:
    """Return a crash after which nobody starts the service for days."""
    return Fault(at, "absence", 86_400 * random.uniform(0.5, 10.0), steps=random.randrange(60))


def _stop(random: Random, at: float) -> Fault:
    return Fault(at, "stop", random.choice((0.1, 2.0)))


def _outage(random: Random, at: float) -> Fault:
    at = 0.0 if random.random() < 0.2 else at  # Away when the service starts.
    return Fault(at, "outage", random.choice((0.05, 1.0, 8.0, 30.0)))


def _lost_tail(random: Random, at: float) -> Fault:
    """Return a broker that comes back as it was at a moment, after a while without it."""
    return Fault(at, "lost tail", random.choice((0.1, 2.0, 10.0)), size=random.choice((0.01, 0.5, 5.0)))


def _half_open(random: Random, at: float) -> Fault:
    return Fault(at, random.choice(("deaf", "mute", "deaf and mute")), random.choice((0.5, 4.0, 12.0)))


def _loss(random: Random, at: float) -> Fault:
    kind = random.choice(("lost acks", "lost confirmations", "late confirmations"))
    return Fault(at, kind, random.choice((2.0, 10.0, 130.0)), size=random.choice((0.2, 0.6, 1.0)))


def _store(random: Random, at: float) -> Fault:
    kind = random.choice(("busy", "full", "read busy", "lost answers", "io error", "slow disk"))
    return Fault(at, kind, random.choice((0.5, 5.0, 20.0)), size=random.choice((0.2, 0.6, 1.0)))


def _clock(random: Random, at: float) -> Fault:
    kind = random.choice(("step", "step", "step", "drift"))
    size_s = 10 ** random.uniform(0, 8.499) * random.choice((-1, 1))  # One second to ten years.
    return Fault(at, kind, random.choice((1.0, 10.0, 40.0)), size=size_s)


def _pause(random: Random, at: float) -> Fault:
    return Fault(at, random.choice(("freeze", "suspend")), random.choice((0.2, 4.0, 20.0)))


def _operator(random: Random, at: float) -> Fault:
    kind = random.choice(
        (
            *("delete consumer", "delete events", "delete commands", "events full"),
            *("forbidden", "slow network", "cut", "jetstream away", "lost statuses"),
        )
    )
    return Fault(at, kind, random.choice((1.0, 6.0, 15.0)), size=random.choice((0.05, 1.0)))


_FAULTS: tuple[Callable[[Random, float], Fault], ...] = (
    _crash,
    _crash,
    _stop,
    _outage,
    _lost_tail,
    _half_open,
    _loss,
    _store,
    _clock,
    _pause,
    _operator,
)
