"""What is due, read in an order that holds up no tenant and at a cost that others' timers do not raise."""

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from operator import itemgetter
from typing import Any, Final

from timer_service.adapters.rows import DUE_COLUMNS, for_sink, of_table
from timer_service.adapters.sqlite.ahead import MAX_ROWS, Ahead
from timer_service.adapters.sqlite.due_tenants import DueTenants, Read
from timer_service.adapters.sqlite.limits import SqliteLimits
from timer_service.adapters.sqlite.places import START, Place, Places
from timer_service.domain.callback import Sink
from timer_service.domain.messages import TenantId, TimerKey, epoch_ms
from timer_service.domain.timer import Timer
from timer_service.ports.timer_store import NOTHING_HELD_BACK, HeldBack

MAX_ROUNDS: Final = 4
"""How often what some tenants leave of a claim is offered to those that have more."""

MAX_PUT_OFF: Final = 4
"""So many looks in a row find only what comes due under a backlog; the next goes on with that, too."""

_due_at: Final = itemgetter(2)
_place: Final = itemgetter(2, 1)

# Neither held back nor claimed. A timer's key is one value here, because SQLite looks a single value up in an
# index, but a row value by going through the list; and it is not made where there is nothing to compare.
_NOT_HELD: Final = """(:held_timers = '[]' OR
  tenant_id || char(10) || service_call_id NOT IN (SELECT value FROM json_each(:held_timers)))"""

# The poll: what is due, oldest first.
FIND_DUE: Final = f"""
SELECT {DUE_COLUMNS} FROM timer_schedules INDEXED BY timer_schedules_due
WHERE sink = 0 AND pending_due_ms <= :now_ms
  AND {_NOT_HELD}
ORDER BY pending_due_ms
LIMIT :limit
"""  # noqa: S608 - the column list is a constant

# After a look that found everything: what comes next.
FIND_NEXT: Final = f"""
SELECT {DUE_COLUMNS} FROM timer_schedules INDEXED BY timer_schedules_due
WHERE sink = 0 AND pending_due_ms > :now_ms
ORDER BY pending_due_ms
LIMIT {MAX_ROWS + 1}
"""  # noqa: S608 - constants

# Under backlog, or while a tenant is held back: the oldest few of one tenant after a place.
FIND_DUE_OF_TENANT: Final = f"""
SELECT {DUE_COLUMNS} FROM timer_schedules INDEXED BY timer_schedules_pending
WHERE sink = 0 AND tenant_id = :tenants ->> '$[0][0]' AND pending_due_ms <= :now_ms
  AND (pending_due_ms, service_call_id) > (:tenants ->> '$[0][1]', :tenants ->> '$[0][2]')
  AND {_NOT_HELD}
ORDER BY pending_due_ms, service_call_id
LIMIT :turn
"""  # noqa: S608 - the column list is a constant

# The same for each of several tenants: a list of their ids from the index alone, and then those rows.
_AFTER: Final = "(pending_due_ms, service_call_id) > (tenant.value ->> 1, tenant.value ->> 2) AND"
FIND_DUE_IN_TURNS: Final = f"""
SELECT {of_table("t", DUE_COLUMNS)}
FROM json_each(:tenants) AS tenant
CROSS JOIN timer_schedules AS t
  ON t.tenant_id = tenant.value ->> 0
 AND t.service_call_id IN (
    SELECT service_call_id FROM timer_schedules INDEXED BY timer_schedules_pending
    WHERE sink = 0 AND tenant_id = tenant.value ->> 0 AND pending_due_ms <= :now_ms AND
      {_AFTER} {_NOT_HELD}
    ORDER BY pending_due_ms, service_call_id LIMIT :turn)
"""  # noqa: S608 - the column list is a constant

# And from the start of each, which with many tenants takes two thirds of the time: their list is plain text.
FIND_FIRST_IN_TURNS: Final = FIND_DUE_IN_TURNS.replace(_AFTER, "").replace("value ->> 0", "value")

Row = tuple[Any, ...]


class Looks:
    """Looks for what is due, one at a time: by age while all of it fits, otherwise in turns by tenant."""

    def __init__(self, read: Read, limits: SqliteLimits, sink: Sink = Sink.BUS) -> None:
        self._read = read
        self._find_due = for_sink(FIND_DUE, sink)
        self._find_due_of_tenant = for_sink(FIND_DUE_OF_TENANT, sink)
        self._find_due_in_turns = for_sink(FIND_DUE_IN_TURNS, sink)
        self._find_first_in_turns = for_sink(FIND_FIRST_IN_TURNS, sink)
        self._find_next = for_sink(FIND_NEXT, sink)
        self._tenants = DueTenants(read, limits, sink)
        self._backlog = False
        self._places = Places()
        self._ahead: Ahead | None = None
        self._put_off = 0
        """How many looks there were since one went on with a backlog."""

    def saved(self, timers: Collection[Timer]) -> None:
        """Look for what is due among timers that were saved."""
        if self._ahead is not None:
            self._ahead.saved(timers)
            if self._ahead.is_full:
                self._ahead = None
        self._places.forget(timer.tenant_id for timer in timers)
        self._tenants.note_saved(timers)

    def given_back(self, keys: Collection[TimerKey]) -> None:
        """Find these timers again: they were claimed, and are no longer."""
        if keys:
            self._ahead = None
        self._places.forget(tenant_id for tenant_id, _ in keys)
        self._tenants.note(tenant_id for tenant_id, _ in keys)

    async def find(
        self, now: datetime, limit: int, claimed: Collection[TimerKey], held_back: HeldBack
    ) -> tuple[list[Row], bool, bool]:
        """Return up to `limit` due timers, oldest first; whether there may be more; if any was read ahead."""
        self._tenants.begin(now, held_back.timers)
        self._places.begin(now)
        if held_back.timers or not self._backlog:
            self._places.forget_all()
        now_ms = epoch_ms(now)
        punctual = self._take_punctual(now, limit, claimed, held_back)
        if punctual and not self._backlog:
            self._tenants.found_all(now_ms)
            return punctual, False, True
        if punctual and self._put_off < MAX_PUT_OFF:
            self._put_off += 1
            return punctual, True, True
        self._put_off = 0
        # By age, the timers of a tenant that is held back would have to be passed one by one.
        if not held_back.tenants and not self._backlog:
            passed = _keys((*claimed, *held_back.timers))
            parameters = {"now_ms": now_ms, "held_timers": passed, "limit": limit + 1}
            found = await self._read(self._find_due, parameters)
            if len(found) <= limit:
                self._tenants.found_all(now_ms)
                return found, False, False
            self._tenants.add(row[0] for row in found)
        in_hand = (*claimed, *(row[:2] for row in punctual))
        found, self._backlog = await self._take_turns(now_ms, limit - len(punctual), in_hand, held_back)
        return punctual + found, self._backlog, bool(punctual)

    def _take_punctual(
        self, now: datetime, limit: int, claimed: Collection[TimerKey], held_back: HeldBack
    ) -> list[Row]:
        """Return what has come due of what was read ahead; under backlog it is read ahead as well."""
        if held_back != NOTHING_HELD_BACK:
            self._ahead = None
            return []
        found = None if self._ahead is None else self._ahead.take(now, limit, claimed)
        if found is None or not (found or self._backlog):
            self._ahead = Ahead(now)
        elif self._backlog:
            self._places.forget(row[0] for row in found)
        return found or []

    async def next_due_at(self, after: datetime) -> datetime | None:
        """Return the earliest due time later than a moment, and read ahead what is due from there on."""
        ahead = Ahead(after)
        if self._ahead is not None:
            is_known, due_at = self._ahead.next_due_at(after)
            if is_known:
                return due_at
            ahead = Ahead(after, self._ahead.looked_at)
            self._ahead = ahead if self._ahead.follows(after) else None
        return ahead.fill(await self._read(self._find_next, {"now_ms": epoch_ms(after)}))

    async def _take_turns(
        self, now_ms: int, limit: int, claimed: Collection[TimerKey], held_back: HeldBack
    ) -> tuple[list[Row], bool]:
        all_known = await self._tenants.discover(now_ms)
        tenants, others = self._tenants.choose(limit, held_back.tenants)
        # Both at once: a place that is forgotten while the look goes on no longer stands for what is claimed.
        passed, places = self._places.to_pass(tenants, claimed), self._places.of(tenants)
        parameters = {"now_ms": now_ms, "held_timers": _keys((*passed, *held_back.timers))}
        by_tenant, unread = await self._read_turns(parameters, limit, tenants, places)
        found, left = _in_turns(by_tenant.values(), limit)
        with_more = unread | {row[0] for row in left}
        self._tenants.took_turns(tenants, [tenant for tenant in tenants if tenant in with_more])
        found.sort(key=_due_at)
        if not held_back.timers:  # What is held back comes before some of these, and is not in hand.
            self._places.found(found, passed, with_more)
        return found, bool(with_more) or others or not all_known

    async def _read_turns(
        self, parameters: dict[str, Any], limit: int, asked: list[TenantId], places: Mapping[TenantId, Place]
    ) -> tuple[dict[TenantId, list[Row]], set[TenantId]]:
        """Read the oldest of each tenant, as many as together fill the limit; say who has more."""
        by_tenant: dict[TenantId, list[Row]] = {}
        turn = 0
        for _ in range(MAX_ROUNDS):
            missing = limit - sum(map(len, by_tenant.values()))
            if not asked or missing <= 0:
                break
            turn += -(-missing // len(asked))
            # One more than a turn tells who has more.
            statement, whom = self._turns_of(asked, places)
            rows = await self._read(statement, {**parameters, "tenants": whom, "turn": turn + 1})
            by_tenant |= _by_tenant(rows)
            asked = [tenant for tenant in asked if len(by_tenant.get(tenant, ())) > turn]
        return by_tenant, set(asked)

    def _turns_of(self, tenants: list[TenantId], places: Mapping[TenantId, Place]) -> tuple[str, str]:
        """Return the statement that reads the next of some tenants, and their list as it takes it."""
        if len(tenants) > 1 and not places:
            return self._find_first_in_turns, json.dumps(tenants)
        statement = self._find_due_of_tenant if len(tenants) == 1 else self._find_due_in_turns
        return statement, json.dumps([(tenant_id, *places.get(tenant_id, START)) for tenant_id in tenants])


def _keys(timers: Iterable[TimerKey]) -> str:
    return json.dumps(["\n".join(key) for key in timers])


def _in_turns(of_tenants: Collection[list[Row]], limit: int) -> tuple[list[Row], list[Row]]:
    """Return the first of each, then the second of each and so on, up to a limit; and what comes next."""
    if len(of_tenants) == 1:  # One tenant alone has all turns, which need not be taken one by one.
        [rows] = of_tenants
        return rows[:limit], rows[limit:]
    found: list[Row] = []
    turn = 0
    while of_tenants:
        found += sorted((rows[turn] for rows in of_tenants), key=_due_at)
        turn += 1
        of_tenants = [rows for rows in of_tenants if len(rows) > turn]
        if len(found) > limit:
            break
    return found[:limit], found[limit:] + [rows[turn] for rows in of_tenants]


def _by_tenant(rows: Iterable[Row]) -> dict[TenantId, list[Row]]:
    """Return each tenant's timers, oldest first."""
    found = defaultdict[TenantId, list[Row]](list)
    for row in rows:
        found[row[0]].append(row)
    for of_tenant in found.values():
        if len(of_tenant) > 1:
            of_tenant.sort(key=_place)
    return found
