"""What a look at the SQLite store costs, counted in steps: it goes by who has something due."""

import asyncio
import shutil
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.steps import counted
from tests.support.timers import ACME, GLOBEX, at, schedule, scheduled_timer
from timer_service.adapters.sqlite.ahead import MAX_AGE_S
from timer_service.adapters.sqlite.limits import DEFAULT_LIMITS, MAX_SCANNED_ROWS, SqliteLimits
from timer_service.adapters.sqlite.looks import Looks
from timer_service.adapters.sqlite.opening import open_sqlite_store
from timer_service.adapters.sqlite.store import SqliteTimerStore
from timer_service.domain.messages import TenantId
from timer_service.domain.timer import Timer
from timer_service.ports.timer_store import NOTHING_HELD_BACK, Claim, HeldBack
from timer_service.testing import START

LIMIT = 50
FEW, MANY = 200, 20_000

# Timers of tenants that have nothing due, or of one tenant; numbers say how many and of whom.
FILL = """
WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < :count)
INSERT INTO timer_schedules (tenant_id, service_call_id, state, due_at, generation, registered_at,
  reached_at, stream_created_us, stream_sequence, pending_due_ms)
SELECT CASE WHEN :tenant = '' THEN 'idle-' || n ELSE :tenant END, 'order-' || n, :state,
  strftime('%Y-%m-%dT%H:%M:%S.000Z', :due_s + n * :apart_s, 'unixepoch'), 1, '2025-01-01T00:00:00.000Z',
  CASE :state WHEN 'Reached' THEN '2025-01-01T00:00:00.000Z' END, 1, n,
  CASE :state WHEN 'Scheduled' THEN (:due_s + n * :apart_s) * 1000 END
FROM numbers
"""
LONG_AGO_S, YEAR_2100_S = 1_600_000_000, 4_102_444_800


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file with the schema and nothing else."""
    path = tmp_path_factory.mktemp("empty") / "timers.db"

    async def make() -> None:
        async with open_sqlite_store(path, lambda: START):
            pass

    asyncio.run(make())
    return path


def fill(
    path: Path, count: int, *, tenant: str = "", state: str = "Scheduled", due_s: int, apart_s: int = 0
) -> None:
    """Put timers into a file that nobody has open."""
    values = {"count": count, "tenant": tenant, "state": state, "due_s": due_s, "apart_s": apart_s}
    with closing(sqlite3.connect(path)) as link, link:
        link.execute(FILL, values)


@asynccontextmanager
async def a_store(
    empty: Path, path: Path, limits: SqliteLimits, **more: int
) -> AsyncIterator[SqliteTimerStore]:
    """Open a store with a backlog of one tenant, one timer of another, and this many others of a kind."""
    shutil.copyfile(empty, path)
    fill(path, 3 * LIMIT, tenant="acme", due_s=LONG_AGO_S, apart_s=1)
    fill(path, 1, tenant="globex", due_s=LONG_AGO_S + 10_000_000)
    for kind, count in more.items():
        _FILLS[kind](path, count)
    async with open_sqlite_store(path, lambda: START, limits=limits) as store:
        yield store


_FILLS = {
    "idle": lambda path, count: fill(path, count, due_s=YEAR_2100_S),
    "ended": lambda path, count: fill(path, count, state="Reached", due_s=LONG_AGO_S),
    "held": lambda path, count: fill(path, count, tenant="held", due_s=LONG_AGO_S - 1_000_000, apart_s=1),
}


async def look(
    store: SqliteTimerStore, held_back: HeldBack = NOTHING_HELD_BACK
) -> tuple[Counter[TenantId], bool, int]:
    """Claim and mark; return whose timers were claimed, whether there is more, and the steps it took."""
    async with counted(store._reader) as steps, store.claim_due(at(0), LIMIT, held_back) as claim:
        found = Counter(timer.tenant_id for timer in claim.timers)
        await claim.mark_reached([timer.reached(at(0)) for timer in claim.timers])
    return found, claim.more, steps[0]


HELD = HeldBack(tenants=frozenset({TenantId("held")}))
KINDS = {"idle": NOTHING_HELD_BACK, "ended": NOTHING_HELD_BACK, "held": HELD}


@pytest.mark.parametrize("kind", KINDS)
async def test_a_look_under_backlog_costs_the_same_beside_a_hundred_times_as_many_others(
    empty: Path, tmp_path: Path, kind: str
) -> None:
    costs = {}
    for count in (FEW, MANY):
        async with a_store(empty, tmp_path / f"{count}.db", DEFAULT_LIMITS, **{kind: count}) as store:
            found, more, _ = await look(store, KINDS[kind])  # The first learns who there is.
            costs[count] = (await look(store, KINDS[kind]))[2]
        assert (found, more) == ({ACME: LIMIT - 1, GLOBEX: 1}, True)

    assert costs[MANY] <= 1.1 * costs[FEW]


async def test_the_look_that_finds_the_last_of_a_backlog_knows_that_there_is_no_more(
    empty: Path, tmp_path: Path
) -> None:
    path = tmp_path / "timers.db"
    shutil.copyfile(empty, path)
    fill(path, 3 * LIMIT, tenant="acme", due_s=LONG_AGO_S, apart_s=1)

    async with open_sqlite_store(path, lambda: START) as store:
        looks = [(await look(store))[:2] for _ in range(3)]

    assert looks == [({ACME: LIMIT}, True), ({ACME: LIMIT}, True), ({ACME: LIMIT}, False)]


@pytest.mark.parametrize("kinds", [*((kind,) for kind in KINDS), ("held", "idle")])
async def test_no_look_costs_more_than_a_bound(empty: Path, tmp_path: Path, kinds: tuple[str, ...]) -> None:
    """Of those held back beside the idle there are too many either to scan or to walk at once."""
    limits = SqliteLimits(max_scanned_rows=1_000, max_visited_tenants=100)
    costs = []
    async with a_store(empty, tmp_path / "timers.db", limits, **dict.fromkeys(kinds, MANY)) as store:
        more = True
        while more:
            _, more, steps = await look(store, KINDS[kinds[0]])
            costs.append(steps)

    # About ten steps for each timer that is passed, forty for each tenant, a hundred for each one claimed.
    assert max(costs) < 20 * 1_000 + 60 * 100 + 200 * LIMIT


async def test_while_tenants_are_held_back_each_of_their_timers_is_passed_once_at_the_most(
    empty: Path, tmp_path: Path
) -> None:
    async with a_store(empty, tmp_path / "timers.db", DEFAULT_LIMITS, held=MANY, idle=MANY) as store:
        for _ in range(5 + MANY // MAX_SCANNED_ROWS):
            await look(store, HELD)
        found, more, steps = await look(store, HELD)

    assert (found, more) == ({}, False)
    assert steps < 1_000


async def test_thousands_of_held_tenants_cost_a_look_next_to_nothing(empty: Path, tmp_path: Path) -> None:
    async with a_store(empty, tmp_path / "timers.db", DEFAULT_LIMITS) as store:
        tenants = [TenantId(f"held-{n}") for n in range(5_000)]
        await store.apply([schedule("one", -10, tenant=tenant) for tenant in tenants], at(0))
        held = HeldBack(tenants=frozenset(tenants))
        await look(store, held)
        found, _, many = await look(store, held)

    assert found == {ACME: LIMIT}
    assert many < 200 * LIMIT


# From tenant to tenant it is the shorter way: along the due timers it would be 20 looks. Or the reverse.
@pytest.mark.parametrize(
    ("backlog", "visited", "looks"), [(20_000, 500, 1 + 3_002 // 500), (3_000, 10, 1 + 3_001 // 1_000)]
)
async def test_the_one_timer_of_a_tenant_is_found_in_time_whatever_stands_before_it(
    empty: Path, tmp_path: Path, backlog: int, visited: int, looks: int
) -> None:
    limits = SqliteLimits(max_scanned_rows=1_000, max_visited_tenants=visited)
    path = tmp_path / "timers.db"
    shutil.copyfile(empty, path)
    fill(path, backlog, tenant="big", due_s=LONG_AGO_S, apart_s=1)
    fill(path, 3_000, due_s=YEAR_2100_S)
    fill(path, 1, tenant="small", due_s=LONG_AGO_S + 10_000_000)
    needed = 0

    async with open_sqlite_store(path, lambda: START, limits=limits) as store:
        found: Counter[TenantId] = Counter()
        while TenantId("small") not in found:
            found, _, _ = await look(store)
            needed += 1

    assert needed <= looks


async def test_a_walk_during_which_the_clock_is_set_back_loses_nobody(empty: Path, tmp_path: Path) -> None:
    limits = SqliteLimits(max_scanned_rows=10, max_visited_tenants=2)
    path = tmp_path / "timers.db"
    shutil.copyfile(empty, path)
    fill(path, 10_000, tenant="held", due_s=LONG_AGO_S, apart_s=1)
    fill(path, 5, due_s=YEAR_2100_S)
    async with open_sqlite_store(path, lambda: START, limits=limits) as store:
        await store.apply([schedule("one", -5, tenant=TenantId("early"))], at(-60))
        both = HeldBack(tenants=HELD.tenants | {TenantId("early")})
        async with store.claim_due(at(0), LIMIT, both):
            pass
        # The walk, which has met the tenant, ends with the last look before its timer is due again.
        found = {}
        for now_s in (-10, -9, -8, -4):
            async with store.claim_due(at(now_s), LIMIT, HELD) as claim:
                found[now_s] = [timer.service_call_id for timer in claim.timers]

    assert found == {-10: [], -9: [], -8: [], -4: ["one"]}


async def test_whatever_is_overdue_in_the_file_is_found_although_all_looks_are_served_from_memory(
    empty: Path, tmp_path: Path
) -> None:
    path = tmp_path / "timers.db"
    shutil.copyfile(empty, path)
    # So near that what is read ahead is used up, and read on, several times within the age that is allowed.
    timers = [schedule(f"order-{number}", number / 50, number=number) for number in range(1, 401)]
    by_hand = (GLOBEX, "order-1")
    found: dict[tuple[str, str], float] = {}

    async with open_sqlite_store(path, lambda: START) as store:
        await store.apply(timers, at(-1))
        for fifths in range(41):
            now = at(fifths / 5)
            async with store.claim_due(now, LIMIT) as claim:
                found |= {timer.key: fifths / 5 for timer in claim.timers}
                await claim.mark_reached([timer.reached(now) for timer in claim.timers])
            await store.next_due_at(now)
            if fifths == 1:
                fill(path, 1, tenant="globex", due_s=LONG_AGO_S)

    assert found.keys() == {*((ACME, timer.service_call_id) for timer in timers), by_hand}
    assert found[by_hand] == MAX_AGE_S


async def test_a_look_says_whether_what_it_finds_was_read_ahead(empty: Path, tmp_path: Path) -> None:
    path = tmp_path / "timers.db"
    shutil.copyfile(empty, path)
    timers = [schedule(f"order-{due_s}", due_s, number=due_s) for due_s in (1, 2, 9)]
    read_ahead = {}

    async with open_sqlite_store(path, lambda: START) as store:
        await store.apply(timers, at(-1))
        for now_s in (0, 1, 2, 3, 9):
            async with store.claim_due(at(now_s), LIMIT) as claim:
                read_ahead[now_s] = claim.read_ahead
                await claim.mark_reached([timer.reached(at(now_s)) for timer in claim.timers])
            await store.next_due_at(at(now_s))

    # Nothing is due at 3, and at 9 it is too long ago that the file was asked for all that is.
    assert read_ahead == {0: False, 1: True, 2: True, 3: False, 9: False}


async def test_under_backlog_what_comes_due_is_found_alone_in_four_of_five_looks(
    empty: Path, tmp_path: Path
) -> None:
    punctual = [schedule(f"punctual-{n}", n, tenant=GLOBEX, number=n) for n in range(1, 7)]
    found: list[tuple[int, list[str]]] = []

    async with a_store(empty, tmp_path / "timers.db", DEFAULT_LIMITS) as store:
        await store.apply(punctual, at(-1))
        for now_s in range(7):
            async with store.claim_due(at(now_s), LIMIT) as claim:
                names = [str(timer.service_call_id) for timer in claim.timers]
                found.append((len(names), [name for name in names if name.startswith("punctual")]))
                await claim.mark_reached([timer.reached(at(now_s)) for timer in claim.timers])
            assert await store.next_due_at(at(now_s)) == (at(now_s + 1) if now_s < 6 else None)

    assert found == [
        (LIMIT, []),
        *((1, [f"punctual-{n}"]) for n in (1, 2, 3, 4)),
        (LIMIT, ["punctual-5"]),
        (1, ["punctual-6"]),
    ]


async def test_what_is_in_hand_is_not_found_if_a_timer_of_its_tenant_is_saved_in_the_middle_of_a_look(
    empty: Path, tmp_path: Path
) -> None:
    saved, turns = list[Timer](), list[str]()

    async def read(sql: str, parameters: dict[str, Any]) -> list[tuple[Any, ...]]:
        found = [tuple(row) for row in await store._reader.execute_fetchall(sql, parameters)]
        if "tenants" in parameters:
            turns.append(parameters["tenants"])
            looks.saved(saved)
        return found

    async with a_store(empty, tmp_path / "timers.db", DEFAULT_LIMITS) as store:
        await store.apply(
            [schedule(f"one-{n}", -9, tenant=GLOBEX, number=n) for n in range(LIMIT // 2)], at(-9)
        )
        looks = Looks(read, DEFAULT_LIMITS)
        [first, _, _] = await looks.find(at(0), LIMIT, (), NOTHING_HELD_BACK)
        in_hand = [row[:2] for row in first]
        saved.append(scheduled_timer("order-of-tomorrow", 86_400))
        [second, _, _] = await looks.find(at(0), LIMIT, in_hand, NOTHING_HELD_BACK)

    # What GLOBEX leaves of its turn is offered to ACME, and read for that.
    assert [turn.count("acme") for turn in turns] == [1, 1, 1]
    assert not {*in_hand}.intersection(row[:2] for row in second)
    assert len(second) == LIMIT


async def test_beside_a_backlog_each_timer_is_found_once(empty: Path, tmp_path: Path) -> None:
    tenants = (ACME, GLOBEX, "initech")
    timers = [schedule(f"late-{n}", n / 40, tenant=tenants[n % 3], number=n) for n in range(1, 201)]
    found = Counter[tuple[str, str]]()

    async def mark(claim: Claim, now_s: float) -> None:
        await claim.mark_reached([timer.reached(at(now_s)) for timer in claim.timers])

    async with a_store(empty, tmp_path / "timers.db", DEFAULT_LIMITS) as store:
        await store.apply(timers, at(-1))
        for step in range(0, 240, 3):
            # Three looks at a time, marked together: what is in hand is not found by the next ones.
            async with AsyncExitStack() as claims:
                for now_s in (step / 30, (step + 1) / 30, (step + 2) / 30):
                    claim = await claims.enter_async_context(store.claim_due(at(now_s), 3 + step % 5))
                    found.update(timer.key for timer in claim.timers)
                    claims.push_async_callback(mark, claim, now_s)
                    await store.next_due_at(at(now_s))

    assert set(found.values()) == {1}
    assert len(found) == 3 * LIMIT + 1 + len(timers)
