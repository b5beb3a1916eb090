"""What every store remembers of the command streams; ports/stream_epochs.py says it in words."""

import asyncio
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Final, Protocol

import pytest

from tests.support.postgres import migrated_schema
from tests.support.timers import ACME, at, call, cancel, schedule
from timer_service.adapters.migrations import load_migrations
from timer_service.adapters.postgres.opening import open_postgres_store
from timer_service.adapters.sqlite.opening import open_sqlite_store
from timer_service.domain.epochs import StreamEpoch
from timer_service.domain.errors import StoreFailed
from timer_service.domain.messages import Command, Position
from timer_service.ports.stream_epochs import StreamEpochs
from timer_service.ports.timer_store import TimerStore

FIRST: Final = StreamEpoch(1000, 1000)
SECOND: Final = StreamEpoch(1001, 1000, after_sequence=22, after_us=260, last_sequence=22, last_stored_us=260)


class Store(TimerStore, StreamEpochs, Protocol):
    """Both."""


def stored(command: Command, sequence: int, *, epoch: int = 1000) -> Command:
    """Return a command as the broker stored it: message n at 10 n."""
    return replace(command, position=Position(epoch, sequence, 10 * sequence))


async def test_there_are_no_epochs_at_first(store: Store) -> None:
    assert list(await store.stream_epochs()) == []


async def test_epochs_are_kept_whole_and_in_their_order(store: Store) -> None:
    assert await store.begin_epoch(SECOND)
    assert await store.begin_epoch(FIRST)

    assert list(await store.stream_epochs()) == [FIRST, SECOND]


async def test_of_two_who_begin_an_epoch_one_does(store: Store) -> None:
    begun = await asyncio.gather(*[store.begin_epoch(replace(FIRST, after_sequence=n)) for n in range(5)])

    assert sum(begun) == 1
    [kept] = await store.stream_epochs()
    assert kept.after_sequence == begun.index(True)


async def test_the_newest_command_of_a_batch_is_noted_with_it(store: Store) -> None:
    await store.begin_epoch(FIRST)

    await store.apply([stored(schedule("a"), 7), stored(cancel("b"), 9), stored(schedule("c"), 8)], at(0))
    await store.apply([stored(schedule("d"), 4)], at(0))

    assert list(await store.stream_epochs()) == [replace(FIRST, last_sequence=9, last_stored_us=90)]


async def test_every_epoch_has_its_own_newest_command(store: Store) -> None:
    await store.begin_epoch(FIRST)
    await store.begin_epoch(SECOND)

    await store.apply([stored(schedule("a"), 20), stored(schedule("b"), 30, epoch=1001)], at(0))

    assert list(await store.stream_epochs()) == [
        replace(FIRST, last_sequence=20, last_stored_us=200),
        replace(SECOND, last_sequence=30, last_stored_us=300),
    ]


async def test_a_request_notes_where_the_stream_ended_at_its_time(store: Store) -> None:
    await store.begin_epoch(FIRST)

    await store.decide([stored(schedule("a"), 7)], at(0))

    assert list(await store.stream_epochs()) == [replace(FIRST, last_sequence=7, last_stored_us=70)]


async def test_epochs_outlive_a_restart_on_sqlite(tmp_path: Path) -> None:
    for _ in range(2):
        async with open_sqlite_store(tmp_path / "timers.db", lambda: at(0)) as store:
            await store.begin_epoch(FIRST)
            await store.apply([stored(schedule("a"), 7)], at(0))

            assert await store.stream_epochs() == [replace(FIRST, last_sequence=7, last_stored_us=70)]


async def test_instances_that_share_a_database_share_its_epochs() -> None:
    async with (
        migrated_schema() as url,
        open_postgres_store(url, lambda: at(0)) as one,
        open_postgres_store(url, lambda: at(0)) as other,
    ):
        begun = await asyncio.gather(one.begin_epoch(FIRST), other.begin_epoch(FIRST))
        await asyncio.gather(
            *[
                (one, other)[n % 2].apply([stored(schedule(f"order-{n}"), n)], at(0))
                for n in [5, 3, 20, 11, 8, 19]
            ]
        )

        assert sorted(begun) == [False, True]
        assert await one.stream_epochs() == [replace(FIRST, last_sequence=20, last_stored_us=200)]
        assert await other.stream_epochs() == await one.stream_epochs()


async def test_a_database_of_an_older_version_knows_what_it_has_applied(
    tmp_path: Path,
) -> None:
    before = [migration for migration in load_migrations("sqlite") if migration.version < 3]
    with pytest.raises(StoreFailed):  # The program is newer than the schema that it was made to leave behind.
        async with open_sqlite_store(tmp_path / "timers.db", lambda: at(0), migrations=before) as store:
            await store.stream_epochs()
    with closing(sqlite3.connect(tmp_path / "timers.db")) as link:
        for n in range(1, 4):
            link.execute(
                "INSERT INTO timer_schedules (tenant_id, service_call_id, state, due_at, generation, "
                "registered_at, stream_created_us, stream_sequence) "
                "VALUES ('acme', ?, 'Scheduled', ?, 1, ?, ?, ?)",
                (f"order-{n}", "2026-01-01T00:00:00.000Z", "2026-01-01T00:00:00.000Z", 1000 + n // 3, 10 * n),
            )
        link.commit()

    async with open_sqlite_store(tmp_path / "timers.db", lambda: at(0)) as store:
        assert await store.stream_epochs() == [
            StreamEpoch(1000, 1000, last_sequence=20),
            StreamEpoch(1001, 1001, last_sequence=30),
        ]
        timer = await store.get(ACME, call("order-1"))

    assert timer is not None
    assert timer.due_position == timer.position == Position(1000, 10)
