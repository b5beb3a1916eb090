"""Backups of a database in use, and services that start from them."""

import json
import os
import resource
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.messages import in_seconds, iso
from tests.support.patience import PATIENCE_S
from tests.support.process import run_cli
from tests.support.timers import ACME, at
from tests.support.world import World
from timer_service.adapters.sqlite.audit import SqliteAudit, audit_path
from timer_service.adapters.sqlite.backup import back_up
from timer_service.adapters.sqlite.opening import open_sqlite_store
from timer_service.adapters.sqlite.secrets import SqliteSecretStore, secrets_path
from timer_service.domain.messages import Position, ScheduleTimer, ServiceCallId, TenantId
from timer_service.ports.audit import Action
from timer_service.ports.secret_store import SecretKind, StoredSecret
from timer_service.secret_keys import key_file

SECRET = StoredSecret(ACME, SecretKind.NAMED, "token", b"sealed", created_at=at(0))
FAR_AHEAD = "9999-01-01T00:00:00Z"


async def test_a_backup_is_whole_while_timers_fire(world: World) -> None:
    service = world.service(http_port=0).start_ready()
    for number in range(50):
        await world.schedule("acme", f"later-{number}", FAR_AHEAD)
    for number in range(150):
        await world.schedule("acme", f"soon-{number}", in_seconds(0.5 + number / 75))
    await world.wait_until_consumed()

    report = _back_up(world, world.folder / "copy.db")
    copied = _rows(world.folder / "copy.db")
    events = await world.wait_for_events(150)

    assert report == {
        "path": str(world.folder / "copy.db"),
        "timers": 200,
        "pending": sum(row["state"] == "Scheduled" for row in copied),
        "bytes": (world.folder / "copy.db").stat().st_size,
    }
    assert len({event["id"] for event in events}) == 150
    assert service.events("store.unavailable") == []
    assert sorted(path.name for path in world.folder.glob("copy.db*")) == ["copy.db"]


async def test_a_restored_copy_fires_what_was_pending(world: World) -> None:
    service = world.service(http_port=0).start_ready()
    await world.schedule("acme", "reached-before", "2020-01-01T00:00:00Z")
    await world.schedule("acme", "cancelled-before", FAR_AHEAD)
    await world.cancel("acme", "cancelled-before")
    due = {f"pending-{number}": in_seconds(1.5 + number / 100) for number in range(20)}
    for call, moment in due.items():
        await world.schedule("acme", call, moment)
    await world.wait_for_row("acme", "reached-before", state="Reached")
    await world.wait_until_consumed()
    back_up(world.db_path, world.folder / "copy.db")
    service.kill()

    _restore(world, world.folder / "copy.db")
    service.restart()
    events = await world.wait_for_events(21)
    await world.wait_for_row("acme", "pending-19", state="Reached")

    fired = {event["payload"]["serviceCallId"]: event["payload"]["dueAt"] for event in events}
    assert fired == {
        "reached-before": "2020-01-01T00:00:00.000Z",
        **{call: iso(moment) for call, moment in due.items()},
    }
    assert len(events) == 21


async def test_what_fired_after_the_backup_is_repeated_under_its_id(world: World) -> None:
    service = world.service(http_port=0).start_ready()
    await world.schedule("acme", "between", in_seconds(1.5))
    await world.wait_until_consumed()
    back_up(world.db_path, world.folder / "copy.db")
    [first] = await world.wait_for_events(1)
    await world.wait_for_row("acme", "between", state="Reached")
    service.terminate()

    _restore(world, world.folder / "copy.db")
    service.restart()
    row = await world.wait_for_row("acme", "between", state="Reached")
    repeated = service.wait_for_log("batch.fired")

    # Published again, and dropped by the broker for its id.
    assert (row["generation"], repeated["timers"]) == (1, 1)
    assert await world.events() == [first]


async def test_commands_go_on_where_the_restored_copy_left_off(world: World) -> None:
    service = world.service(http_port=0).start_ready()
    await world.schedule("acme", "moved", FAR_AHEAD)
    await world.wait_until_consumed()
    back_up(world.db_path, world.folder / "copy.db")
    service.terminate()

    _restore(world, world.folder / "copy.db")
    service.restart()
    due = in_seconds(0.5)
    await world.schedule("acme", "moved", due)
    [event] = await world.wait_for_events(1)

    assert (event["payload"]["dueAt"], event["payload"]["generation"]) == (iso(due), 2)


async def test_a_backup_needs_no_running_service(world: World) -> None:
    service = world.service(http_port=0).start_ready()
    await world.schedule("acme", "order-1", FAR_AHEAD)
    await world.wait_until_consumed()
    service.kill()

    report = _back_up(world, world.folder / "copy.db")

    assert (report["timers"], report["pending"]) == (1, 1)


async def test_a_backup_tells_a_person_what_it_holds(tmp_path: Path) -> None:
    await _database(tmp_path / "timers.db", timers=3)

    done = run_cli("backup", "copy.db", cwd=tmp_path, db_path="timers.db")

    size = (tmp_path / "copy.db").stat().st_size
    assert done.stdout == f"copy.db: 3 timers, 3 of them pending, {size} bytes, verified\n"
    assert (done.returncode, done.stderr) == (0, "")


async def test_an_existing_file_is_never_overwritten(tmp_path: Path) -> None:
    await _database(tmp_path / "timers.db")
    (tmp_path / "copy.db").write_text("precious")

    done = run_cli("backup", "copy.db", cwd=tmp_path, db_path="timers.db")

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "timer-service: copy.db already exists: choose another name, or move it away\n"
    assert (tmp_path / "copy.db").read_text() == "precious"


def test_a_backup_of_postgresql_is_left_to_its_own_tools(tmp_path: Path) -> None:
    done = run_cli("backup", "copy.db", cwd=tmp_path, store_url="postgresql://u:secret@localhost/timers")

    assert (done.returncode, done.stderr) == (
        1,
        "timer-service: TIMER_STORE_URL names a PostgreSQL database: back it up with pg_dump\n",
    )


def test_without_a_database_there_is_one_line(tmp_path: Path) -> None:
    done = run_cli("backup", "copy.db", cwd=tmp_path, db_path="missing.db")

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "timer-service: there is no database at missing.db: check TIMER_DB_PATH\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "target"),
    [(b"this is no database " * 1000, "copy.db"), (b"", "copy.db"), (None, "no/such/folder/copy.db")],
    ids=["not_a_database", "empty", "no_folder"],
)
async def test_what_cannot_be_copied_is_said_in_one_line(
    tmp_path: Path, content: bytes | None, target: str
) -> None:
    await _database(tmp_path / "timers.db")
    if content is not None:
        (tmp_path / "timers.db").write_bytes(content)

    done = run_cli("backup", target, cwd=tmp_path, db_path="timers.db")

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"timer-service: backup of timers.db to {target} failed: ")
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.glob("copy.db*")) == []


async def test_a_damaged_database_is_found_out(tmp_path: Path) -> None:
    await _database(tmp_path / "timers.db", timers=20)
    _damage(tmp_path / "timers.db", "timer_schedules_pending")

    done = run_cli("backup", "copy.db", cwd=tmp_path, db_path="timers.db")

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("timer-service: the copy is damaged (")
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.glob("copy.db*")) == []


async def test_a_backup_that_runs_out_of_space_leaves_nothing_behind(tmp_path: Path) -> None:
    await _database(tmp_path / "timers.db", timers=500)

    done = subprocess.run(
        [sys.executable, "-m", "timer_service", "backup", "copy.db"],
        cwd=tmp_path,
        env={**os.environ, "TIMER_DB_PATH": "timers.db"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (16_384, 16_384)),
        check=False,
    )

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("timer-service: backup of timers.db to copy.db failed: ")
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.glob("copy.db*")) == []


def _back_up(world: World, target: Path) -> dict[str, Any]:
    done = run_cli("backup", str(target), "--json", cwd=world.folder, db_path=world.db_path)
    assert (done.returncode, done.stderr) == (0, "")
    report: dict[str, Any] = json.loads(done.stdout)
    return report


async def _database(path: Path, timers: int = 0) -> None:
    """Make a database as the service does, with this many pending timers."""
    commands = [
        ScheduleTimer(
            TenantId("acme"),
            ServiceCallId(f"order-{number}"),
            in_seconds(3600),
            None,
            Position(1, number + 1),
        )
        for number in range(timers)
    ]
    async with open_sqlite_store(path, lambda: in_seconds(0)) as store:
        await store.apply(commands, in_seconds(0))


def _restore(world: World, copy: Path) -> None:
    """Put the copy in the place of the database, as docs/operations.md says."""
    for suffix in ("", "-wal", "-shm"):
        world.db_path.with_name(world.db_path.name + suffix).unlink(missing_ok=True)
    shutil.copy(copy, world.db_path)


def _rows(path: Path) -> list[dict[str, Any]]:
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as link:
        link.row_factory = sqlite3.Row
        assert link.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
        return [dict(row) for row in link.execute("SELECT * FROM timer_schedules")]


def _damage(path: Path, index: str) -> None:
    """Change one entry of an index, as a bad disk would: nothing but a thorough check finds it."""
    with closing(sqlite3.connect(path)) as link:
        [size] = link.execute("PRAGMA page_size").fetchone()
        [page] = link.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (index,)).fetchone()
    content = bytearray(path.read_bytes())
    entry = content.index(b"order-", (page - 1) * size, page * size)
    content[entry : entry + 5] = b"broke"
    path.write_bytes(content)


async def test_a_backup_brings_the_secrets_but_not_the_key_that_opens_them(tmp_path: Path) -> None:
    async with open_sqlite_store(tmp_path / "timers.db", lambda: at(0)):
        pass
    key_file(tmp_path / "timers.db.secret-key")
    await SqliteSecretStore(secrets_path(tmp_path / "timers.db")).save_secrets([SECRET])

    back_up(tmp_path / "timers.db", tmp_path / "copy.db")

    assert sorted(path.name for path in tmp_path.glob("copy.db*")) == ["copy.db", "copy.db.secrets"]
    assert await SqliteSecretStore(secrets_path(tmp_path / "copy.db")).secrets_of(ACME) == [SECRET]


async def test_a_backup_brings_who_did_what_on_the_page(tmp_path: Path) -> None:
    async with open_sqlite_store(tmp_path / "timers.db", lambda: at(0)):
        pass
    done = Action(at(1), "ada", "operator", "cancel", ACME, "order-1", "Scheduled", "cancelled")
    await SqliteAudit(audit_path(tmp_path / "timers.db")).record(done)

    back_up(tmp_path / "timers.db", tmp_path / "copy.db")

    [kept] = await SqliteAudit(audit_path(tmp_path / "copy.db")).page(None, None, 10)
    assert (kept.actor, kept.action, kept.subject) == ("ada", "cancel", "order-1")
