"""What was asked for, what came of it, and whether the two agree; nothing here comes from the product."""

import json
import sqlite3
from collections import Counter, defaultdict
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any
from uuid import UUID

Key = tuple[str, str]

STEP_IS_FELT_S = 15.0
"""For so long after the clock was set right an event may go out that was found due before."""


@dataclass(frozen=True, slots=True)
class Order:
    """One command or call that was taken."""

    kind: str
    """`schedule`, `cancel`, or `confirmed` for a cancel by call that was answered with `cancelled`."""
    due_ms: int = 0
    generation: int = 0
    """Of a confirmed cancel: the generation that never fires."""


@dataclass(frozen=True, slots=True)
class Firing:
    """An event as the broker or a subscriber has it."""

    subject: str
    event_id: str
    generation: int
    due_ms: int
    reached_ms: int
    seen_ms: int
    """By the true clock."""


@dataclass(slots=True)
class Findings:
    """What the checker counts; all but the first three must be empty."""

    attempted: int = 0
    accepted: int = 0
    fired: int = 0
    lost: list[str] = field(default_factory=list)
    early: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    other_ids: list[str] = field(default_factory=list)
    letters: list[str] = field(default_factory=list)
    published_again: int = 0
    stored_again: int = 0

    @property
    def violations(self) -> list[str]:
        return [*self.lost, *self.early, *self.unexpected, *self.other_ids, *self.letters]


class Ledger:
    """Every order and every event of one run."""

    def __init__(self) -> None:
        self.attempted = 0
        self.orders: dict[Key, list[Order]] = defaultdict(list)
        self.tried_dues: dict[Key, set[int]] = defaultdict(set)
        """Due times that may have been taken, whether or not anybody confirmed it."""
        self.unsure_cancels: set[Key] = set()
        """Timers whose cancel by call was never answered."""
        self.era = 0
        """Goes on where the command stream is made again, because its sequences then begin again."""
        self.refused: list[tuple[int, int]] = []
        """Era and sequence of messages that are no commands."""
        self.letters: Counter[tuple[int, int]] = Counter()
        self.published: dict[Key, list[Firing]] = defaultdict(list)
        """What a subscriber saw, repetitions included."""
        self.stored: dict[Key, list[Firing]] = defaultdict(list)
        """What the event stream held when it was last read."""
        self.steps: list[tuple[int, int]] = []
        """When the service's clock was put ahead, and by how many milliseconds."""
        self.last_event_ms = 0
        self.recoveries_s: dict[str, list[float]] = defaultdict(list)
        self.faults: Counter[str] = Counter()

    def saw(self, subject: str, body: bytes, seen_ms: int) -> None:
        key, firing = read_event(subject, body, seen_ms)
        self.published[key].append(firing)
        self.last_event_ms = max(self.last_event_ms, seen_ms)

    def put_ahead(self, now_ms: int, by_ms: int) -> None:
        self.steps.append((now_ms, by_ms))

    def check(self, rows: dict[Key, dict[str, Any]], now_ms: int) -> Findings:
        """Compare what was asked for with what the stream, the subscriber and the file hold."""
        found = Findings(attempted=self.attempted, accepted=sum(map(len, self.orders.values())))
        for key, orders in self.orders.items():
            problem = self._lost(key, orders, rows.get(key), now_ms)
            if problem is not None:
                found.lost.append(f"{key}: {problem}; asked for {orders}")
        for key in self.published.keys() | self.stored.keys():
            self._check_firings(key, found)
        for message in self.refused:
            if self.letters[message] != 1:
                found.letters.append(f"{self.letters[message]} letters about message {message}")
        return found

    def _lost(self, key: Key, orders: list[Order], row: dict[str, Any] | None, now_ms: int) -> str | None:
        if row is None:
            return "there is no row"
        if row["state"] == "Reached":
            fired = {(f.generation, f.due_ms) for f in self.published[key] + self.stored[key]}
            here = (row["generation"], read_ms(row["due_at"]))
            return None if here in fired else f"it is marked as reached at {here}, but nobody saw it fire"
        last = orders[-1]
        if row["state"] == "Cancelled":
            cancelled = last.kind != "schedule" or key in self.unsure_cancels
            return None if cancelled else "it is cancelled, but nobody asked for that last"
        if read_ms(row["due_at"]) <= now_ms:
            return f"it was due at {row['due_at']} and did not fire"
        if last.kind != "schedule" or read_ms(row["due_at"]) != last.due_ms:
            return f"it is {row}"
        return None

    def _check_firings(self, key: Key, found: Findings) -> None:
        published, stored = self.published[key], self.stored[key]
        ids: dict[tuple[int, int], str] = {}
        for firing in published + stored:
            here = (firing.generation, firing.due_ms)
            what = f"{key} {here}"
            if firing.subject != f"timer.events.{key[0]}.DueTimeReached":
                found.unexpected.append(f"{what} on {firing.subject}")
            if firing.due_ms not in self.tried_dues[key]:
                found.unexpected.append(f"{what}, which nobody asked for")
            confirmed = {Order("confirmed", firing.due_ms, firing.generation), Order("confirmed")}
            if confirmed & set(self.orders[key]):
                found.unexpected.append(f"{what}, although its cancel was confirmed")
            if ids.setdefault(here, firing.event_id) != firing.event_id or not is_id_of(firing):
                found.other_ids.append(f"{what}: {firing.event_id}")
            if firing.reached_ms < firing.due_ms or firing.seen_ms + self._ahead_ms(firing) < firing.due_ms:
                found.early.append(f"{what} at {firing.reached_ms}, seen at {firing.seen_ms}")
        found.fired += len(ids)
        found.published_again += len(published) - len({(f.generation, f.due_ms) for f in published})
        found.stored_again += len(stored) - len({(f.generation, f.due_ms) for f in stored})

    def _ahead_ms(self, firing: Firing) -> int:
        """Return how far the service's clock may have been ahead when it sent the event."""
        since = firing.seen_ms - STEP_IS_FELT_S * 1000
        return max((by for at, by in self.steps if since <= at <= firing.seen_ms), default=0)

    def summary(self, found: Findings, **more: object) -> dict[str, object]:
        """Return the counts as they are shown and kept."""
        counts: dict[str, object] = {
            "commands and requests attempted": found.attempted,
            "accepted": found.accepted,
            "timers": len(self.orders),
            "fired": found.fired,
            "lost": len(found.lost),
            "early": len(found.early),
            "unexpected": len(found.unexpected),
            "repeated under another id": len(found.other_ids),
            "refused messages": len(self.refused),
            "without exactly one letter": len(found.letters),
            "published again after a fault": found.published_again,
            "stored again after a fault": found.stored_again,
        }
        for kind, seconds in sorted(self.recoveries_s.items()):
            counts[f"recovery after {kind}, median s"] = round(median(seconds), 2)
            counts[f"recovery after {kind}, worst s"] = round(max(seconds), 2)
        counts.update({f"faults: {kind}": count for kind, count in sorted(self.faults.items())})
        return {**counts, **more}


def read_event(subject: str, body: bytes, seen_ms: int) -> tuple[Key, Firing]:
    event = json.loads(body)
    payload = event["payload"]
    key = (payload["tenantId"], payload["serviceCallId"])
    due_ms, reached_ms = read_ms(payload["dueAt"]), read_ms(payload["reachedAt"])
    return key, Firing(subject, event["id"], payload["generation"], due_ms, reached_ms, seen_ms)


def is_id_of(firing: Firing) -> bool:
    identity = UUID(firing.event_id)
    return identity.version == 7 and identity.int >> 80 == firing.due_ms


def read_ms(text: str) -> int:
    return round(datetime.fromisoformat(text).astimezone(UTC).timestamp() * 1000)


def still_scheduled(path: Path, due_by_ms: int) -> list[Key]:
    """Return some of the timers that are due by a moment and not marked; a million others do not matter."""
    due_by = datetime.fromtimestamp(due_by_ms / 1000, UTC).isoformat(timespec="milliseconds")
    query = "SELECT tenant_id, service_call_id FROM timer_schedules WHERE state = 'Scheduled' AND due_at <= ?"
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as link:
        return list(link.execute(f"{query} LIMIT 5", (due_by.replace("+00:00", "Z"),)))


def read_rows(path: Path) -> dict[Key, dict[str, Any]]:
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as link:
        link.row_factory = sqlite3.Row
        found = link.execute("SELECT * FROM timer_schedules").fetchall()
    return {(row["tenant_id"], row["service_call_id"]): dict(row) for row in found}
