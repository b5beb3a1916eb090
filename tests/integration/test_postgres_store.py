"""What only the PostgreSQL store promises: several instances, clocks that differ, faults, short searches."""

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.support import messages
from tests.support.fakes import RecordingBus
from tests.support.patience import PATIENCE_S
from tests.support.postgres import (
    USER_WITH_PASSWORD,
    DatabaseClock,
    Gateway,
    PostgresServer,
    TransactionPooler,
    database_clock,
    execute,
    fresh_database,
    fresh_schema,
    local_server,
    migrated_schema,
)
from tests.support.timers import ACME, asked, at, call, cancel, schedule, scheduled_timer
from timer_client.subjects import Subjects
from timer_service.adapters.migrations import Migration, load_migrations
from timer_service.adapters.postgres.limits import PostgresLimits
from timer_service.adapters.postgres.opening import ANSWER_CONNECTIONS, WORK_CONNECTIONS, open_postgres_store
from timer_service.adapters.postgres.store import LOOK_AGAIN_S, PostgresTimerStore
from timer_service.domain.callback import Sink
from timer_service.domain.due_timer import DueTimer
from timer_service.domain.errors import (
    InvalidConfiguration,
    StoreBusy,
    StoreFailed,
    StoreFull,
    StoreTooNew,
    TimerServiceError,
    TransientError,
)
from timer_service.domain.messages import Command, Trace
from timer_service.domain.timer import Outcome, TimerState
from timer_service.ports.timer_store import NOTHING_HELD_BACK, Claim, HeldBack, TimerQuery, TimerStore
from timer_service.testing import START, ManualClock, MemoryEventBus
from timer_service.workflows.catch_up import CatchUp
from timer_service.workflows.fire_due_timers import publish_due_timers
from timer_service.workflows.hold_back import HoldBack
from timer_service.workflows.open_questions import OpenQuestions
from timer_service.workflows.schedule_timers import schedule_timers

REPOSITORY = Path(__file__).parents[2]
NOW = at(0)
SILENT_S = 1.0
"""After this a claim is lost; a slow machine needs less for what comes before."""
GIVEN_UP_AFTER_S = 2.0
"""How long a store waits for a connection; a slow machine needs less to get one that is free."""


@pytest.fixture
async def url() -> AsyncIterator[str]:
    async with migrated_schema() as address:
        yield address


@pytest.fixture
async def fresh_url() -> AsyncIterator[str]:
    """A schema without any table, for tests of the start and for those that change tables."""
    async with fresh_schema() as address:
        yield address


@asynccontextmanager
async def opened(url: str, now: datetime = START, **options: Any) -> AsyncIterator[PostgresTimerStore]:
    async with open_postgres_store(url, lambda: now, **options) as store:
        yield store


@asynccontextmanager
async def group(url: str, count: int, **options: Any) -> AsyncIterator[list[PostgresTimerStore]]:
    """Open this many instances on one database."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(opened(url, **options)) for _ in range(count)]


@pytest.fixture
async def store(url: str) -> AsyncIterator[PostgresTimerStore]:
    async with opened(url) as it:
        yield it


@pytest.fixture
async def pair(url: str) -> AsyncIterator[list[PostgresTimerStore]]:
    """Two instances on one database."""
    async with group(url, 2) as instances:
        yield instances


async def query(url: str, sql: str, *parameters: object) -> list[tuple[Any, ...]]:
    """Look at the database as another program would."""
    connection = await asyncpg.connect(url)
    try:
        return [tuple(row) for row in await connection.fetch(sql, *parameters)]
    finally:
        await connection.close()


async def until(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not await condition():
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"waited {PATIENCE_S} s for {what}") from None


async def until_waiting(url: str, count: int = 1) -> None:
    """Wait until this many sessions of this test wait for a row that another has locked."""

    async def waiting() -> bool:
        [(found,)] = await query(
            url,
            "SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid)"
            " WHERE NOT granted AND application_name = 'timer-service' AND query LIKE '%timer_schedules%'",
        )
        return bool(found >= count)

    await until(waiting, f"{count} sessions to wait for a lock")


async def end_sessions(url: str) -> None:
    """Let the server end every session of the service, as a restart does."""
    await query(
        url,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE application_name = 'timer-service' AND pid <> pg_backend_pid()",
    )


async def claimed_names(store: TimerStore, now_s: float = 0, limit: int = 100) -> list[str]:
    async with store.claim_due(at(now_s), limit) as claim:
        return [timer.service_call_id for timer in claim.timers]


def due(count: int, *, tenant: str = ACME) -> list[Command]:
    """Return this many schedules that are due, oldest first."""
    return [schedule(f"order-{n:03}", n / 1000 - 10, tenant=tenant, number=n + 1) for n in range(count)]


# Opening


async def test_ten_instances_may_start_at_once_on_an_empty_database(fresh_url: str) -> None:
    async def start() -> None:
        async with opened(fresh_url):
            pass

    await asyncio.gather(*[start() for _ in range(10)])

    migrations = [(each.version, each.name) for each in load_migrations("postgres")]
    assert await query(fresh_url, "SELECT version, name FROM timer_migrations ORDER BY version") == migrations


async def test_what_was_kept_is_there_after_a_restart(url: str) -> None:
    async with opened(url) as first:
        await first.apply([schedule("order-1", 60, correlation="request-1"), cancel("order-2")], NOW)
        kept = [await first.get(ACME, call(name)) for name in ("order-1", "order-2")]

    async with opened(url) as second:
        assert [await second.get(ACME, call(name)) for name in ("order-1", "order-2")] == kept


async def test_a_newer_schema_is_refused(fresh_url: str) -> None:
    async with opened(fresh_url):
        pass
    await query(fresh_url, "INSERT INTO timer_migrations (version, name) VALUES (99, '0099_from_the_future')")

    newest = load_migrations("postgres")[-1].version
    with pytest.raises(StoreTooNew, match=f"schema version 99, but this program knows only {newest}"):
        async with opened(fresh_url):
            pass


async def test_a_migration_that_fails_leaves_nothing_behind(
    fresh_url: str,
) -> None:
    broken = Migration(98, "0098_broken", "CREATE TABLE half_done (); SELECT 1 / 0;")

    with pytest.raises(StoreFailed, match="division by zero"):
        async with opened(fresh_url, migrations=[*load_migrations("postgres"), broken]):
            pass

    tables = "SELECT tablename FROM pg_tables WHERE schemaname = current_schema()"
    assert await query(fresh_url, tables) == []


async def test_the_migrations_are_numbered_without_a_gap() -> None:
    versions = [migration.version for migration in load_migrations("postgres")]

    assert versions == list(range(1, len(versions) + 1))


async def test_a_user_without_the_right_to_create_can_run_on_a_migrated_database() -> None:
    async with fresh_database() as owner_url:
        async with opened(owner_url):
            pass
        name = f"worker_of_{owner_url.rpartition('/')[2].partition('?')[0]}"
        await execute(
            owner_url,
            f"CREATE ROLE {name} LOGIN PASSWORD 'secret'",
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON timer_schedules, timer_callbacks, callback_deliveries,"
            f" callback_attempts, callback_instances TO {name}",
            f"GRANT SELECT, INSERT, UPDATE ON timer_stream_epochs TO {name}",
            f"GRANT SELECT ON timer_migrations TO {name}",
        )
        worker_url = re.sub(r"//[^@/]*@", f"//{name}:secret@", owner_url)
        try:
            async with opened(worker_url) as store:
                outcomes = await store.apply([schedule("order-1", -1)], NOW)
                fired = await claimed_names(store)
        finally:
            await execute(owner_url, f"DROP OWNED BY {name}", f"DROP ROLE {name}")

    assert (outcomes, fired) == ([Outcome.SCHEDULED], ["order-1"])


async def test_a_user_who_may_not_write_is_told_so_at_start() -> None:
    async with fresh_database() as owner_url:
        async with opened(owner_url):
            pass
        name = f"reader_of_{owner_url.rpartition('/')[2].partition('?')[0]}"
        await execute(
            owner_url,
            f"CREATE ROLE {name} LOGIN PASSWORD 'secret'",
            f"GRANT SELECT ON timer_schedules, timer_migrations TO {name}",
        )
        try:
            with pytest.raises(StoreFailed, match="this user may not write"):
                async with opened(re.sub(r"//[^@/]*@", f"//{name}:secret@", owner_url)):
                    pass
        finally:
            await execute(owner_url, f"DROP OWNED BY {name}", f"DROP ROLE {name}")


async def test_a_database_in_another_encoding_is_refused() -> None:
    name = "latin_timers"
    server = local_server().url()
    await execute(
        server, f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'"
    )
    try:
        with pytest.raises(StoreFailed, match="encoding is LATIN1"):
            async with opened(local_server().url(name)):
                pass
    finally:
        await execute(server, f"DROP DATABASE {name}")


@pytest.mark.parametrize(
    ("url", "error", "text"),
    [
        ("{server}/no_such_database", StoreFailed, 'database "no_such_database" does not exist'),
        ("postgresql://no_such_user@{host}/postgres", StoreFailed, 'role "no_such_user" does not exist'),
        ("postgresql://{locked}:wrong@{host}/postgres", StoreFailed, "the password is wrong"),
        ("postgresql://localhost:1/postgres", StoreFailed, "cannot use the database at start"),
        ("postgresql://localhost:port/postgres", InvalidConfiguration, "cannot be read"),
        ("postgresql://timer:12?wrong@{host}/postgres", InvalidConfiguration, r"\? as %3F"),
        ("postgresql://{host}/postgres?sslmode=wrong", InvalidConfiguration, "sslmode"),
    ],
)  # fmt: skip
async def test_a_store_that_cannot_be_opened_says_why_without_the_password(
    url: str, error: type[TimerServiceError], text: str
) -> None:
    server = local_server()
    role = f"DROP ROLE IF EXISTS {USER_WITH_PASSWORD}"
    await execute(server.url(), role, f"CREATE ROLE {USER_WITH_PASSWORD} LOGIN PASSWORD 'right'")
    host = f"127.0.0.1:{server.port}"
    address = url.format(server=f"postgresql://postgres@{host}", host=host, locked=USER_WITH_PASSWORD)

    with pytest.raises(error, match=text) as caught:
        async with opened(address, limits=PostgresLimits(start_timeout_s=0.1)):
            pass

    assert "wrong@" not in str(caught.value)


async def test_a_commit_waits_for_the_disk_also_where_the_database_is_set_not_to() -> None:
    async with fresh_database(synchronous_commit="off") as url, opened(url) as store:
        await execute(
            url,
            "CREATE TABLE seen (setting text)",
            "CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS"
            " $$BEGIN INSERT INTO seen VALUES (current_setting('synchronous_commit')); RETURN NULL; END$$",
            "CREATE TRIGGER see AFTER INSERT OR UPDATE ON timer_schedules EXECUTE FUNCTION see()",
        )

        await store.apply([schedule("order-1", -1)], NOW)
        await asked(store, schedule("order-2", 60), now=NOW)
        async with store.claim_due(NOW, 10) as claim:
            await claim.mark_reached([timer.reached(NOW) for timer in claim.timers])

        assert await query(url, "SELECT setting FROM seen") == [("on",)] * 3


async def test_a_claim_that_was_left_is_forgotten(url: str) -> None:
    async with opened(url) as store:
        await store.apply([schedule("order-1")], NOW)
        for now_s in (0, 60):
            async with store.claim_due(at(now_s), 10):
                pass

        assert store._claims == set()


# Claims of several instances


async def test_two_claims_at_once_share_what_is_due(pair: list[PostgresTimerStore]) -> None:
    first, second = pair
    await first.apply(due(10), NOW)

    async with first.claim_due(NOW, 6) as one, second.claim_due(NOW, 6) as other:
        names = [[timer.service_call_id for timer in claim.timers] for claim in (one, other)]

    assert names == [[f"order-{n:03}" for n in range(6)], [f"order-{n:03}" for n in range(6, 10)]]


async def test_under_backlog_too_claims_at_once_share_what_is_due(pair: list[PostgresTimerStore]) -> None:
    first, second = pair
    for tenant in ("a", "b", "c"):
        await first.apply(due(10, tenant=tenant), NOW)

    async with first.claim_due(NOW, 7) as one, second.claim_due(NOW, 7) as other:
        keys = [{t.key for t in claim.timers} for claim in (one, other)]
        tenants = [Counter(t.tenant_id for t in claim.timers) for claim in (one, other)]

    assert [len(each) for each in keys] == [7, 7]
    assert keys[0].isdisjoint(keys[1])
    assert [sorted(each.values()) for each in tenants] == [[2, 2, 3], [2, 2, 3]]


async def test_what_another_instance_holds_is_not_more_but_looked_for_again_soon(
    pair: list[PostgresTimerStore],
) -> None:
    first, second = pair
    await first.apply([*due(10), schedule("later", 3600, number=99)], NOW)

    async with first.claim_due(NOW, 10), second.claim_due(NOW, 5) as other:
        held = (list(other.timers), other.more, await second.next_due_at(NOW))
    async with second.claim_due(NOW, 10) as other:
        free = (len(other.timers), other.more, await second.next_due_at(NOW))

    assert held == ([], False, NOW + timedelta(seconds=LOOK_AGAIN_S))
    assert free == (10, False, at(3600))


async def test_a_claim_comes_free_the_moment_its_connection_ends(
    pair: list[PostgresTimerStore], url: str
) -> None:
    first, second = pair
    await first.apply(due(3), NOW)

    async with first.claim_due(NOW, 10):
        await end_sessions(url)

        async def free() -> bool:
            with suppress(TransientError):  # The other instance's sessions were ended as well.
                return len(await claimed_names(second)) == 3
            return False

        await until(free, "the claim to come free")


async def test_a_claim_whose_instance_is_silent_for_too_long_comes_free(url: str) -> None:
    async with opened(url, limits=PostgresLimits(claim_timeout_s=SILENT_S)) as silent, opened(url) as other:
        await silent.apply(due(3), NOW)

        async with silent.claim_due(NOW, 10) as claim:

            async def free() -> bool:
                return len(await claimed_names(other)) == 3

            await until(free, "the claim to come free")
            marked = await claim.mark_reached([timer.reached(at(1)) for timer in claim.timers])

        assert marked == 3
        assert await claimed_names(other) == []


async def test_the_late_mark_of_a_lost_claim_changes_nothing(url: str) -> None:
    async with opened(url, limits=PostgresLimits(claim_timeout_s=SILENT_S)) as silent, opened(url) as other:
        await silent.apply(due(3), NOW)
        marked_by_other = 0
        async with silent.claim_due(NOW, 10) as lost:

            async def taken_over() -> bool:
                nonlocal marked_by_other
                # Row by row: while the database ends the silent claim, some are free before others are seen.
                async with other.claim_due(NOW, 10) as claim:
                    marked_by_other += await claim.mark_reached([t.reached(at(1)) for t in claim.timers])
                return marked_by_other == 3

            await until(taken_over, "the claim to be taken over")
            before = await other.list_timers(TimerQuery(ACME))

            marked = await lost.mark_reached([timer.reached(at(2)) for timer in lost.timers])

        assert marked == 0
        assert await other.list_timers(TimerQuery(ACME)) == before
        assert {timer.reached_at for timer in before} == {at(1)}


async def test_a_late_mark_leaves_a_timer_that_was_rescheduled_meanwhile(url: str) -> None:
    async with opened(url, limits=PostgresLimits(claim_timeout_s=SILENT_S)) as silent, opened(url) as other:
        await silent.apply([schedule("order-1", -1, number=1)], NOW)
        async with silent.claim_due(NOW, 10) as lost:
            await other.apply([schedule("order-1", 60, number=2)], NOW)  # Waits for the end of the claim.

            marked = await lost.mark_reached([timer.reached(NOW) for timer in lost.timers])

        assert marked == 0
        assert await other.get(ACME, call("order-1")) == scheduled_timer(
            "order-1", 60, generation=2, number=2
        )


async def test_a_mark_whose_commit_was_answered_by_nobody_is_counted_once(url: str) -> None:
    async with Gateway(url) as gateway, opened(gateway.url) as store:
        await store.apply(due(5), NOW)

        async with store.claim_due(NOW, 10) as claim:
            gateway.lose_next_commit = True
            marked = await claim.mark_reached([timer.reached(at(1)) for timer in claim.timers])

        assert gateway.lose_next_commit is False
        assert marked == 5
        assert {timer.state for timer in await store.list_timers(TimerQuery(ACME))} == {TimerState.REACHED}


async def test_giving_up_one_timer_of_a_claim_keeps_the_others(pair: list[PostgresTimerStore]) -> None:
    first, second = pair
    await first.apply(due(5), NOW)

    async with first.claim_due(NOW, 10):
        await first.apply([cancel("order-002", number=99)], NOW)
        await second.apply([schedule("order-free", -1, number=100)], NOW)
        free = await claimed_names(second)

    assert free == ["order-free"]


async def test_a_command_delivered_again_gives_up_nothing(pair: list[PostgresTimerStore]) -> None:
    first, second = pair
    await first.apply(due(5), NOW)

    async with first.claim_due(NOW, 10):
        outcomes = await first.apply(due(5), NOW) + await second.apply(due(5), NOW)
        free = await claimed_names(second)

    assert outcomes == [Outcome.SUPERSEDED] * 10
    assert free == []


async def test_three_instances_drain_a_backlog_and_claim_nothing_twice(url: str) -> None:
    claimed: list[DueTimer] = []

    async def drain(store: PostgresTimerStore) -> None:
        more = True
        while more:
            async with store.claim_due(NOW, 50) as claim:
                claimed.extend(claim.timers)
                more = claim.more
                await asyncio.sleep(0)  # As publishing does, it lets the others in.
                await claim.mark_reached([timer.reached(NOW) for timer in claim.timers])

    async with group(url, 3) as instances:
        for tenant in ("a", "b", "c"):
            await instances[0].apply(due(500, tenant=tenant), NOW)

        await asyncio.gather(*map(drain, instances))

        assert await claimed_names(instances[0]) == []
    assert Counter(t.key for t in claimed) == {
        (tenant, f"order-{n:03}"): 1 for tenant in ("a", "b", "c") for n in range(500)
    }


# Commands through several instances


async def test_a_reschedule_by_another_instance_waits_until_the_firing_is_decided(
    pair: list[PostgresTimerStore], url: str
) -> None:
    first, second = pair
    await first.apply([schedule("order-1", -1, number=1)], NOW)

    async with first.claim_due(NOW, 10) as claim:
        rescheduling = asyncio.ensure_future(second.apply([schedule("order-1", 60, number=2)], NOW))
        await until_waiting(url)
        await claim.mark_reached([timer.reached(NOW) for timer in claim.timers])

    assert await rescheduling == [Outcome.ALREADY_REACHED]


async def test_a_reschedule_by_another_instance_is_applied_where_the_firing_failed(
    pair: list[PostgresTimerStore], url: str
) -> None:
    first, second = pair
    await first.apply([schedule("order-1", -1, number=1)], NOW)

    async with first.claim_due(NOW, 10):
        rescheduling = asyncio.ensure_future(second.apply([schedule("order-1", 60, number=2)], NOW))
        await until_waiting(url)

    assert await rescheduling == [Outcome.RESCHEDULED]


PATIENT = PostgresLimits(
    lock_timeout_s=PATIENCE_S, statement_timeout_s=PATIENCE_S, claim_timeout_s=PATIENCE_S
)


@dataclass
class LateStore:
    """An instance's store whose claims begin only when they may."""

    inner: PostgresTimerStore
    may_claim: asyncio.Event = field(default_factory=asyncio.Event)
    has_claimed: asyncio.Event = field(default_factory=asyncio.Event)
    max_claims: int = 1

    @asynccontextmanager
    async def claim_due(
        self, now: datetime, limit: int, held_back: HeldBack = NOTHING_HELD_BACK, sink: Sink = Sink.BUS
    ) -> AsyncIterator[Claim]:
        await self.may_claim.wait()
        async with self.inner.claim_due(now, limit, held_back, sink) as claim:
            self.has_claimed.set()
            yield claim

    async def next_due_at(self, after: datetime, sink: Sink = Sink.BUS) -> datetime | None:
        return await self.inner.next_due_at(after, sink)


async def fire(store: LateStore, bus: RecordingBus) -> int:
    """Look once and mark; return how many timers wait for commands."""
    firing = publish_due_timers(
        store=store,
        source=bus,
        sink=bus,
        clock=bus.inner.clock,
        limit=10,
        hold_back=HoldBack(),
        catch_up=CatchUp(timedelta(seconds=30)),
        questions=OpenQuestions(),
    )
    async with firing as fired:
        return (await fired.mark()).catch_up.waiting


@pytest.mark.parametrize("applied", ["after the claim", "before the claim"])
async def test_a_command_in_time_that_another_instance_applies_while_the_broker_is_asked_counts(
    applied: str, url: str
) -> None:
    clock = ManualClock()
    bus = RecordingBus(MemoryEventBus(clock, Subjects("timer")))

    async def handle_next(store: PostgresTimerStore) -> None:
        batch = await bus.receive()
        await schedule_timers(batch=batch, store=store, clock=clock, questions=OpenQuestions())

    async with group(url, 2, limits=PATIENT) as (first, second), asyncio.TaskGroup() as tasks:
        store = LateStore(first)
        due = messages.encode(messages.schedule("acme", "order-1", at(10)))
        bus.inner.send("timer.commands.acme.ScheduleTimer", due)
        await handle_next(first)
        bus.inner.send("timer.commands.acme.CancelTimer", messages.encode(messages.cancel("acme", "order-1")))
        clock.advance(11)

        async def the_other_applies_it() -> None:
            if applied == "before the claim":
                await handle_next(second)  # It acknowledges, too: the broker tells of nothing that waits.
                store.may_claim.set()
                return
            store.may_claim.set()
            await store.has_claimed.wait()
            tasks.create_task(handle_next(second))
            await until_waiting(url)

        bus.before_telling = the_other_applies_it
        assert await fire(store, bus) == (1 if applied == "after the claim" else 0)

    assert (bus.published, bus.inner.pending) == ([], {})
    assert await query(url, "SELECT state FROM timer_schedules") == [("Cancelled",)]


async def test_a_command_that_waits_too_long_for_a_claim_is_tried_again_later(
    url: str,
) -> None:
    async with group(url, 2, limits=PostgresLimits(lock_timeout_s=0.1)) as (first, second):
        await first.apply([schedule("order-1", -1, number=1)], NOW)

        async with first.claim_due(NOW, 10):
            with pytest.raises(StoreBusy, match="lock timeout"):
                await second.apply([schedule("order-1", 60, number=2)], NOW)

        assert await second.apply([schedule("order-1", 60, number=2)], NOW) == [Outcome.RESCHEDULED]


@pytest.mark.parametrize("newest_first", [False, True])
async def test_whoever_comes_first_the_newest_command_wins(
    pair: list[PostgresTimerStore], newest_first: bool
) -> None:
    names = [f"order-{n:03}" for n in range(200)]
    older: list[Command] = [
        schedule(name, 10, number=n + 1, correlation="older", trace="older") for n, name in enumerate(names)
    ]
    # In the other direction, so that the two batches meet in the middle.
    newer: list[Command] = [schedule(name, 20, number=n + 1000) for n, name in enumerate(reversed(names))]
    batches = [newer, older] if newest_first else [older, newer]

    await asyncio.gather(*[each.apply(batch, NOW) for each, batch in zip(pair, batches, strict=True)])

    found = await pair[0].list_timers(TimerQuery(ACME, limit=1000))
    assert [timer.due_at for timer in found] == [at(20)] * 200
    assert {timer.position.sequence for timer in found} == set(range(1000, 1200))
    assert {(timer.correlation_id, timer.trace) for timer in found} == {("older", Trace("older", None))}


async def test_many_batches_over_the_same_timers_never_wait_for_each_other_in_a_ring(url: str) -> None:
    names = [f"order-{n:02}" for n in range(40)]

    def batch(n: int) -> list[Command]:
        ordered = names[n % 40 :] + names[: n % 40]
        return [schedule(name, n, number=n * 100 + m + 1) for m, name in enumerate(ordered)]

    async with group(url, 4) as instances:
        for turn in range(5):
            await asyncio.gather(*[
                each.apply(batch(turn * 4 + n), NOW) for n, each in enumerate(instances)
            ])  # fmt: skip

        found = await instances[0].list_timers(TimerQuery(ACME, limit=1000))

    assert {timer.due_at for timer in found} == {at(19)}


async def test_rows_are_locked_in_the_order_of_their_keys(store: PostgresTimerStore, url: str) -> None:
    for command in reversed(due(40)):  # One by one, so that they lie in the other order.
        await store.apply([command], NOW)
    blocker = await asyncpg.connect(url)
    await blocker.execute("BEGIN; SELECT FROM timer_schedules WHERE service_call_id = 'order-000' FOR UPDATE")

    later: list[Command] = [schedule(f"order-{n:03}", 60, number=1000 - n) for n in range(40)]
    applying = asyncio.ensure_future(store.apply(later, NOW))
    await until_waiting(url)
    [(free,)] = await query(
        url, "SELECT count(*) FROM (SELECT FROM timer_schedules FOR UPDATE SKIP LOCKED) AS free"
    )
    await blocker.close()

    # It waits for the first key, and has none of those behind it.
    assert free == 39
    assert await applying == [Outcome.RESCHEDULED] * 40


async def test_rows_are_inserted_in_the_order_of_their_keys(store: PostgresTimerStore, url: str) -> None:
    insert = """
        INSERT INTO timer_schedules (tenant_id, service_call_id, state, due_at, generation, registered_at,
          stream_created_us, stream_sequence)
        SELECT 'acme', 'order-' || lpad(n::text, 3, '0'), 'Scheduled', '2026-01-01T12:00:00Z', 1, now(), 1, 1
        FROM generate_series($1::integer, $2::integer) AS n
    """
    blocker, other = await asyncpg.connect(url), await asyncpg.connect(url)
    await blocker.execute("BEGIN")
    await blocker.execute(insert, 0, 0)

    applying = asyncio.ensure_future(store.apply(list(reversed(due(40))), NOW))
    await until_waiting(url)
    await other.execute("BEGIN; SET LOCAL lock_timeout = '1s'")
    await other.execute(insert, 1, 39)  # Nobody has inserted any of them.
    await other.close()
    await blocker.close()

    assert await applying == [Outcome.SCHEDULED] * 40


async def test_a_batch_whose_commit_was_answered_by_nobody_is_not_applied_twice(url: str) -> None:
    async with Gateway(url) as gateway, opened(gateway.url) as store:
        gateway.lose_next_commit = True
        with pytest.raises(StoreBusy):
            await store.apply([schedule("order-1", 60, number=1), cancel("order-2", number=2)], NOW)

        again = await store.apply([schedule("order-1", 60, number=1), cancel("order-2", number=2)], at(5))

        assert again == [Outcome.SUPERSEDED] * 2
        assert await store.get(ACME, call("order-1")) == scheduled_timer("order-1", 60)


async def test_a_timer_purged_between_two_looks_is_scheduled_anew(
    store: PostgresTimerStore, url: str
) -> None:
    await store.apply([cancel("order-1", number=1)], NOW)
    blocker = await asyncpg.connect(url)
    await blocker.execute("BEGIN; DELETE FROM timer_schedules")

    applying = asyncio.ensure_future(store.apply([schedule("order-1", 60, number=2)], at(1)))
    await until_waiting(url)
    await blocker.execute("COMMIT")
    await blocker.close()

    assert await applying == [Outcome.SCHEDULED]
    assert await store.get(ACME, call("order-1")) == scheduled_timer("order-1", 60, registered_s=1, number=2)


# Calls


@pytest.fixture
async def clock() -> AsyncIterator[DatabaseClock]:
    """A database whose clock the test sets."""
    async with database_clock() as it:
        await it.set(NOW)
        yield it


async def test_a_request_neither_changes_nor_waits_for_a_timer_that_an_instance_has_claimed(
    clock: DatabaseClock,
) -> None:
    limits = PostgresLimits(lock_timeout_s=3600.0)
    async with group(clock.url, 2, limits=limits) as (first, second), asyncio.timeout(PATIENCE_S):
        await first.apply([schedule("order-1", 0, number=1)], at(-10))

        async with first.claim_due(NOW, 10):
            # By this caller's clock the timer is not due yet.
            await clock.set(at(-10))
            outcomes = [await asked(each, cancel("order-1"), now=at(-5)) for each in (first, second)]

        assert outcomes == [[Outcome.DUE]] * 2


async def test_a_timer_that_was_moved_while_it_is_fired_is_open_to_calls_only_after_that(
    pair: list[PostgresTimerStore],
) -> None:
    # Its event may be on the way: a caller who is told `cancelled` must not receive it afterwards.
    first, second = pair
    await first.apply([schedule("order-1", -1, number=1), schedule("order-2", -1, number=2)], NOW)
    stop = cancel("order-1", number=99)

    async with first.claim_due(NOW, 10):
        await first.apply([schedule("order-1", 10**9, number=3)], NOW)
        during = [await asked(each, stop, now=NOW) for each in pair]
        await first.apply([schedule("order-2", 10**9, number=4)], NOW)
        during += [await asked(each, stop, now=NOW) for each in pair]
    after = await asked(second, stop, now=NOW)

    assert during == [[Outcome.DUE]] * 4
    assert after == [Outcome.CANCELLED]


async def test_a_timer_that_is_due_by_the_database_is_due_for_every_request(clock: DatabaseClock) -> None:
    async with opened(clock.url) as store:
        await store.apply([schedule("order-1", 0, number=1)], at(-10))

        # Another instance may have claimed it, published it, and died before it could mark it.
        outcome = await asked(store, cancel("order-1"), now=at(-5))

        assert outcome == [Outcome.DUE]


async def test_a_call_before_the_due_time_by_both_clocks_is_carried_out(clock: DatabaseClock) -> None:
    async with opened(clock.url) as store:
        await store.apply([schedule("order-1", 0, number=1)], at(-10))
        await clock.set(at(-0.001))

        outcome = await asked(store, cancel("order-1"), now=at(-0.001))
        await clock.set(at(99))

        assert outcome == [Outcome.CANCELLED]
        assert await claimed_names(store, now_s=99) == []


async def test_calls_of_many_instances_for_one_timer_are_all_answered(url: str) -> None:
    async with group(url, 3) as instances:

        async def ask(store: PostgresTimerStore, n: int) -> list[Outcome]:
            return await asked(store, schedule("order-1", 10**9 + n), now=NOW)

        answers = await asyncio.gather(*[ask(each, n) for n, each in enumerate(instances * 5)])

        [timer] = await instances[0].list_timers(TimerQuery(ACME))
    outcomes = Counter(outcome for [outcome] in answers)
    assert outcomes[Outcome.SCHEDULED] == 1
    # Those that met another call are asked to come again; the others moved the timer.
    assert outcomes[Outcome.RESCHEDULED] == timer.generation - 1
    assert outcomes.total() == 15


# Clocks that differ


async def test_an_instance_whose_clock_is_ahead_fires_nothing_early(clock: DatabaseClock) -> None:
    async with opened(clock.url) as ahead:
        await ahead.apply([schedule("order-1", 5)], NOW)
        seen = []

        for database_s in (0, 4.999, 5):
            await clock.set(at(database_s))
            seen.append(await claimed_names(ahead, now_s=60))

        assert seen == [[], [], ["order-1"]]


async def test_an_instance_whose_clock_is_behind_fires_nothing_before_its_own_time(
    clock: DatabaseClock,
) -> None:
    async with opened(clock.url) as behind:
        await behind.apply([schedule("order-1", 5)], NOW)
        await clock.set(at(60))

        assert [await claimed_names(behind, now_s=now_s) for now_s in (0, 4.999, 5)] == [[], [], ["order-1"]]


async def test_an_instance_whose_clock_is_ahead_knows_when_to_look(clock: DatabaseClock) -> None:
    async with opened(clock.url) as ahead:
        await ahead.apply([schedule("order-1", 5, number=1), schedule("order-2", 100, number=2)], NOW)

        # It is a minute ahead: what is due at 5 s by the database is due at 65 s by its own clock.
        assert await ahead.next_due_at(at(60)) == at(65)


async def test_what_comes_due_by_the_database_right_after_the_look_is_looked_for_at_once(
    clock: DatabaseClock,
) -> None:
    async with opened(clock.url) as store:
        await store.apply([schedule("order-1", 0)], at(-10))
        await clock.set(at(-0.001))
        found = await claimed_names(store, now_s=30)
        await clock.set(at(0.002))

        next_look = await store.next_due_at(at(30))

        assert found == []
        assert next_look is not None
        assert next_look <= at(30)


async def test_an_instance_whose_clock_is_behind_goes_by_its_own(clock: DatabaseClock) -> None:
    async with opened(clock.url) as behind:
        await behind.apply([schedule("order-1", 5)], NOW)
        await clock.set(at(60))

        assert await behind.next_due_at(NOW) == at(5)


async def test_the_last_millisecond_of_all_can_come_next_on_a_clock_that_is_ahead(
    clock: DatabaseClock,
) -> None:
    last = datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)
    async with opened(clock.url) as ahead:
        await ahead.apply([replace(schedule("order-1"), due_at=last)], NOW)

        assert await ahead.next_due_at(at(60)) == last

        # A minute before, the two clocks together come to the last millisecond exactly.
        await ahead.apply([replace(schedule("order-1", number=2), due_at=last - timedelta(minutes=1))], NOW)
        assert await ahead.next_due_at(at(60)) == last


async def test_the_skew_counts_from_the_middle_of_the_question(clock: DatabaseClock) -> None:
    questions = count(0)
    async with open_postgres_store(clock.url, lambda: at(10 * next(questions))) as store:
        await clock.set(NOW)
        await store.measure_skew()

        assert store.skew_s % 10 == 5


@pytest.mark.parametrize("ahead_s", [-90, 0, 7.5])
async def test_the_skew_is_measured_against_the_database(clock: DatabaseClock, ahead_s: float) -> None:
    async with opened(clock.url, now=at(ahead_s)) as store:
        at_start = store.skew_s
        await clock.set(at(1))
        await store.count(at(ahead_s))

        assert (at_start, store.skew_s) == (ahead_s, ahead_s - 1)


# Faults


async def fail_with(url: str, code: str) -> None:
    """Let the server refuse every write with an error of this code."""
    await execute(
        url,
        "CREATE OR REPLACE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS"
        f" $$BEGIN RAISE EXCEPTION 'as the test asked' USING ERRCODE = '{code}'; END$$",
        "CREATE OR REPLACE TRIGGER fail BEFORE INSERT OR UPDATE OR DELETE ON timer_schedules"
        " FOR EACH STATEMENT EXECUTE FUNCTION fail()",
    )


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("40001", StoreBusy),
        ("40P01", StoreBusy),
        ("53200", StoreBusy),
        ("53300", StoreBusy),
        ("55P03", StoreBusy),
        ("57014", StoreBusy),
        ("57P01", StoreBusy),
        ("57P03", StoreBusy),
        ("25006", StoreBusy),
        ("08006", StoreBusy),
        ("53100", StoreFull),
        ("42501", StoreFailed),
        ("XX001", StoreFailed),
        ("58030", StoreFailed),
    ],
)
async def test_the_kind_of_a_fault_decides_whether_to_try_again(
    store: PostgresTimerStore, url: str, code: str, error: type[TimerServiceError]
) -> None:
    await store.apply([schedule("order-1", -1)], NOW)
    await fail_with(url, code)
    commands: list[Command] = [schedule("order-2")]

    with pytest.raises(error, match=f"as the test asked \\({code}\\)"):
        await store.apply(commands, NOW)
    async with store.claim_due(NOW, 10) as claim:
        with pytest.raises(error):
            await claim.mark_reached([timer.reached(NOW) for timer in claim.timers])
    with pytest.raises(error):
        await store.purge(NOW, 10)
    await execute(url, "DROP TRIGGER fail ON timer_schedules")

    assert await store.apply(commands, NOW) == [Outcome.SCHEDULED]
    assert await claimed_names(store) == ["order-1"]


async def test_the_store_recovers_by_itself_when_every_connection_was_cut(
    store: PostgresTimerStore, url: str
) -> None:
    await store.apply(due(3), NOW)
    await store.get(ACME, call("order-000"))

    await end_sessions(url)

    async def works() -> bool:
        with suppress(TransientError):
            await store.apply([schedule("after", -1, number=99)], NOW)
            await store.count(NOW)
            return len(await claimed_names(store)) == 4
        return False

    await until(works, "the store to recover")


async def test_a_restart_of_the_server_is_outlived() -> None:
    server = PostgresServer().start()
    try:
        async with opened(server.url()) as store:
            await store.apply(due(3), NOW)
            server.kill()
            with pytest.raises(StoreBusy):
                await store.apply([schedule("during", -1, number=98)], NOW)
            with pytest.raises(StoreBusy):
                await claimed_names(store)
            server.start()

            assert await store.apply([schedule("after", -1, number=99)], NOW) == [Outcome.SCHEDULED]
            assert len(await claimed_names(store)) == 4
    finally:
        server.remove()


async def test_a_mark_outlives_the_loss_of_its_claim(store: PostgresTimerStore, url: str) -> None:
    await store.apply(due(3), NOW)

    async with store.claim_due(NOW, 10) as claim:
        await end_sessions(url)

        async def marked() -> bool:
            with suppress(TransientError):
                return await claim.mark_reached([timer.reached(NOW) for timer in claim.timers]) == 3
            return False

        await until(marked, "the timers to be marked")


async def test_a_replica_is_busy_and_used_again_once_it_takes_writes() -> None:
    async with fresh_database() as url, opened(url) as store:
        await store.apply([schedule("order-1", -1)], NOW)
        name = url.rpartition("/")[2].partition("?")[0]
        await execute(url, f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        await end_sessions(url)

        async def is_read_only() -> bool:
            with suppress(StoreBusy):
                await store.apply([schedule("order-2", 60)], NOW)
                return False
            return True

        await until(is_read_only, "the store to be read-only")
        with pytest.raises(StoreBusy, match="read-only"):
            await store.apply([schedule("order-2", 60)], NOW)
        with pytest.raises(StoreBusy, match="read-only"):
            await claimed_names(store)
        readable = await store.get(ACME, call("order-1"))
        await execute(
            url,
            "SET default_transaction_read_only = off",
            f"ALTER DATABASE {name} RESET default_transaction_read_only",
        )

        # No session was ended: the store itself parts with those that lead to a server without writes.
        assert await store.apply([schedule("order-2", 60)], NOW) == [Outcome.SCHEDULED]
        assert readable == scheduled_timer("order-1", -1)


async def test_a_server_without_a_free_connection_is_busy() -> None:
    async with fresh_database() as owner_url:
        async with opened(owner_url):
            pass
        name = f"limited_{owner_url.rpartition('/')[2].partition('?')[0]}"
        await execute(
            owner_url,
            f"CREATE ROLE {name} LOGIN PASSWORD 'secret' CONNECTION LIMIT 2",
            f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {name}",
        )
        try:
            async with opened(re.sub(r"//[^@/]*@", f"//{name}:secret@", owner_url)) as store:
                await store.apply(due(3), NOW)
                async with store.claim_due(NOW, 1):
                    with pytest.raises(StoreBusy, match="too many connections"):
                        await store.apply([schedule("order-9")], NOW)

                assert await store.apply([schedule("order-9")], NOW) == [Outcome.SCHEDULED]
        finally:
            await execute(owner_url, f"DROP OWNED BY {name}", f"DROP ROLE {name}")


async def test_a_store_whose_own_connections_are_all_in_use_is_busy(url: str) -> None:
    async with opened(url, limits=PostgresLimits(acquire_timeout_s=GIVEN_UP_AFTER_S)) as store:
        await store.apply(due(3), NOW)

        async with AsyncExitStack() as stack:
            for _ in range(WORK_CONNECTIONS):
                await stack.enter_async_context(store.claim_due(NOW, 1))
            with pytest.raises(StoreBusy, match="no answer in time"):
                await store.purge(NOW, 1)
            # Questions have connections of their own.
            found = await store.list_timers(TimerQuery(ACME))

        assert len(found) == 3
        assert await store.purge(NOW, 1) == 0


async def test_a_cancelled_look_leaves_the_connection_usable(store: PostgresTimerStore, url: str) -> None:
    await store.apply([schedule("order-1", 60, number=1)], NOW)
    blocker = await asyncpg.connect(url)
    await blocker.execute("BEGIN; SELECT FROM timer_schedules FOR UPDATE")
    for _ in range(WORK_CONNECTIONS + 1):
        waiting = asyncio.ensure_future(store.apply([schedule("order-1", 90, number=2)], NOW))
        await until_waiting(url)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    await blocker.close()

    assert await store.apply([schedule("order-1", 90, number=2)], NOW) == [Outcome.RESCHEDULED]


# Hints to other instances


async def test_a_nearer_timer_is_told_to_every_instance_that_listens(url: str) -> None:
    clock = ManualClock()
    heard: asyncio.Queue[datetime] = asyncio.Queue()
    async with (
        open_postgres_store(url, clock.now) as teller,
        open_postgres_store(url, clock.now) as listener,
        listener.listen(heard.put_nowait),
    ):
        async with asyncio.timeout(PATIENCE_S):
            first = await heard.get()  # Look now: the connection is new.
            await teller.apply([schedule("order-1", 60, number=1)], NOW)
            told = [await heard.get()]
            await teller.apply([schedule("order-2", 90, number=2)], NOW)
            await asked(teller, schedule("order-3", 30, number=2), now=NOW)
            told.append(await heard.get())
            clock.step_to(at(31))
            await teller.apply([schedule("order-4", 95, number=4)], NOW)
            told.append(await heard.get())

    assert first == START
    assert told == [at(60), at(30), at(95)]


async def test_no_command_waits_for_a_hint_and_only_the_nearest_is_told(
    url: str,
) -> None:
    limits = PostgresLimits(acquire_timeout_s=3600.0)
    heard: asyncio.Queue[datetime] = asyncio.Queue()
    async with (
        opened(url, limits=limits) as teller,
        opened(url) as listener,
        listener.listen(heard.put_nowait),
    ):
        await asyncio.wait_for(heard.get(), PATIENCE_S)
        async with AsyncExitStack() as busy, asyncio.timeout(PATIENCE_S):
            for _ in range(ANSWER_CONNECTIONS):
                await busy.enter_async_context(teller._answers.connection())
            before = len(asyncio.all_tasks())

            outcomes = [
                await teller.apply([schedule(f"order-{n}", 100 - n, number=n + 1)], NOW) for n in range(50)
            ]

            grown = len(asyncio.all_tasks()) - before
        told = [await asyncio.wait_for(heard.get(), PATIENCE_S) for _ in range(2)]

    assert outcomes == [[Outcome.SCHEDULED]] * 50
    assert grown <= 0
    # The first was on its way; of the rest only the nearest is of any use.
    assert told == [at(100), at(51)]
    assert heard.empty()


async def test_a_hint_that_could_not_be_told_does_not_silence_the_next(
    url: str,
) -> None:
    limits = PostgresLimits(acquire_timeout_s=GIVEN_UP_AFTER_S)
    heard: asyncio.Queue[datetime] = asyncio.Queue()
    async with (
        opened(url, limits=limits) as teller,
        opened(url) as listener,
        listener.listen(heard.put_nowait),
    ):
        await asyncio.wait_for(heard.get(), PATIENCE_S)
        async with AsyncExitStack() as busy:
            for _ in range(ANSWER_CONNECTIONS):
                await busy.enter_async_context(teller._answers.connection())
            await teller.apply([schedule("order-1", 60, number=1)], NOW)

            async def given_up() -> bool:
                return teller._hints._announced is None

            await until(given_up, "the hint to be given up")

        await teller.apply([schedule("order-2", 90, number=2)], NOW)

        assert await asyncio.wait_for(heard.get(), PATIENCE_S) == at(90)


async def test_closing_ends_the_telling_of_hints(url: str) -> None:
    before = asyncio.all_tasks()

    async with opened(url) as store:
        await store.apply([schedule("order-1", 60)], NOW)

    assert asyncio.all_tasks() == before


async def test_a_listener_connects_again_and_asks_for_a_look(
    url: str,
) -> None:
    heard: asyncio.Queue[datetime] = asyncio.Queue()
    async with (
        opened(url, limits=PostgresLimits(reconnect_pause_s=0.01)) as store,
        store.listen(heard.put_nowait),
        asyncio.timeout(PATIENCE_S),
    ):
        await heard.get()

        await end_sessions(url)

        assert await heard.get() == START


async def test_what_others_send_on_the_channel_does_no_harm(url: str, store: PostgresTimerStore) -> None:
    heard: asyncio.Queue[datetime] = asyncio.Queue()
    async with store.listen(heard.put_nowait), asyncio.timeout(PATIENCE_S):
        await heard.get()
        for payload in ("", "soon", "9" * 40, "1767268860000"):
            await query(url, "SELECT pg_notify('timer_due_' || current_schema(), $1)", payload)

        assert await heard.get() == at(60)


# Behind a pooler in transaction mode


async def test_the_store_works_where_every_transaction_has_another_session() -> None:
    name = "behind_a_pooler"
    server = local_server().url()
    await execute(server, f"DROP DATABASE IF EXISTS {name}", f"CREATE DATABASE {name}")
    heard: list[datetime] = []
    async with (
        TransactionPooler(local_server().url(name)) as pooler,
        opened(pooler.url, statement_cache_size=0) as store,
        store.listen(heard.append),
    ):
        for turn in range(3):
            await store.apply(
                [schedule(f"order-{n}", n - 50, number=turn * 100 + n + 1) for n in range(50)], NOW
            )
        await asked(store, cancel("order-3"), now=at(-100))
        async with store.claim_due(NOW, 20) as claim:
            await store.apply([cancel("order-7", number=999)], NOW)
            marked = await claim.mark_reached([timer.reached(NOW) for timer in claim.timers])
        purged = await store.purge(at(99), 5)
        counts = await store.count(NOW)
        found = await store.list_timers(TimerQuery(ACME, limit=100))
        looked_up = await store.get(ACME, call("order-49"))

    assert (marked, purged, counts.pending, counts.overdue, len(found)) == (19, 5, 30, 30, 45)
    assert looked_up is not None
    await execute(server, f"DROP DATABASE {name} WITH (FORCE)")
