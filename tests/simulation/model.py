"""What the service may and must do, written from the contract alone; nothing here comes from the product.

The model watches from outside: what tenants sent, what the broker has, what any other process could read in
the database after each commit. Every change of a row has to be explained by section 2 of the contract.
"""

import json
from base64 import b64decode
from bisect import insort
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any
from uuid import UUID

Position = tuple[int, int]
Key = tuple[str, str]
Firing = tuple[str, str, int, int]
"""Tenant, service call, generation, due time."""

READ_ROWS = (
    "SELECT tenant_id, service_call_id, state, due_at, generation, registered_at, correlation_id, "
    "reached_at, cancelled_at, stream_created_us, stream_sequence, due_stream_created_us, "
    "due_stream_sequence, correlation_stream_created_us, correlation_stream_sequence, expires_after_ms, "
    "expired_at, first_stream_created_us, first_stream_sequence, first_if_absent, verdict "
    "FROM timer_schedules WHERE sink = 0"
)
CONFIRM_LIMIT_S = 4.5
"""A confirmation that comes later than this may have been given up."""

LETTERS_REMEMBERED_S = 3600.0
"""For so long the broker drops a second letter about one message."""
MOST_ASKED_FOR_AT_ONCE = 3
"""So often one life may ask for a message again without a pause: where it stops or has to learn."""
LIST_LIMIT = 100
"""This many timers a list holds where nobody asks for another number."""

SCHEDULED, REACHED, CANCELLED, EXPIRED = "Scheduled", "Reached", "Cancelled", "Expired"
FINAL = (REACHED, EXPIRED)
EVENT_OF = {REACHED: "DueTimeReached", EXPIRED: "TimerExpired"}
MOMENT_OF = {"DueTimeReached": "reachedAt", "TimerExpired": "expiredAt"}
LATE_VERDICT_MS = 5_000
"""A verdict may be committed so much later than it was reached."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What a message asks for, as its sender meant it."""

    kind: str
    """`schedule`, `cancel` or `refused`; of a request also `get` or `list`."""
    tenant: str = ""
    call: str = ""
    due_ms: int = 0
    correlation: str | None = None
    reasons: frozenset[str] = frozenset()
    """For a message that is no command: with which of these it may be refused."""
    letter_tenant: str = "_"
    delay_ms: int | None = None
    """In place of a due time: so long after the broker has stored it, or after the service was asked."""
    if_absent: bool = False
    expires_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """A timer as it stands in the database."""

    state: str
    due_ms: int | None
    generation: int
    correlation: str | None
    position: Position
    due_position: Position | None
    """The command that has set the due time."""
    correlation_position: Position | None
    """The command that has set the correlation id."""
    expires_ms: int | None
    """How long after the due time the event is of use."""
    oldest: Position
    """The oldest command that was applied."""
    if_absent: bool
    """Whether that one counts only as long as there is no older one."""
    verdict: str | None = field(default=None, compare=False)
    """Which event may be out."""


@dataclass(frozen=True, slots=True)
class Version:
    """A row from one commit to the next."""

    since: float
    row: Row | None


@dataclass(slots=True)
class Request:
    """A request with an answer that a tenant has sent."""

    wish: Wish
    sent_at: float
    sent_ms: int
    """By the service's clock."""
    answered_at: float | None = None


@dataclass(slots=True)
class _Send:
    """One publication of an event."""

    life: int
    at: float
    event_id: str
    firing: Firing
    kind: str
    confirmed_at: float | None = None


@dataclass(frozen=True, slots=True)
class _ConfirmedCancel:
    firings: frozenset[Firing]
    """What was cancelled; one of these at least."""
    at: float


@dataclass(slots=True)
class Counts:
    """How much has happened."""

    commands: int = 0
    refused: int = 0
    requests: int = 0
    definite_answers: int = 0
    fired: int = 0
    published_again: int = 0
    stored_again: int = 0
    commits: int = 0
    timers: int = 0


@dataclass(slots=True)
class Surroundings:
    """What the model needs to know of time and disturbances."""

    now: Callable[[], float]
    wall_ms: Callable[[], int]
    wall_shown_since: Callable[[float], int]
    """The latest that the wall clock has shown since a moment."""
    violated: Callable[[str, str], None]
    note: Callable[[str], None]
    slack_s: float = 0.5
    """How long a claim that was overtaken may still be on its way out."""
    punctual_s: float = 1.0
    """How late a timer may be at most while nothing is wrong."""
    unread_s: float = 5.0
    """For how long nobody may have looked in the table itself for what is due while nothing is wrong."""
    disturbed: Callable[[float, float], bool] = lambda _since, _until: False
    """Whether anything was wrong between two moments, so that lateness is explained."""
    is_repetition_explained: Callable[[float, float], bool] = lambda _since, _until: True
    """Whether another process may have published the same firing between two moments."""
    retention_ms: int | None = None
    batch_size: int = 100
    catch_up_s: float = 30.0
    """For so long a due timer waits for what its tenant sent before."""
    last_freeze_end: float = -1e9
    silent_since: float | None = None
    """Since when the command stream tells nobody what waits in it."""


class Model:
    """The whole state as it must be, and everything that is noticed on the way."""

    def __init__(self, around: Surroundings) -> None:
        self.around = around
        self.counts = Counts()
        self.rows: dict[Key, tuple[Any, ...]] = {}
        self.history: dict[Key, list[Version]] = defaultdict(list)
        self.fired: set[Firing] = set()
        """What the event stream has ever held."""
        self.told: dict[Firing, str] = {}
        """As which event."""
        self._wishes: dict[tuple[str, bytes], Wish] = {}
        self._commands: dict[Position, Wish] = {}
        self._by_key: dict[Key, list[tuple[Position, Position]]] = defaultdict(list)
        """Under which position the service may know a command, and its true one."""
        self._after_loss: dict[Position, float] = {}
        """When a command was stored whose sequence may have been another's before."""
        self._clock_at: dict[Position, int] = {}
        """The latest that the service's clock had ever shown when a command was stored."""
        self._waiting: dict[str, dict[Position, float]] = defaultdict(dict)
        """Of a tenant: what is in the stream on its subjects, and since when."""
        self._handled: dict[int, Position] = defaultdict(lambda: (0, 0))
        """Of a life: the newest message that it has let go of."""
        self._stuck: dict[int, set[Position]] = defaultdict(set)
        """Of a life: what holds up nothing, because a timer has waited for it in vain."""
        self._life_began: dict[int, float] = {0: 0.0}
        self._looked_at = 0.0
        """When the service last looked in the table for what is due on the bus."""
        self._refused: dict[Position, tuple[str, bytes, Wish]] = {}
        self._letters: dict[Position, int] = defaultdict(int)
        self._lettered_at: dict[Position, float] = {}
        self._requests: dict[Key, list[Request]] = defaultdict(list)
        self._sends: dict[Firing, _Send] = {}
        self._awaited: dict[str, _Send] = {}
        self._unmarked: dict[Firing, _Send] = {}
        """What this life has published, knows to be confirmed and has not marked."""
        self._ids: dict[str, Firing] = {}
        self._cancels: list[_ConfirmedCancel] = []
        self._newest: Position = (0, 0)
        self._forbidden_at: dict[str, float] = {}
        self._last_sent = ("", 0)
        self._asked_for_at_once: dict[tuple[int, int], set[float]] = defaultdict(set)
        self._forgiven: set[Position] = set()
        """Messages that somebody deleted together with their stream."""

    # What tenants do.

    def expects(self, subject: str, body: bytes, wish: Wish) -> None:
        """Know what a message means before it is sent."""
        self._wishes[subject, body] = wish

    def requested(self, wish: Wish) -> Request:
        self.counts.requests += 1
        request = Request(wish, self.around.now(), self.around.wall_ms())
        self._requests[wish.tenant, wish.call].append(request)
        return request

    # What the broker sees.

    def commands_created(self, created_us: int) -> None:
        self._newest = max(self._newest, (created_us, 0))

    def command_stored(
        self, position: Position, subject: str, body: bytes, stored_us: int, *, losses: int = 0
    ) -> None:
        wish = self._wishes[subject, body]
        if wish.delay_ms is not None:
            # What the broker says is what counts, and it says the same however often it delivers.
            wish = replace(wish, due_ms=-(-stored_us // 1000) + wish.delay_ms)
        self._newest = max(self._newest, position)
        self._waiting[_tenant_of(subject)][position] = self.around.now()
        if wish.kind == "refused":
            self.counts.refused += 1
            self._refused[position] = (subject, body, wish)
        else:
            self.counts.commands += 1
            self._commands[position] = wish
            self._clock_at[position] = self.around.wall_shown_since(0.0)
            for noticed in range(losses + 1):
                # A loss of what nobody had seen goes unnoticed, and does no harm.
                known_as = (position[0] - losses + noticed, position[1])
                insort(self._by_key[wish.tenant, wish.call], (known_as, position))
            if losses:
                self._after_loss[position] = self.around.now()

    def is_refused(self, position: Position) -> bool:
        return position in self._refused

    def commands_deleted(self, positions: Iterable[Position]) -> None:
        self._forgiven.update(positions)

    def commands_lost(self, positions: Iterable[Position], newest: Position) -> None:
        """Expect nothing of what the broker has lost; what the service had of it may count."""
        self._forgiven.update(positions)
        self._newest = max(self._newest, newest)

    def acknowledged(self, position: Position, word: str) -> None:
        """Check what the service claims when it lets go of a message."""
        if word == "+TERM":
            if position not in self._refused:
                self._violated("I1", f"the valid command {position} was terminated")
            elif not self._letters[position]:
                self._violated("I1", f"{position} was terminated before its letter was stored")
        elif word == "+ACK":
            wish = self._commands.get(position)
            if wish is None:
                self._violated("I1", f"{position} was acknowledged, but it is no valid command")
            elif not self._is_kept(wish, position):
                self._violated("I1", f"{position} was acknowledged before its effect was committed")

    def let_go(self, life: int, position: Position) -> None:
        """Know which process has acknowledged or terminated a message."""
        self._handled[life] = max(self._handled[life], position)

    def left(self, position: Position) -> None:
        """Know that a message is no longer in the stream."""
        for waiting in self._waiting.values():
            waiting.pop(position, None)

    def asked_for_at_once(self, life: int, sequence: int) -> None:
        """Check that no message goes back and forth without a pause."""
        # A stop gives back all that it has in hand, where one message may have been delivered many times.
        moments = self._asked_for_at_once[life, sequence]
        moments.add(self.around.now())
        if len(moments) > MOST_ASKED_FOR_AT_ONCE:
            self._violated("I7", f"{sequence} is asked for again and again without a pause")

    def _is_kept(self, wish: Wish, position: Position) -> bool:
        versions = self.history[wish.tenant, wish.call]
        row = versions[-1].row if versions else None
        if row is None:
            return bool(versions)  # Kept once, and purged since.
        if position in self._after_loss:
            # Whatever it was, its effect is in the row since it was stored, or that of a newer command; a
            # schedule if absent has none on a timer that is there.
            return row.state in FINAL or wish.if_absent or versions[-1].since >= self._after_loss[position]
        return row.state in FINAL or _has_taken(row, wish, position)

    def event_sent(self, life: int, subject: str, body: bytes, headers: dict[str, str], reply: str) -> None:
        """Check an event at the moment at which the service hands it over."""
        now = self.around.now()
        event = json.loads(body)
        payload = event["payload"]
        tenant, call = payload["tenantId"], payload["serviceCallId"]
        due_ms, generation = parse_ms(payload["dueAt"]), payload["generation"]
        firing = (tenant, call, generation, due_ms)
        self._check_form(event, subject, headers, due_ms)
        reached_ms = parse_ms(payload[MOMENT_OF[event["type"]]])
        shown_ms = self.around.wall_shown_since(now - 10)
        if due_ms > reached_ms or due_ms > shown_ms or reached_ms > shown_ms:
            self._violated("I2", f"{firing} was published at {shown_ms}, {due_ms - shown_ms} ms early")
        self._check_order(reply, due_ms)
        self._check_accepted(firing, event.get("correlationId"), now)
        self._check_decided(firing, event["type"])
        self._check_caught_up(firing, life, now)
        self._check_repetition(firing, event["id"], event["type"], life)
        send = _Send(life, now, event["id"], firing, event["type"])
        self._sends[firing] = self._awaited[reply] = send

    def _check_form(self, event: dict[str, Any], subject: str, headers: dict[str, str], due_ms: int) -> None:
        payload = event["payload"]
        tenant = payload["tenantId"]
        kind = event["type"]
        if subject != f"timer.events.{tenant}.{kind}" or event["tenantId"] != tenant:
            self._violated("I5", f"an event of {tenant} was published on {subject}")
        identity = UUID(event["id"])
        stamped_ms = identity.int >> 80
        if identity.version != 7 or stamped_ms != max(due_ms, 0) or headers["Nats-Msg-Id"] != event["id"]:
            self._violated("I3", f"the id {identity} is no UUIDv7 of {due_ms}, or not the message's id")
        wrong = (
            kind not in MOMENT_OF
            or payload["_tag"] != kind
            or event["aggregateId"] != payload["serviceCallId"]
            or "causationId" in event
        )
        if wrong:
            self._violated("I4", f"not an event of the contract: {event}")

    def _check_decided(self, firing: Firing, kind: str) -> None:
        """Check that which event a timer gets that can expire is on disk before it goes out."""
        raw = self.rows.get(firing[:2])
        row = None if raw is None else _row(raw)
        if row is None or _firing(firing[:2], row) != firing:
            return  # It was changed while its event was on its way.
        if row.expires_ms is None and kind != EVENT_OF[REACHED]:
            self._violated("I4", f"{firing} was told as {kind}, but cannot expire")
        if row.expires_ms is not None and EVENT_OF.get(row.verdict or "") != kind:
            self._violated("I3", f"{firing} goes out as {kind}, but the verdict is {row.verdict}")

    def _check_verdict(self, key: Key, before: Row, after: Row) -> None:
        """Check a verdict against the clock; it is taken back only if the broker does not have the event."""
        firing = _firing(key, after)
        if firing is None or after.expires_ms is None:
            self._violated("I4", f"{key} has a verdict, but is {after}")
            return
        ends_ms = firing[3] + after.expires_ms
        now = self.around.now()
        if after.verdict is None and firing in self.fired:
            self._violated("I3", f"the verdict on {firing} was taken back, although its event is stored")
        if after.verdict is not None and before.verdict is not None:
            self._violated("I3", f"the verdict on {firing} changed to {after.verdict}")
        if after.verdict == EXPIRED and self.around.wall_shown_since(now - 30) <= ends_ms:
            self._violated("I2", f"{firing} was told as expired before it was: {ends_ms}")
        late_ms = self.around.wall_ms() - ends_ms
        if after.verdict == REACHED and late_ms > LATE_VERDICT_MS and not self.around.disturbed(now - 1, now):
            self._violated("I4", f"{firing} was not told as expired, {late_ms} ms after it was of use")

    def _check_order(self, reply: str, due_ms: int) -> None:
        """Check that what goes out together goes out oldest first."""
        batch = reply.rsplit(".", 3)[0] if reply.endswith(".$FI") else reply.rpartition(".")[0]
        last_batch, last_due_ms = self._last_sent
        if batch == last_batch and due_ms < last_due_ms:
            self._violated("I7", f"a timer due at {due_ms} goes out after one due at {last_due_ms}")
        self._last_sent = (batch, due_ms)

    def _check_accepted(self, firing: Firing, correlation: str | None, now: float) -> None:
        tenant, call, generation, due_ms = firing
        versions = self.history[tenant, call]
        own = [
            index
            for index, version in enumerate(versions)
            if version.row is not None
            and (version.row.state, version.row.generation, version.row.due_ms)
            == (SCHEDULED, generation, due_ms)
        ]
        if not own:
            self._violated("I4", f"{firing} was published, but was never accepted")
            return
        if correlation not in [versions[index].row.correlation for index in own]:  # type: ignore[union-attr]
            self._violated("I4", f"{firing} was published with the correlation id {correlation!r}")
        last = own[-1]
        if last == len(versions) - 1:
            self._check_punctual(firing, versions[own[0]].since, now)
        elif now - versions[last + 1].since > self.around.slack_s:
            after = versions[last + 1]
            self._violated("I4", f"{firing} was published, but since {after.since:.3f} it is {after.row}")

    def _check_caught_up(self, firing: Firing, life: int, now: float) -> None:
        """Check that every command that the broker had stored before the due time was applied before."""
        key, due_ms = firing[:2], firing[3]
        due_at = now - (self.around.wall_ms() - due_ms) / 1000
        enough_s = self.around.catch_up_s / 2
        if now - max(due_at, self._life_began[life]) >= enough_s:
            # Of what it has waited for, nothing is waited for again that was passed over for newer messages.
            stored = self._waiting[key[0]].items()
            vain = {p for p, since in stored if p < self._handled[life] and now - since >= enough_s}
            self._stuck[life] |= vain
            return
        rows = [version.row for version in self.history[key] if version.row is not None]
        own = [row for row in rows if _firing(key, row) == firing]
        purged = len(rows) < len(self.history[key])  # Nothing is remembered of it, nor of what was applied.
        if not own or purged or firing in self._sends:
            return
        ignored = [
            position
            for known_as, position in self._by_key[key]
            if known_as > own[-1].position and position not in self._forgiven
            if position not in self._after_loss and self._clock_at[position] < due_ms
            if position not in self._stuck[life]
            if _firing(key, _applied(own[-1], self._commands[position], known_as)) != firing
        ]
        if ignored:
            self._violated("I8", f"{firing} was published, but {ignored} were stored before it was due")
        silent_since = self.around.silent_since
        # A due time that is still to come was reached before the clock was set back, during the look.
        if silent_since is not None and silent_since + self.around.slack_s < due_at <= now:
            self._violated(
                "I8", f"{firing} was published, but nobody could say what waits since {silent_since}"
            )

    def _check_punctual(self, firing: Firing, accepted_at: float, now: float) -> None:
        if firing in self._sends:
            return
        due_at = now - (self.around.wall_ms() - firing[3]) / 1000
        since = max(accepted_at, due_at)
        late_s = now - since
        if late_s > self.around.punctual_s and not self.around.disturbed(since, now):
            self._violated("I7", f"{firing} is {late_s:.3f} s late although nothing is wrong")

    def _check_repetition(self, firing: Firing, event_id: str, kind: str, life: int) -> None:
        before = self._sends.get(firing)
        if self._ids.setdefault(event_id, firing) != firing:
            self._violated("I3", f"{firing} has the id of {self._ids[event_id]}")
        if before is None:
            return
        self.counts.published_again += 1
        purged = any(version.row is None for version in self.history[firing[:2]])
        if kind != before.kind and (purged or firing not in self.fired):
            return  # It has expired since; the first was refused, or nothing is remembered of it.
        if before.event_id != event_id:
            self._violated("I3", f"{firing} was published again under another id")
        confirmed_at = before.confirmed_at
        if purged:
            return  # Beyond its retention nothing is remembered of a timer.
        now = self.around.now()
        if before.life != life and not self.around.is_repetition_explained(before.at, now):
            self._violated("I3", f"{firing} was published by {before.life} at {before.at}, and by {life}")
        if before.life == life and self._is_known(before):
            self._violated("I3", f"{firing} was published again, although it was confirmed at {confirmed_at}")

    def ended_in_order(self, life: int) -> None:
        """Check that a process which was asked to stop has finished what it had in hand."""
        for firing, send in self._sends.items():
            if send.life == life and self._is_pending(firing):
                self._violated("I3", f"{firing} was published, and the process stopped without marking it")

    def confirmation_arrived(self, inbox: str, body: bytes) -> None:
        if inbox.endswith(".$FI"):
            self._batch_answered(inbox, body)
        elif b'"error"' not in body and body:
            self._confirmed(self._awaited.pop(inbox, None))

    def _batch_answered(self, inbox: str, body: bytes) -> None:
        """Take a batch for confirmed if no error came, and its last answer counts all that were sent."""
        stem, number, _, _ = inbox.rsplit(".", 3)
        answer = json.loads(body or "{}")
        if answer.get("type") == "ack":
            return
        sent = [reply for reply in self._awaited if reply.rsplit(".", 3)[0] == stem]
        sends = [self._awaited.pop(reply) for reply in sent]
        if "batch" in answer and answer["count"] == len(sends) == int(number):
            for send in sends:
                self._confirmed(send)

    def _confirmed(self, send: _Send | None) -> None:
        if send is not None:
            send.confirmed_at = self.around.now()
            # What was changed while its event was on its way is never marked.
            if self._sends[send.firing] is send and self._is_known(send) and self._is_pending(send.firing):
                self._unmarked[send.firing] = send
                self._check_unmarked()

    def _is_pending(self, firing: Firing) -> bool:
        """Return whether the row still has the timer as it was when it fired."""
        raw = self.rows.get(firing[:2])
        return (
            raw is not None and raw[2] == SCHEDULED and (_row(raw).generation, _row(raw).due_ms) == firing[2:]
        )

    def _is_known(self, send: _Send) -> bool:
        """Return whether the service must have learned that its event was confirmed."""
        confirmed_at = send.confirmed_at
        known = confirmed_at is not None and confirmed_at - send.at < CONFIRM_LIMIT_S
        forbidden = self._forbidden_at.get(send.firing[0].lower(), -1e9) > send.at - CONFIRM_LIMIT_S
        return known and self.around.last_freeze_end < send.at and not forbidden

    def _check_unmarked(self) -> None:
        """Check that a crash at this moment would repeat no more than a batch."""
        # A process that was frozen since has not learned of it in time.
        unmarked = sum(map(self._is_known, self._unmarked.values()))
        if unmarked > max(self.around.batch_size, 2):
            self._violated("I3", f"{unmarked} timers are published and not marked")

    def event_forbidden(self, subject: str) -> None:
        """Know that the broker refuses a subject: everything on its way there counts as refused.

        So do subjects that differ in case only, because nats-py tells of it in lower case.
        """
        self._forbidden_at[subject.split(".")[2].lower()] = self.around.now()

    def event_stored(self, body: bytes, *, duplicate: bool) -> None:
        payload = json.loads(body)["payload"]
        firing = (
            payload["tenantId"],
            payload["serviceCallId"],
            payload["generation"],
            parse_ms(payload["dueAt"]),
        )
        if firing in self.fired and not duplicate:
            self.counts.stored_again += 1
        purged = any(version.row is None for version in self.history[firing[:2]])
        if purged:  # The newest counts: nothing was remembered of the one before.
            self.told[firing] = payload["_tag"]
        elif self.told.setdefault(firing, payload["_tag"]) != payload["_tag"]:
            self._violated("I3", f"{firing} was told as {self.told[firing]} and as {payload['_tag']}")
        if firing not in self.fired:
            self.counts.fired += 1
            self.fired.add(firing)

    def letter_stored(self, subject: str, body: bytes) -> None:
        letter = json.loads(body)
        text = letter["body"]
        original = b64decode(text) if letter["bodyEncoding"] == "base64" else text.encode()
        found = [
            (position, wish)
            for position, (sent_on, sent, wish) in self._refused.items()
            if position[1] == letter["sequence"]
            and sent_on == letter["subject"]
            and (sent == original or (letter.get("bodyTruncated") and sent.startswith(original)))
        ]
        if not found:
            self._violated("I4", f"a letter about a message that nobody refused: {letter}")
            return
        position, wish = found[-1]
        now = self.around.now()
        if now - self._lettered_at.get(position, now) > LETTERS_REMEMBERED_S:
            return  # The broker has forgotten the first one.
        self._lettered_at[position] = now
        self._letters[position] += 1
        if self._letters[position] > 1:
            self._violated("I3", f"{self._letters[position]} letters about {position}")
        if letter["reason"] not in wish.reasons:
            self._violated(
                "I4", f"{position} was refused as {letter['reason']}, not as one of {set(wish.reasons)}"
            )
        if subject != f"timer.deadletter.{wish.letter_tenant}":
            self._violated("I5", f"the letter of {position} stands on {subject}")

    # What the database holds after each commit.

    def committed(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """Compare with the commit before: every difference must be something that the contract allows."""
        self.counts.commits += 1
        now_rows = {(row[0], row[1]): row for row in rows}
        for key, raw in now_rows.items():
            before = self.rows.get(key)
            if before != raw:
                self._changed(key, before, raw)
                self._unmarked = {f: send for f, send in self._unmarked.items() if f[:2] != key}
        for key in self.rows.keys() - now_rows.keys():
            self._removed(key)
        self.rows = now_rows
        self.counts.timers = max(self.counts.timers, len(now_rows))

    def began(self, life: int) -> None:
        """Know when a process started: before that it can have waited for nothing."""
        self._unmarked.clear()
        self._life_began[life] = self.around.now()

    def looked(self) -> None:
        """Check that the table is looked at in every interval, however many timers are fired from memory."""
        now, since = self.around.now(), max(self._looked_at, *self._life_began.values())
        self._looked_at = now
        unread_s = now - since
        if unread_s > self.around.unread_s + self.around.punctual_s and not self.around.disturbed(since, now):
            self._violated("I7", f"nobody looked for what is due for {unread_s:.3f} s")

    def reopened(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """Check that a crash has lost nothing that was committed."""
        found = {(row[0], row[1]): row for row in rows}
        if found != self.rows:
            lost = {key: row for key, row in self.rows.items() if found.get(key) != row}
            self._violated("I1", f"after the crash these are not as they were committed: {lost}")

    def _changed(self, key: Key, raw_before: tuple[Any, ...] | None, raw: tuple[Any, ...]) -> None:
        before = None if raw_before is None else _row(raw_before)
        after = _row(raw)
        self.around.note(f"commit {key[0]}/{key[1]}: {_short(before)} -> {_short(after)}")
        self._check_shape(key, raw, raw_before)
        if before is not None and after == before and after.verdict != before.verdict:
            self._check_verdict(key, before, after)
        elif (
            before is not None
            and after.state in FINAL
            and after == replace(before, state=after.state)
            and before.state == SCHEDULED
        ):
            assert before.due_ms is not None
            told_as = self.told.get((*key, before.generation, before.due_ms))
            if told_as != EVENT_OF[after.state]:
                self._violated(
                    "I1", f"{key} was marked as {after.state}, but the event that is stored is {told_as}"
                )
        elif not self._is_explained(key, before, after):
            self._violated("I4", f"nothing explains the change of {key} from {before} to {after}")
        self.history[key].append(Version(self.around.now(), after))

    def _check_shape(self, key: Key, raw: tuple[Any, ...], before: tuple[Any, ...] | None) -> None:
        state, registered, reached, cancelled = raw[2], raw[5], raw[7], raw[8]
        if before is not None and before[5] != registered:
            self._violated("I4", f"the registration of {key} changed from {before[5]} to {registered}")
        moments = {REACHED: reached, CANCELLED: cancelled, EXPIRED: raw[16]}
        if any((state == each) != (moment is not None) for each, moment in moments.items()):
            self._violated("I4", f"{key} contradicts itself: {raw}")

    def _is_explained(self, key: Key, before: Row | None, after: Row) -> bool:
        # What takes long comes last: any choice of the commands, because some may have been overtaken.
        explanations = (self._explained_in_order, self._explained_by_request, self._explained_by_commands)
        return any(explains(key, before, after) for explains in explanations)

    def _explained_by_commands(self, key: Key, before: Row | None, after: Row) -> bool:
        """Return whether some of the commands lead from one row to the other."""
        commands = [(p, self._commands[true]) for p, true in self._by_key[key] if p <= after.position]
        reachable: set[Row | None] = {before}
        # Twice, because a command that was overtaken still sets what no newer one has set.
        for position, wish in [*commands, *commands]:
            applied = {_applied(row, wish, position) for row in reachable}
            reachable |= {row for row in applied if row.generation <= after.generation}
            if after in reachable:
                return after != before
        return False

    def _explained_in_order(self, key: Key, before: Row | None, after: Row) -> bool:
        """Return whether every newer command in turn leads from one row to the other, as it mostly does."""
        row = before
        for position, true in self._by_key[key]:
            is_newer = position >= after.oldest if before is None else position > before.position
            if is_newer and position <= after.position:
                row = _applied(row, self._commands[true], position)
        return row == after and after != before

    def _explained_by_request(self, key: Key, before: Row | None, after: Row) -> bool:
        older = before is not None and after.position < before.position
        if older or after.position > self._newest:
            return False
        now = self.around.now()
        return any(
            _applied(before, self._as_decided(request, after), after.position, is_request=True) == after
            for request in self._requests[key]
            if request.wish.kind in ("schedule", "cancel")
            if request.answered_at is None or request.answered_at >= now
        )

    def _as_decided(self, request: Request, after: Row) -> Wish:
        """Return what a request means whose due time the service's clock has set."""
        wish = request.wish
        if wish.delay_ms is None or after.due_ms is None:
            return wish
        asked_ms = after.due_ms - wish.delay_ms
        # A delay counts from the next millisecond.
        too_late = asked_ms > self.around.wall_shown_since(request.sent_at - 10) + 1
        stepped = self.around.disturbed(request.sent_at, self.around.now())
        too_early = asked_ms < request.sent_ms and not stepped
        return wish if too_late or too_early else replace(wish, due_ms=after.due_ms)

    def _removed(self, key: Key) -> None:
        row = self.rows[key]
        ended = row[7] or row[8] or row[16]
        limit = self.around.retention_ms
        # Purging reads the clock a little before it commits.
        latest_ms = self.around.wall_shown_since(self.around.now() - 30)
        if row[2] == SCHEDULED or limit is None or parse_ms(ended) > latest_ms - limit:
            self._violated("I1", f"{key} was deleted: {row}")
        self.history[key].append(Version(self.around.now(), None))

    # What callers are told.

    def answered(self, request: Request, error_code: str | None, body: bytes) -> None:
        """Check a definite answer against what was committed between question and answer."""
        request.answered_at = self.around.now()
        key = (request.wish.tenant, request.wish.call)
        since = self._versions_since(key, request.sent_at)
        if error_code is not None:
            missing = (
                request.wish.kind == "get" and error_code == "404" and self._was_missing(key, request.sent_at)
            )
            if error_code != "503" and not missing:
                self._violated("I4", f"a valid request was answered with {error_code}: {request}")
            return
        self.counts.definite_answers += 1
        answer = json.loads(body)
        if request.wish.kind == "list":
            self._check_list(request, answer["timers"])
            return
        self._check_shown(key, answer["timer"], request.sent_at)
        if request.wish.kind == "get":
            return
        outcome = answer["outcome"]
        if not self._outcome_holds(request.wish, outcome, since):
            self._violated("I1", f"{request} was answered with {outcome}, but since then it was {since}")
        if outcome == "cancelled":
            cancelled = frozenset(
                (*key, row.generation, row.due_ms or 0)
                for row in since
                if row.state == CANCELLED and not self._came_too_late(key, row)
            )
            self._cancels.append(_ConfirmedCancel(cancelled, request.answered_at))

    def _came_too_late(self, key: Key, row: Row) -> bool:
        """A cancel through the stream promises nothing of an event that was on its way before it."""
        by = next(
            version.row.position
            for version in self.history[key]
            if version.row and (version.row.state, version.row.generation) == (CANCELLED, row.generation)
        )
        through_the_stream = any(
            self._commands[true].kind == "cancel" for known_as, true in self._by_key[key] if known_as == by
        )
        return through_the_stream and (*key, row.generation, row.due_ms or 0) in self._sends

    def _check_shown(self, key: Key, timer: dict[str, Any], since: float) -> None:
        """Check that a timer in an answer is as the timer was at some moment since the question."""
        rows = self._versions_since(key, since)
        due_ms = None if timer.get("dueAt") is None else parse_ms(timer["dueAt"])
        shown = (timer["state"], due_ms, timer["generation"], timer.get("correlationId"))
        if (timer["tenantId"], timer["serviceCallId"]) != key:
            self._violated("I5", f"the answer about {key} tells of {timer}")
        if shown not in [(row.state, row.due_ms, row.generation, row.correlation) for row in rows]:
            self._violated("I4", f"{key} was said to be {shown}, but since the request it was {rows}")

    def _check_list(self, request: Request, timers: list[dict[str, Any]]) -> None:
        order = [(timer["dueAt"], timer["serviceCallId"]) for timer in timers]
        if order != sorted(order):
            self._violated("I4", f"a list is not in order: {order}")
        for timer in timers:
            self._check_shown((request.wish.tenant, timer["serviceCallId"]), timer, request.sent_at)
        listed = {timer["serviceCallId"] for timer in timers}
        for (tenant, name), versions in self.history.items():
            if tenant != request.wish.tenant or name in listed or not versions or len(timers) >= LIST_LIMIT:
                continue
            last = versions[-1]
            if last.since < request.sent_at and last.row is not None and last.row.due_ms is not None:
                self._violated("I4", f"{tenant}/{name} is missing in the list: {listed}")

    def _was_missing(self, key: Key, since: float) -> bool:
        versions = self.history[key]
        return not versions or versions[0].since > since or any(version.row is None for version in versions)

    def _versions_since(self, key: Key, moment: float) -> list[Row]:
        versions = self.history[key]
        first = max((i for i, version in enumerate(versions) if version.since <= moment), default=0)
        return [version.row for version in versions[first:] if version.row is not None]

    def _outcome_holds(self, wish: Wish, outcome: str, rows: list[Row]) -> bool:
        if outcome in ("already_reached", "already_expired"):
            state = REACHED if outcome == "already_reached" else EXPIRED
            return any(row.state == state for row in rows)
        if wish.if_absent and outcome in ("unchanged", "already_cancelled"):
            return any(row.state == (SCHEDULED if outcome == "unchanged" else CANCELLED) for row in rows)
        if wish.kind == "cancel":
            return outcome in ("cancelled", "already_cancelled", "not_found") and any(
                row.state == CANCELLED for row in rows
            )
        return outcome in ("scheduled", "rescheduled", "unchanged") and any(
            row.state == SCHEDULED and (wish.delay_ms is not None or row.due_ms == wish.due_ms)
            for row in rows
        )

    # What must hold at the end.

    def overdue(self) -> list[tuple[Key, Row]]:
        """Return what is scheduled and should have fired a second ago."""
        latest_ms = self.around.wall_ms() - 1000
        rows = [(key, _row(raw)) for key, raw in self.rows.items() if raw[2] == SCHEDULED]
        return [(key, row) for key, row in rows if row.due_ms is not None and row.due_ms <= latest_ms]

    def settled(self) -> None:
        """Check what must be true once faults have stopped and the stated time has passed."""
        for key, row in self.overdue():
            self._violated("I7", f"{key} is due and still {row}")
        for position in self._refused:
            if self._letters[position] != 1 and position not in self._forgiven:
                self._violated("I1", f"{self._letters[position]} letters about the refused {position}")
        for cancel in self._cancels:
            purged = any(version.row is None for key in cancel.firings for version in self.history[key[:2]])
            if cancel.firings and cancel.firings <= self.fired and not purged:
                self._violated(
                    "I4", f"{set(cancel.firings)} was said to be cancelled at {cancel.at:.3f}, but it fired"
                )

    def _violated(self, invariant: str, text: str) -> None:
        self.around.violated(invariant, text)


def _applied(row: Row | None, wish: Wish, position: Position, *, is_request: bool = False) -> Row:
    """Return a row after a command: the table in section 2 of the contract, last write wins for each part.

    A schedule if absent (section 7) finds no timer where it is the oldest command, and else changes nothing.
    """
    if_absent = wish.if_absent and not is_request
    if row is None:
        if wish.kind == "cancel":
            return Row(CANCELLED, None, 0, None, position, None, None, None, position, if_absent=False)
        correlated_at = None if wish.correlation is None else position
        return Row(
            SCHEDULED,
            wish.due_ms,
            1,
            wish.correlation,
            position,
            position,
            correlated_at,
            wish.expires_ms,
            position,
            if_absent=if_absent,
        )
    is_alone = False
    if row.state in FINAL:
        return row
    if position < row.oldest and not is_request:
        is_alone = row.if_absent and row.position == row.oldest
        row = replace(_without_oldest(row) if row.if_absent else row, oldest=position, if_absent=if_absent)
    elif wish.if_absent:
        return row

    def wins_over(other: Position | None) -> bool:
        return other is None or position > other or (is_request and position == other)

    newest = is_alone or wins_over(row.position)
    if is_request and not newest:
        return row
    if is_request and position == row.oldest:
        row = replace(row, if_absent=False)
    if wish.kind == "cancel":
        return replace(row, state=CANCELLED, position=position) if newest else row
    after = row
    if wins_over(row.due_position):
        after = replace(after, due_ms=wish.due_ms, expires_ms=wish.expires_ms, due_position=position)
    if wish.correlation is not None and wins_over(row.correlation_position):
        after = replace(after, correlation=wish.correlation, correlation_position=position)
    if newest:
        after = replace(after, state=SCHEDULED, position=position)
    if (after.due_ms, after.expires_ms, after.state) != (row.due_ms, row.expires_ms, row.state):
        after = replace(after, generation=row.generation + 1)
    return after


def _without_oldest(row: Row) -> Row:
    """Return a row without what its oldest command has set, except for the state."""
    if row.due_position == row.oldest:
        row = replace(row, due_ms=None, expires_ms=None, due_position=None)
    if row.correlation_position == row.oldest:
        row = replace(row, correlation=None, correlation_position=None)
    return row


def _has_taken(row: Row, wish: Wish, position: Position) -> bool:
    """Return whether each part of a row that a command sets comes from this command or from a newer one."""
    if wish.if_absent:
        return row.oldest <= position
    set_at: list[Position | None] = [row.position]
    if wish.kind == "schedule":
        set_at.append(row.due_position)
    if wish.correlation is not None:
        set_at.append(row.correlation_position)
    return all(at is not None and at >= position for at in set_at)


def _tenant_of(subject: str) -> str:
    """Return whose timers wait for what is on a subject."""
    return subject.split(".")[2]


def _firing(key: Key, row: Row) -> Firing | None:
    return (*key, row.generation, row.due_ms) if row.state == SCHEDULED and row.due_ms is not None else None


def _row(raw: tuple[Any, ...]) -> Row:
    due_ms = None if raw[3] is None else parse_ms(raw[3])
    position = (raw[9], raw[10])
    due_position = position if raw[11] is None else (raw[11], raw[12])
    correlation_position = position if raw[13] is None else (raw[13], raw[14])
    return Row(
        raw[2],
        due_ms,
        raw[4],
        raw[6],
        position,
        None if due_ms is None else due_position,
        None if raw[6] is None else correlation_position,
        raw[15],
        position if raw[17] is None else (raw[17], raw[18]),
        raw[19] is not None,
        raw[20],
    )


def _short(row: Row | None) -> str:
    if row is None:
        return "nothing"
    return f"{row.state} due {row.due_ms} generation {row.generation} at {row.position[1]}"


@lru_cache(maxsize=4096)
def parse_ms(text: str) -> int:
    """Read `YYYY-MM-DDTHH:MM:SS.sssZ` as milliseconds since 1970."""
    if len(text) != 24 or text[23] != "Z" or text[10] != "T" or text[19] != ".":
        raise ValueError(f"not the one form of time: {text!r}")
    moment = datetime(
        *(int(text[start:end]) for start, end in ((0, 4), (5, 7), (8, 10), (11, 13), (14, 16), (17, 19))),  # type: ignore[misc,arg-type]
        tzinfo=UTC,
    )
    seconds = (moment - datetime(1970, 1, 1, tzinfo=UTC)).days * 86_400
    return (seconds + moment.hour * 3600 + moment.minute * 60 + moment.second) * 1000 + int(text[20:23])
