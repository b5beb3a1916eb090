"""What only the SQLite store promises: durability, one owner, a schema that holds, short searches."""

import asyncio
import errno
import fcntl
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import threading
import zipfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, cast

import aiosqlite
import pytest
from structlog.testing import capture_logs

from tests.support.patience import PATIENCE_S
from tests.support.sqlite import Hook, due_ms
from tests.support.steps import counted
from tests.support.timers import (
    ACME,
    GLOBEX,
    asked,
    at,
    call,
    cancel,
    reached,
    schedule,
    scheduled_timer,
)
from timer_service.adapters.migrations import Migration, load_migrations
from timer_service.adapters.sqlite import connections, marks, schema, statements
from timer_service.adapters.sqlite.backup import back_up
from timer_service.adapters.sqlite.due_tenants import SCAN, SCAN_END, WALK
from timer_service.adapters.sqlite.errors import translate
from timer_service.adapters.sqlite.limits import BUSY_TIMEOUT_MS, SqliteLimits
from timer_service.adapters.sqlite.looks import (
    FIND_DUE,
    FIND_DUE_IN_TURNS,
    FIND_DUE_OF_TENANT,
    FIND_FIRST_IN_TURNS,
    FIND_NEXT,
)
from timer_service.adapters.sqlite.opening import open_sqlite_store, require_sqlite
from timer_service.adapters.sqlite.pages import LIST_BY_CORRELATION, LIST_OVER, LIST_PENDING
from timer_service.adapters.sqlite.store import SqliteTimerStore
from timer_service.domain.errors import (
    StoreBusy,
    StoreFailed,
    StoreFull,
    StoreInUse,
    StoreTooNew,
    TimerServiceError,
)
from timer_service.domain.timer import Outcome, TimerState
from timer_service.ports.timer_store import TimerQuery
from timer_service.testing import START

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "timers.db"


@asynccontextmanager
async def opened(path: Path, now: datetime = START, **options: Any) -> AsyncIterator[SqliteTimerStore]:
    async with open_sqlite_store(path, lambda: now, **options) as store:
        yield store


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteTimerStore]:
    async with opened(path) as it:
        yield it


async def value(connection: aiosqlite.Connection, sql: str) -> Any:
    rows = list(await connection.execute_fetchall(sql))
    return rows[0][0]


def rows_in(path: Path, sql: str) -> list[tuple[Any, ...]]:
    """Read the file as another program would."""
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as link:
        return link.execute(sql).fetchall()


# How it is opened


async def test_a_start_that_is_cancelled_leaves_no_thread_behind(tmp_path: Path) -> None:
    """Its thread would speak to an event loop that is closed."""
    asked_for, allowed = threading.Event(), threading.Event()

    def slow(address: str, **options: Any) -> aiosqlite.Connection:
        def connect() -> sqlite3.Connection:
            asked_for.set()
            allowed.wait(PATIENCE_S)
            return cast("sqlite3.Connection", sqlite3.connect(address, **options))

        return aiosqlite.Connection(connect, iter_chunk_size=64)

    async def start() -> None:
        async with connections.connect(tmp_path / "timers.db", driver=slow):
            pass

    before = set(threading.enumerate())
    starting = asyncio.ensure_future(start())
    while not asked_for.is_set():
        await asyncio.sleep(0)
    starting.cancel()
    for _ in range(10):
        await asyncio.sleep(0)
    ended_before_its_thread = starting.done()
    allowed.set()
    await asyncio.wait({starting}, timeout=PATIENCE_S)

    assert not ended_before_its_thread
    assert starting.cancelled()
    for thread in set(threading.enumerate()) - before:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


@pytest.mark.parametrize(
    ("pragma", "expected"),
    [
        ("journal_mode", "wal"),
        ("synchronous", 2),
        ("foreign_keys", 1),
        ("busy_timeout", BUSY_TIMEOUT_MS),
        ("auto_vacuum", 2),
        ("journal_size_limit", 67_108_864),
    ],
)
async def test_what_is_written_is_written_safely(
    store: SqliteTimerStore, pragma: str, expected: object
) -> None:
    assert await value(store._writer.connection, f"PRAGMA {pragma}") == expected


async def test_who_writes_has_a_large_cache_and_who_reads_a_small_one(store: SqliteTimerStore) -> None:
    assert await value(store._writer.connection, "PRAGMA cache_size") == -8_192
    assert await value(store._reader, "PRAGMA cache_size") == -2_048


async def test_the_second_connection_waits_too_and_cannot_write(store: SqliteTimerStore) -> None:
    assert await value(store._reader, "PRAGMA busy_timeout") == BUSY_TIMEOUT_MS
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        await store._reader.execute("DELETE FROM timer_schedules")


async def test_what_was_kept_is_there_after_a_restart(path: Path) -> None:
    async with opened(path) as first:
        await first.apply([schedule("order-1", 60, correlation="request-1"), cancel("order-2")], at(0))
        kept = [await first.get(ACME, call(name)) for name in ("order-1", "order-2")]

    async with opened(path) as second:
        found = [await second.get(ACME, call(name)) for name in ("order-1", "order-2")]

    assert found == kept
    assert None not in found


async def test_what_was_kept_is_in_the_file_before_apply_returns(store: SqliteTimerStore, path: Path) -> None:
    await store.apply([schedule("order-1", 60)], at(0))

    assert rows_in(path, "SELECT tenant_id, service_call_id, due_at FROM timer_schedules") == [
        ("acme", "order-1", "2026-01-01T12:01:00.000Z")
    ]


async def test_a_path_with_strange_characters_is_that_path(tmp_path: Path) -> None:
    odd = tmp_path / "ti mers?mode=memory#%41.db"

    async with opened(odd) as store:
        await store.apply([schedule()], at(0))

    assert odd.exists()
    assert len(rows_in(odd, "SELECT 1 FROM timer_schedules")) == 1


# The schema

GOOD = {
    "tenant_id": "acme",
    "service_call_id": "order-1",
    "state": "Scheduled",
    "due_at": "2026-01-01T12:00:00.000Z",
    "generation": 1,
    "registered_at": "2026-01-01T12:00:00.000Z",
    "correlation_id": None,
    "reached_at": None,
    "cancelled_at": None,
    "stream_created_us": 1,
    "stream_sequence": 1,
}
T = "2026-01-01T12:00:00.000Z"
ENDED = {"state": "Reached", "reached_at": T}
WITHDRAWN = {"state": "Cancelled", "cancelled_at": T}


async def insert(store: SqliteTimerStore, row: dict[str, Any]) -> None:
    number = f"CASE :state WHEN 'Scheduled' THEN {due_ms(':due_at')} END"
    values = {name: f":{name}" for name in row}
    values.setdefault("pending_due_ms", number)
    await store._writer.connection.execute(
        f"INSERT INTO timer_schedules ({', '.join(values)}) VALUES ({', '.join(values.values())})", row
    )


async def passes_checks(store: SqliteTimerStore, row: dict[str, Any]) -> bool:
    try:
        await insert(store, row)
    except sqlite3.IntegrityError as error:
        return "CHECK" not in str(error)
    return True


async def test_the_table_is_strict_and_without_rowid(store: SqliteTimerStore) -> None:
    rows = await store._writer.connection.execute_fetchall(
        "SELECT strict, wr FROM pragma_table_list WHERE name = 'timer_schedules'"
    )

    assert list(rows) == [(1, 1)]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tenant_id": "x" * 64, "service_call_id": "😀" * 255, "correlation_id": "y" * 255},
        {"due_at": "0001-01-01T00:00:00.000Z"},
        {"due_at": "9999-12-31T23:59:59.999Z"},
        ENDED,
        WITHDRAWN,
        {**WITHDRAWN, "due_at": None, "generation": 0},
        {**WITHDRAWN, "due_at": None, "generation": 1},
        {"state": "Expired", "expired_at": T, "expires_after_ms": 0, "verdict": "Expired"},
        {"first_if_absent": 1},
    ],
    ids=repr,
)
async def test_the_schema_accepts_every_timer_there_can_be(
    store: SqliteTimerStore, changes: dict[str, Any]
) -> None:
    await insert(store, {**GOOD, **changes})

    assert await value(store._writer.connection, "SELECT count(*) FROM timer_schedules") == 1


BAD_TIMES = [
    "2026-01-01T12:00:00Z",
    "2026-01-01T12:00:00.00Z",
    "2026-01-01T12:00:00.0000Z",
    "2026-01-01T12:00:00.000",
    "2026-01-01T12:00:00.000z",
    "2026-01-01T12:00:00.000+00:00",
    "2026-01-01 12:00:00.000Z",
    "2026-01-01t12:00:00.000Z",
    "2026-1-01T12:00:00.000Z",
    "2026-21-01T12:00:00.000Z",
    "2026-01-41T12:00:00.000Z",
    "2026-01-01T32:00:00.000Z",
    "2026-01-01T12:60:00.000Z",
    "2026-01-01T12:00:60.000Z",
    "02026-01-01T12:00:00.000Z",
    " 2026-01-01T12:00:00.000Z",
    "2026-01-01T12:00:00.000Z ",
    "now",
    "",
]


@pytest.mark.parametrize(
    ("column", "base"),
    [
        ("due_at", {}),
        ("registered_at", {}),
        ("reached_at", ENDED),
        ("cancelled_at", WITHDRAWN),
        ("expired_at", {"state": "Expired"}),
    ],
)
async def test_the_schema_refuses_a_time_in_another_form(
    store: SqliteTimerStore, column: str, base: dict[str, Any]
) -> None:
    passed = [text for text in BAD_TIMES if await passes_checks(store, {**GOOD, **base, column: text})]

    assert passed == []


@pytest.mark.parametrize(
    "changes",
    [
        {"state": "scheduled"},
        {"state": "Done"},
        {"state": ""},
        {"state": None},
        {"state": "Reached"},
        {"state": "Cancelled"},
        {"reached_at": T},
        {"cancelled_at": T},
        {**ENDED, "cancelled_at": T},
        {"due_at": None},
        {**ENDED, "due_at": None},
        {"state": "Expired"},
        {"expired_at": T},
        {**ENDED, "expired_at": T},
        {"verdict": "Cancelled"},
        {"expires_after_ms": -1},
        {"first_if_absent": 0},
        {"pending_due_ms": None},
        {"pending_due_ms": 1_767_268_799_999},
        {**ENDED, "pending_due_ms": 1_767_268_800_000},
        {"due_at": "2026-19-01T12:00:00.000Z", "pending_due_ms": None},
        {"generation": -1},
        {"generation": None},
        {"generation": "one"},
        {"registered_at": None},
        {"tenant_id": ""},
        {"tenant_id": "x" * 65},
        {"tenant_id": None},
        {"service_call_id": ""},
        {"service_call_id": "x" * 256},
        {"correlation_id": ""},
        {"correlation_id": "x" * 256},
        {"stream_created_us": None},
        {"stream_sequence": "first"},
    ],
    ids=repr,
)
async def test_the_schema_refuses_a_timer_that_cannot_be(
    store: SqliteTimerStore, changes: dict[str, Any]
) -> None:
    with pytest.raises(sqlite3.IntegrityError):
        await insert(store, {**GOOD, **changes})


async def test_a_timer_has_one_row(store: SqliteTimerStore) -> None:
    await insert(store, GOOD)

    with pytest.raises(sqlite3.IntegrityError, match="UNIQUE"):
        await insert(store, GOOD)


async def test_a_batch_with_one_row_that_the_schema_refuses_is_not_kept_at_all(
    store: SqliteTimerStore,
) -> None:
    with pytest.raises(StoreFailed):
        await store.apply([schedule("order-1"), schedule("x" * 256, number=2)], at(0))

    assert await store.get(ACME, call("order-1")) is None
    assert await store.apply([schedule("order-1")], at(0)) == [Outcome.SCHEDULED]


# Migrations


def with_migrations(*more: str) -> list[Migration]:
    """Return the program's migrations and further ones."""
    known = load_migrations("sqlite")
    extra = [Migration(known[-1].version + n, f"extra_{n}", sql) for n, sql in enumerate(more, start=1)]
    return [*known, *extra]


def ledger(path: Path) -> list[tuple[Any, ...]]:
    return rows_in(path, "SELECT version, name, applied_at FROM timer_migrations ORDER BY version")


def test_migrations_of_both_stores_together_are_numbered_from_1_without_a_gap() -> None:
    names = {kind: [step.name for step in load_migrations(kind)] for kind in ("sqlite", "postgres")}
    versions = {step.version for kind in names for step in load_migrations(kind)}

    assert versions == set(range(1, len(versions) + 1))
    assert {kind: steps[0] for kind, steps in names.items()} == dict.fromkeys(names, "0001_timer_schedules")
    assert all(len({name[:4] for name in steps}) == len(steps) for steps in names.values())


async def test_a_new_file_gets_every_migration_and_remembers_it(path: Path) -> None:
    async with opened(path, at(1)):
        pass

    assert ledger(path) == [
        (m.version, m.name, "2026-01-01T12:00:01.000Z") for m in load_migrations("sqlite")
    ]


async def test_a_migration_is_applied_once(path: Path) -> None:
    async with opened(path, at(1)):
        pass
    before = ledger(path)

    async with opened(path, at(2)):
        pass

    assert ledger(path) == before


async def test_only_the_missing_migrations_are_applied_and_the_timers_stay(
    path: Path,
) -> None:
    async with opened(path, at(1)) as old:
        await old.apply([schedule("order-1", 60)], at(1))
    before = ledger(path)
    migrations = with_migrations("CREATE TABLE one (x);", "CREATE TABLE two (x);")

    async with opened(path, at(2), migrations=migrations) as new:
        timer = await new.get(ACME, call("order-1"))

    newest = before[-1][0]
    assert ledger(path) == [
        *before,
        (newest + 1, "extra_1", "2026-01-01T12:00:02.000Z"),
        (newest + 2, "extra_2", "2026-01-01T12:00:02.000Z"),
    ]
    assert timer == scheduled_timer("order-1", 60, registered_s=1)


async def test_a_migration_that_fails_leaves_nothing_behind(path: Path) -> None:
    async with opened(path, at(1)):
        pass
    before = ledger(path)
    migrations = with_migrations("CREATE TABLE half (x); CREATE TABLE half (x);")

    with pytest.raises(StoreFailed, match="half"):
        async with opened(path, at(2), migrations=migrations):
            pass

    assert ledger(path) == before
    assert rows_in(path, "SELECT name FROM sqlite_schema WHERE name = 'half'") == []


ENDLESS = """
CREATE TABLE endless AS
WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers) SELECT count(*) FROM numbers;
"""


async def test_a_start_that_is_broken_off_ends_its_migration_and_leaves_nothing_of_it(path: Path) -> None:
    async with opened(path, at(1)):
        pass
    before = ledger(path)

    async def start() -> None:
        async with opened(path, at(2), migrations=with_migrations(ENDLESS)):
            pass

    with capture_logs() as logs:
        starting = asyncio.ensure_future(start())
        while not logs:
            await asyncio.sleep(0)
        starting.cancel()
        await asyncio.wait({starting}, timeout=PATIENCE_S)

    assert starting.cancelled()
    assert [line["event"] for line in logs] == ["store.migrating"]
    assert ledger(path) == before


async def test_a_migration_says_what_it_does_unless_the_file_is_new(path: Path) -> None:
    with capture_logs() as logs:
        async with opened(path, at(1)):
            pass
        made = [line["event"] for line in logs]
        async with opened(path, at(2), migrations=with_migrations("CREATE TABLE one (x);")):
            pass

    assert made == ["store.created"]
    assert [(line["event"], line["migration"]) for line in logs[1:]] == [
        ("store.migrating", "extra_1"),
        ("store.migrated", "extra_1"),
    ]


async def test_a_file_of_a_newer_version_is_refused_and_left_as_it_is(path: Path) -> None:
    async with opened(path, at(1), migrations=with_migrations("CREATE TABLE one (x);")) as store:
        await store.apply([schedule("order-1")], at(1))
    before = ledger(path)
    newest = load_migrations("sqlite")[-1].version

    with pytest.raises(StoreTooNew) as caught:
        async with opened(path, at(2)):
            pass

    assert str(caught.value) == (
        f"{path} has schema version {newest + 1}, but this program knows only {newest}: "
        "run the newer version of timer-service that wrote it"
    )
    assert ledger(path) == before
    assert len(rows_in(path, "SELECT 1 FROM timer_schedules")) == 1


def test_a_program_without_its_migrations_says_so(tmp_path: Path) -> None:
    with pytest.raises(StoreFailed, match="migrations of this program are missing: reinstall it"):
        load_migrations("sqlite", tmp_path / "src" / "timer_service")


# What cannot be opened


async def fails_to_open(path: Path, **options: Any) -> str:
    with pytest.raises(StoreFailed) as caught:
        async with opened(path, **options):
            pass
    return str(caught.value)


async def test_a_file_that_is_no_database_is_refused_and_left_as_it_is(path: Path) -> None:
    path.write_text("These are my notes. " * 500)

    text = await fails_to_open(path)

    assert text.startswith(f"{path}: file is not a database")
    assert text.endswith("TIMER_DB_PATH must name a SQLite database or a new file")
    assert path.read_text() == "These are my notes. " * 500


async def make_corrupt(path: Path, first_page: int) -> None:
    """Keep some timers, then overwrite every page of the file from this one on."""
    async with opened(path) as store:
        await store.apply([schedule(f"order-{n}", number=n) for n in range(1, 2_000)], at(0))
    with path.open("r+b") as file:
        file.seek(4096 * (first_page - 1))
        file.write(b"\xa5" * (path.stat().st_size - file.tell()))


async def test_a_corrupt_schema_is_found_at_start(path: Path) -> None:
    await make_corrupt(path, 2)

    text = await fails_to_open(path)

    assert "the database is corrupt; restore it from a backup" in text


async def test_corrupt_rows_are_found_when_they_are_read(path: Path) -> None:
    async with opened(path) as store:
        pages = await value(store._writer.connection, "PRAGMA page_count")
    await make_corrupt(path, int(pages) + 1)

    async with opened(path) as store:
        with pytest.raises(StoreFailed, match="restore it from a backup"):
            await store.list_timers(TimerQuery(ACME, limit=10_000))


async def test_a_folder_is_no_database(tmp_path: Path) -> None:
    folder = tmp_path / "folder.db"
    folder.mkdir()

    text = await fails_to_open(folder)

    assert text.endswith("TIMER_DB_PATH must be a file this user may create and write")


async def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "timers.db"

    assert await fails_to_open(path) == (
        f"cannot open {path}.lock: No such file or directory; check TIMER_DB_PATH"
    )


async def test_a_path_that_is_too_long_for_sqlite_starts_no_thread(tmp_path: Path) -> None:
    """Its thread would tell of the failure once more, and could find the event loop closed by then."""
    folder = tmp_path
    while len(str(folder)) < 600:  # More than the 512 bytes that SQLite takes.
        folder /= "x" * 100
    folder.mkdir(parents=True)
    begun: list[str] = []

    def driver(address: str, **options: Any) -> aiosqlite.Connection:
        begun.append(address)
        return aiosqlite.connect(address, **options)

    text = await fails_to_open(folder / "timers.db", driver=driver)

    assert text.endswith("TIMER_DB_PATH must be a file this user may create and write")
    assert begun == []


def test_a_sqlite_that_is_too_old_is_named() -> None:
    with pytest.raises(StoreFailed) as caught:
        require_sqlite((3, 37, 2))

    assert str(caught.value) == "SQLite 3.37.2 is too old: 3.38.0 or newer is needed"


async def test_a_file_that_cannot_be_written_at_start_is_a_failure(path: Path) -> None:
    async with opened(path):
        pass

    with another_writer(path):
        text = await fails_to_open(path, limits=SqliteLimits(busy_timeout_ms=1))

    assert text.startswith(f"cannot write at start: {path}: database is locked")


def sqlite_error(name: str) -> sqlite3.Error:
    """Return the error that SQLite raises with this code."""
    error = sqlite3.OperationalError("told by SQLite")
    error.sqlite_errorcode = getattr(sqlite3, name)
    error.sqlite_errorname = name
    return error


@pytest.mark.parametrize(
    ("name", "kind", "advice"),
    [
        ("SQLITE_BUSY", StoreBusy, ""),
        ("SQLITE_BUSY_SNAPSHOT", StoreBusy, ""),
        ("SQLITE_LOCKED", StoreBusy, ""),
        ("SQLITE_FULL", StoreFull, ""),
        ("SQLITE_IOERR_SHMSIZE", StoreFull, ""),
        ("SQLITE_CORRUPT", StoreFailed, ": the database is corrupt; restore it from a backup"),
        ("SQLITE_CORRUPT_INDEX", StoreFailed, ": the database is corrupt; restore it from a backup"),
        ("SQLITE_NOTADB", StoreFailed, ": TIMER_DB_PATH must name a SQLite database or a new file"),
        ("SQLITE_READONLY", StoreFailed, ": TIMER_DB_PATH must be a file this user may create and write"),
        ("SQLITE_CANTOPEN", StoreFailed, ": TIMER_DB_PATH must be a file this user may create and write"),
        ("SQLITE_PERM", StoreFailed, ": TIMER_DB_PATH must be a file this user may create and write"),
        ("SQLITE_IOERR_FSYNC", StoreFailed, ": the store failed; restart once the disk works again"),
        ("SQLITE_IOERR_WRITE", StoreFailed, ": the store failed; restart once the disk works again"),
    ],
)
def test_each_error_of_sqlite_is_one_of_ours_and_says_what_to_do(
    path: Path, name: str, kind: type[TimerServiceError], advice: str
) -> None:
    error = translate(sqlite_error(name), path)

    assert type(error) is kind
    assert str(error) == f"{path}: told by SQLite ({name}){advice}"


def test_an_error_without_a_code_is_a_failure(path: Path) -> None:
    error = translate(sqlite3.ProgrammingError("closed"), path)

    assert type(error) is StoreFailed
    assert str(error).startswith(f"{path}: closed (ProgrammingError)")


# One owner


async def test_a_second_owner_is_refused_and_told_who_has_the_file(path: Path) -> None:
    async with opened(path):
        with pytest.raises(StoreInUse) as caught:
            async with opened(path):
                pass

    assert str(caught.value) == (
        f"{path} is in use by another timer-service (process {os.getpid()}): two would fire every timer "
        "twice; stop that one, or set TIMER_DB_PATH to another file"
    )


async def test_a_second_owner_is_refused_under_another_name_too(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other-name.db"
    other.symlink_to(path)

    async with opened(path):
        with pytest.raises(StoreInUse):
            async with opened(other):
                pass


async def test_the_first_owner_goes_on_after_a_second_was_refused(path: Path) -> None:
    async with opened(path) as store:
        with pytest.raises(StoreInUse):
            async with opened(path):
                pass

        assert await store.apply([schedule("order-1")], at(0)) == [Outcome.SCHEDULED]
        with pytest.raises(StoreInUse):
            async with opened(path):
                pass


async def test_a_file_is_free_again_once_its_owner_has_left(path: Path) -> None:
    async with opened(path):
        pass

    async with opened(path) as store:
        assert await store.list_timers(TimerQuery(ACME)) == []


async def test_a_file_is_free_again_after_a_start_that_failed(path: Path) -> None:
    path.write_text("no database " * 100)
    await fails_to_open(path)
    path.unlink()

    async with opened(path) as store:
        assert await store.list_timers(TimerQuery(ACME)) == []


SECOND_PROCESS = """
import asyncio, sys
from datetime import UTC, datetime
from pathlib import Path
from timer_service.adapters.sqlite.opening import open_sqlite_store
from timer_service.domain.errors import CriticalError

async def main():
    async with open_sqlite_store(Path(sys.argv[1]), lambda: datetime(2026, 1, 1, tzinfo=UTC)):
        print("opened")

try:
    asyncio.run(main())
except CriticalError as error:
    print(type(error).__name__, error)
"""


async def second_process(path: Path) -> str:
    """Return what another process says that tries to own the file."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SECOND_PROCESS, str(path), stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    return output.decode().splitlines()[-1]


async def test_a_second_process_is_refused_after_the_lock_file_was_removed(path: Path) -> None:
    async with opened(path) as store:
        Path(f"{path}.lock").unlink()

        answer = await second_process(path)
        assert await store.apply([schedule("order-1")], at(0)) == [Outcome.SCHEDULED]
    assert answer.startswith(f"StoreInUse {path} is in use by another timer-service: ")
    assert await second_process(path) == "opened"


async def test_a_second_process_is_refused_by_a_hard_link(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other-name.db"
    async with opened(path) as store:
        other.hardlink_to(path)
        with_both = await second_process(other)
        path.unlink()
        with_one = await second_process(other)
        path.hardlink_to(other)
        other.unlink()
        assert await store.apply([schedule("order-1")], at(0)) == [Outcome.SCHEDULED]

    assert with_both.startswith(f"StoreInUse {other} is in use by another timer-service: ")
    assert with_one == with_both


async def test_a_file_with_two_names_is_refused_also_where_nobody_uses_it(path: Path, tmp_path: Path) -> None:
    async with opened(path):
        pass
    (tmp_path / "other-name.db").hardlink_to(path)

    assert await fails_to_open(path) == (
        f"{path} has 2 names (hard links): changes made under one are not seen under another, because each "
        "name has a log of its own; remove the others"
    )


@pytest.mark.parametrize("then", ["removed", "replaced"])
async def test_a_file_that_is_lost_under_the_service_is_noticed_with_the_next_command(
    path: Path, then: str
) -> None:
    async with opened(path) as store:
        path.rename(f"{path}.elsewhere")
        if then == "replaced":
            path.write_bytes(b"")

        with pytest.raises(StoreFailed, match="was removed or replaced while the service was using it"):
            await store.apply([schedule("order-1")], at(0))


async def test_what_the_service_makes_only_its_user_may_read(path: Path) -> None:
    mask = os.umask(0)
    try:
        async with opened(path) as store:
            await store.apply([schedule("order-1")], at(0))
            modes = {file.name: oct(file.stat().st_mode & 0o777) for file in path.parent.iterdir()}
        back_up(path, path.with_name("copy.db"))
    finally:
        os.umask(mask)

    names = [path.name + suffix for suffix in ("", "-shm", "-wal", ".lock")]
    assert modes == dict.fromkeys(names, "0o600")
    assert oct(path.with_name("copy.db").stat().st_mode & 0o777) == "0o600"


# A file that is missing where there was one


async def test_a_new_file_is_refused_where_commands_were_acknowledged_before_and_again_after_a_restart(
    path: Path,
) -> None:
    for _ in range(2):
        async with opened(path) as store:
            with pytest.raises(
                StoreFailed, match=r"is new, but 7 commands were acknowledged before.*TIMER_ALLOW"
            ):
                await store.meet_history(7)


@pytest.mark.parametrize(("acknowledged", "allow_new"), [(0, False), (7, True)])
async def test_a_new_file_that_was_accepted_once_is_new_no_longer(
    path: Path, acknowledged: int, allow_new: bool
) -> None:
    async with opened(path) as store:
        await store.meet_history(acknowledged, allow_new=allow_new)
        await store.meet_history(8)

    async with opened(path) as store:
        await store.meet_history(9)


async def test_a_file_of_an_older_version_is_not_new(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as link:
        link.executescript(schema.CREATE_LEDGER)
        link.executescript(schema.as_one_transaction(load_migrations("sqlite")[0], T))

    async with opened(path) as store:
        await store.meet_history(7)


async def test_an_owner_that_left_no_name_is_unknown(path: Path) -> None:
    descriptor = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX)

    try:
        with pytest.raises(StoreInUse, match=r"\(process unknown\)"):
            async with opened(path):
                pass
    finally:
        os.close(descriptor)


# Busy


@contextmanager
def another_writer(path: Path) -> Iterator[None]:
    """Hold the write lock as another program would, such as a backup or a shell."""
    with closing(sqlite3.connect(path, isolation_level=None)) as link:
        link.execute("BEGIN IMMEDIATE")
        yield
        link.execute("ROLLBACK")


async def hurry(store: SqliteTimerStore) -> None:
    """Let a locked file be noticed at once."""
    await store._writer.connection.execute("PRAGMA busy_timeout = 1")


async def test_while_another_connection_writes_the_store_is_busy_and_then_works(
    store: SqliteTimerStore, path: Path
) -> None:
    await store.apply([schedule("order-1", 0)], at(0))
    await hurry(store)

    with another_writer(path):
        with pytest.raises(StoreBusy):
            await store.apply([schedule("order-2", number=2)], at(0))
        with pytest.raises(StoreBusy):
            await store.marks.mark([reached("order-1", 0)])
        with pytest.raises(StoreBusy):
            await store.purge(at(9), 10)
        unmarked = await store.get(ACME, call("order-1"))
        unknown = await store.get(ACME, call("order-2"))

    assert (unmarked, unknown) == (scheduled_timer("order-1", 0), None)
    assert await store.apply([schedule("order-2", number=2)], at(0)) == [Outcome.SCHEDULED]
    assert await store.marks.mark([reached("order-1", 0)]) == 1


async def test_reading_goes_on_while_another_connection_writes(store: SqliteTimerStore, path: Path) -> None:
    await store.apply([schedule("order-1", 0), schedule("order-2", 60, number=2)], at(0))

    with another_writer(path):
        async with store.claim_due(at(0), 10) as claim:
            due = [timer.service_call_id for timer in claim.timers]
        next_due_at = await store.next_due_at(at(0))

    assert (due, next_due_at) == (["order-1"], at(60))


# Full


async def fill(store: SqliteTimerStore) -> None:
    """Let the file grow no further."""
    pages = await value(store._writer.connection, "PRAGMA page_count")
    await store._writer.connection.execute(f"PRAGMA max_page_count = {pages}")


async def test_a_full_disk_keeps_nothing_of_a_batch_and_works_again_with_space(
    store: SqliteTimerStore,
) -> None:
    batch = [schedule(f"order-{n}", number=n) for n in range(1, 2_000)]
    await fill(store)

    with pytest.raises(StoreFull):
        await store.apply(batch, at(0))
    kept = await store.list_timers(TimerQuery(ACME, limit=10_000))
    await store._writer.connection.execute("PRAGMA max_page_count = 100000")
    outcomes = await store.apply(batch, at(0))

    assert kept == []
    assert set(outcomes) == {Outcome.SCHEDULED}
    assert len(await store.list_timers(TimerQuery(ACME, limit=10_000))) == len(batch)


async def test_a_full_disk_marks_nothing_of_a_batch(store: SqliteTimerStore) -> None:
    names = [f"order-{n}" for n in range(2_000)]
    await store.apply([schedule(name, 0, number=n) for n, name in enumerate(names)], at(0))
    events = [reached(name, 0) for name in names]
    await fill(store)

    with pytest.raises(StoreFull):
        await store.marks.mark(events)
    unmarked = await store.list_timers(TimerQuery(ACME, state=TimerState.SCHEDULED, limit=10_000))
    await store._writer.connection.execute("PRAGMA max_page_count = 100000")

    assert len(unmarked) == len(names)
    assert await store.marks.mark(events) == len(names)


# Cut off


async def test_a_batch_that_is_cut_off_is_kept_whole_or_not_at_all(store: SqliteTimerStore) -> None:
    kept = []

    for attempt in range(30):
        tenant = f"tenant-{attempt}"
        batch = [schedule(f"order-{n}", tenant=tenant, number=n) for n in range(1, 50)]
        applying = asyncio.ensure_future(store.apply(batch, at(0)))
        for _ in range(attempt):
            await asyncio.sleep(0)
        applying.cancel()
        await asyncio.gather(applying, return_exceptions=True)
        kept.append(len(await store.list_timers(TimerQuery(batch[0].tenant_id, limit=100))))

    assert set(kept) <= {0, 49}
    assert await store.apply([schedule("order-1")], at(0)) == [Outcome.SCHEDULED]


async def test_a_lock_that_cannot_be_written_is_said(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)

    with pytest.raises(StoreFailed, match=r"cannot write beside .*No space left on device"):
        async with opened(path):
            pass


async def test_a_log_that_is_not_there_counts_as_empty(path: Path) -> None:
    async with opened(path) as store:
        path.with_name(path.name + "-wal").unlink()
        counts = await store.count(at(0))

    assert counts.log_bytes == 0


# A request and a firing exclude each other


async def test_a_timer_whose_request_ends_while_the_worker_reads_is_left_out_of_the_claim(
    path: Path,
) -> None:
    hook = Hook()
    async with opened(path, driver=hook.driver) as store:
        await store.apply([schedule("order-1", 10)], at(0))
        await store._writer.lock.acquire()
        cancelling = asyncio.ensure_future(asked(store, cancel("order-1"), now=at(9)))
        await asyncio.sleep(0)

        async def let_the_request_end(sql: str) -> None:
            if sql == FIND_DUE:
                store._writer.lock.release()
                await cancelling

        hook.after = let_the_request_end
        async with store.claim_due(at(10), 10) as claim:
            claimed = list(claim.timers)

    assert (cancelling.result(), claimed) == ([Outcome.CANCELLED], [])


async def test_at_its_due_time_nobody_reads_the_file_for_a_timer_that_was_known_to_come(path: Path) -> None:
    hook = Hook()
    statements_run: list[str] = []

    async def note(sql: str) -> None:
        statements_run.append(sql)

    async with opened(path, driver=hook.driver) as store:
        await store.apply([schedule("order-1", 1), schedule("order-2", 2), schedule("order-3", 3)], at(0))
        async with store.claim_due(at(0), 10):
            nearest = await store.next_due_at(at(0))
        hook.after = note
        async with store.claim_due(at(2), 10) as claim:
            claimed = [timer.service_call_id for timer in claim.timers]
            following = await store.next_due_at(at(2))
            read = list(statements_run)
        # The first two were given back without a mark.
        async with store.claim_due(at(3), 10) as claim:
            again = [timer.service_call_id for timer in claim.timers]

    assert (nearest, claimed, following, read) == (at(1), ["order-1", "order-2"], at(3), [])
    assert again == ["order-1", "order-2", "order-3"]


async def test_a_timer_that_is_moved_once_it_is_known_to_come_fires_at_its_new_time(path: Path) -> None:
    async with opened(path) as store:
        await store.apply([schedule("order-1", 1), schedule("order-2", 2)], at(0))
        async with store.claim_due(at(0), 10):
            await store.next_due_at(at(0))
        await store.apply([schedule("order-1", 3, number=2), schedule("order-3", 1.5, number=3)], at(0))
        await asked(store, cancel("order-2"), now=at(0))
        found = []
        for second in (1, 2, 3):
            async with store.claim_due(at(second), 10) as claim:
                found.append([(timer.service_call_id, timer.generation) for timer in claim.timers])
                await claim.mark_reached([timer.reached(at(second)) for timer in claim.timers])

    assert found == [[], [("order-3", 1)], [("order-1", 2)]]


async def test_requests_that_never_cease_do_not_keep_a_due_timer_from_firing(path: Path) -> None:
    async with opened(path) as store:
        await store.apply([schedule("order-1", 10)], at(0))
        await store._writer.lock.acquire()
        first = asyncio.ensure_future(asked(store, cancel("order-1"), now=at(11)))
        await asyncio.sleep(0)
        async with store.claim_due(at(11), 10) as claim:
            left_out = (list(claim.timers), claim.more)

        second = await asked(store, cancel("order-1"), now=at(11))
        store._writer.lock.release()
        outcome = await first
        async with store.claim_due(at(11), 10) as claim:
            claimed = [timer.service_call_id for timer in claim.timers]

    assert left_out == ([], True)
    assert (second, outcome) == ([Outcome.DUE], [Outcome.DUE])
    assert claimed == ["order-1"]


# Searches stay short beside a long history

HISTORY = """
WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 100000)
INSERT INTO timer_schedules (tenant_id, service_call_id, state, due_at, generation, registered_at,
  correlation_id, reached_at, cancelled_at, stream_created_us, stream_sequence, traceparent, tracestate)
SELECT CASE WHEN n % 2 THEN 'acme' ELSE 'tenant-' || (n % 50) END, 'done-' || n, 'Reached',
       strftime('%Y-%m-%dT%H:%M:%S.000Z', 1700000000 + n, 'unixepoch'), 1,
       '2025-01-01T00:00:00.000Z', CASE WHEN n % 10 = 0 THEN 'request-' || n END,
       strftime('%Y-%m-%dT%H:%M:%S.000Z', 1700000000 + n, 'unixepoch'), NULL, 1, n, NULL, NULL
FROM numbers
"""


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file with 100,000 reached timers beside a few scheduled ones."""
    path = tmp_path_factory.mktemp("history") / "timers.db"

    async def make() -> None:
        async with opened(path) as store:
            await store._writer.connection.execute(HISTORY)
            await store.apply([schedule(f"waiting-{n}", -n, number=n) for n in range(1, 6)], at(0))
            await store.apply([schedule("lone", -1, tenant=GLOBEX, correlation="request-1")], at(0))

    asyncio.run(make())
    return path


SEARCHES: dict[str, tuple[str, set[str]]] = {
    "FIND_DUE": (FIND_DUE, {"timer_schedules_due"}),
    "FIND_NEXT": (FIND_NEXT, {"timer_schedules_due"}),
    "SCAN_END": (SCAN_END, {"timer_schedules_due"}),
    "SCAN": (SCAN, {"timer_schedules_due"}),
    "WALK": (WALK, {"timer_schedules_pending"}),
    "FIND_DUE_OF_TENANT": (FIND_DUE_OF_TENANT, {"timer_schedules_pending"}),
    "FIND_DUE_IN_TURNS": (FIND_DUE_IN_TURNS, {"timer_schedules_pending", "PRIMARY KEY"}),
    "FIND_FIRST_IN_TURNS": (FIND_FIRST_IN_TURNS, {"timer_schedules_pending", "PRIMARY KEY"}),
    "LIST_PENDING": (LIST_PENDING, {"timer_schedules_pending"}),
    "LIST_OVER": (LIST_OVER, {"timer_schedules_over"}),
    "LIST_BY_CORRELATION": (LIST_BY_CORRELATION, {"timer_schedules_by_correlation"}),
    "PURGE": (statements.PURGE, {"timer_schedules_ended", "PRIMARY KEY"}),
    "COUNT_PENDING": (statements.COUNT_PENDING, {"timer_schedules_due"}),
    "COUNT_OVERDUE": (statements.COUNT_OVERDUE, {"timer_schedules_due"}),
    "load": (statements.LOAD, {"PRIMARY KEY"}),
    "mark": (marks.MARK_REACHED, {"PRIMARY KEY"}),
    "mark alike": (marks.MARK_ALIKE, {"PRIMARY KEY"}),
    "get": (statements.GET, {"PRIMARY KEY"}),
}
_STEP = re.compile(
    r"(SEARCH|SCAN) (?:timer_schedules|t)\b(?:.* USING (?:COVERING )?(?:INDEX )?(\w+(?: KEY)?))?"
)


@pytest.mark.parametrize(("sql", "indexes"), SEARCHES.values(), ids=SEARCHES.keys())
def test_every_look_is_a_search_on_its_index_and_never_a_scan(
    history: Path, sql: str, indexes: set[str]
) -> None:
    nothing = dict.fromkeys(_parameters(sql)) or [None] * sql.count("?")

    with closing(sqlite3.connect(history)) as link:
        plan = [row[3] for row in link.execute(f"EXPLAIN QUERY PLAN {sql}", nothing)]

    steps = [match.groups() for step in plan if (match := _STEP.match(step))]
    assert set(steps) == {("SEARCH", index) for index in indexes}


IN_ORDER = [
    *(
        "FIND_DUE",
        "FIND_NEXT",
        "FIND_DUE_OF_TENANT",
        "SCAN_END",
        "LIST_PENDING",
        "LIST_OVER",
        "LIST_BY_CORRELATION",
    ),
    "PURGE",
]
ALONE = [
    "SCAN_END",
    "SCAN",
    "WALK",
    "COUNT_PENDING",
    "COUNT_OVERDUE",
]


@pytest.mark.parametrize("sql", [SEARCHES[name][0] for name in ALONE], ids=ALONE)
def test_what_only_counts_or_finds_tenants_reads_the_index_alone(history: Path, sql: str) -> None:
    nothing = dict.fromkeys(_parameters(sql)) or [None] * sql.count("?")

    with closing(sqlite3.connect(history)) as link:
        plan = [row[3] for row in link.execute(f"EXPLAIN QUERY PLAN {sql}", nothing)]

    searches = [step for step in plan if step.startswith("SEARCH")]
    assert [step for step in searches if "COVERING INDEX" not in step] == []


@pytest.mark.parametrize("sql", [SEARCHES[name][0] for name in IN_ORDER], ids=IN_ORDER)
def test_what_can_be_long_is_read_in_the_order_of_its_index(history: Path, sql: str) -> None:
    nothing = dict.fromkeys(_parameters(sql)) or [None] * sql.count("?")

    with closing(sqlite3.connect(history)) as link:
        plan = [row[3] for row in link.execute(f"EXPLAIN QUERY PLAN {sql}", nothing)]

    assert [step for step in plan if "TEMP B-TREE" in step] == []


def _parameters(sql: str) -> list[str]:
    return [word.strip(":,()\n") for word in sql.replace("(", " ").split() if word.startswith(":")]


ENOUGH_STEPS = 10_000


async def test_the_poll_stays_short_beside_a_long_history(history: Path) -> None:
    async with opened(history) as store, counted(store._reader) as steps:
        async with store.claim_due(at(0), 100) as claim:
            assert (len(claim.timers), claim.more) == (6, False)
        assert await store.next_due_at(at(0)) is None

    assert steps[0] < ENOUGH_STEPS


async def test_taking_turns_stays_short_beside_a_long_history(history: Path) -> None:
    async with (
        opened(history) as store,
        counted(store._reader) as steps,
        store.claim_due(at(0), 3) as claim,
    ):
        names = [timer.service_call_id for timer in claim.timers]

    assert names == ["waiting-5", "waiting-4", "lone"]
    assert steps[0] < ENOUGH_STEPS


async def test_the_last_page_of_a_list_costs_no_more_than_the_first(history: Path) -> None:
    async with opened(history) as store:
        query = TimerQuery(ACME, state=TimerState.REACHED, limit=100)
        async with counted(*store._questions._connections) as first:
            await store.list_timers(query)
        late = datetime.fromisoformat("2023-11-16T01:43:21.000Z")
        async with counted(*store._questions._connections) as last:
            page = await store.list_timers(replace(query, after=(late, call("done-99001"))))

    assert [timer.service_call_id for timer in page[:2]] == ["done-99003", "done-99005"]
    assert 0 < last[0] <= 1.5 * first[0]


async def test_a_purge_of_a_few_stays_short_beside_a_long_history(history: Path) -> None:
    async with opened(history) as store, counted(store._writer.connection) as steps:
        assert await store.purge(at(0), 10) == 10

    assert steps[0] < ENOUGH_STEPS


async def test_every_batch_of_a_long_purge_costs_what_the_first_does(history: Path, path: Path) -> None:
    shutil.copyfile(history, path)
    costs = []
    async with opened(path) as store:
        for _ in range(30):
            async with counted(store._writer.connection) as steps:
                assert await store.purge(at(0), 1_000) == 1_000
            costs.append(steps[0])

    assert 0 < max(costs) <= 1.5 * costs[0]
    assert costs[0] < 1_000 * 120


# The package


def test_the_wheel_ships_the_migrations_and_finds_them(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=REPOSITORY,
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")

    found = subprocess.run(
        [
            sys.executable,
            "-c",
            "import timer_service.adapters.migrations as m; print(m.__file__, m.load_migrations('sqlite'))",
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "installed")},
        check=True,
        capture_output=True,
        text=True,
    ).stdout

    installed = tmp_path / "installed" / "timer_service"
    shipped = {file.name: file.read_text() for file in (installed / "migrations" / "sqlite").iterdir()}
    assert shipped == {
        file.name: file.read_text() for file in (REPOSITORY / "migrations" / "sqlite").glob("*.sql")
    }
    assert found == f"{installed / 'adapters' / 'migrations.py'} {load_migrations('sqlite')}\n"
