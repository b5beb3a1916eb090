"""A backup is a whole, verified copy, or nothing at all."""

import gc
import os
import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from tests.support.sqlite import left_by_a_kill
from tests.support.timers import at, cancel, schedule
from timer_service.adapters.sqlite.api_keys import keys_path
from timer_service.adapters.sqlite.backup import BESIDE, BackupReport, back_up, copy_database, count_timers
from timer_service.adapters.sqlite.opening import open_sqlite_store
from timer_service.domain.errors import CriticalError
from timer_service.testing import START


@pytest.fixture
async def database(tmp_path: Path) -> Path:
    path = tmp_path / "timers.db"
    async with open_sqlite_store(path, lambda: START) as store:
        await store.apply([schedule("order-1"), schedule("order-2", number=2)], at(0))
        await store.apply([cancel("order-2", number=3)], at(0))
    return path


def test_a_copy_holds_every_timer_and_is_one_plain_file(database: Path, tmp_path: Path) -> None:
    target = tmp_path / "copy.db"

    report = back_up(database, target)

    with closing(sqlite3.connect(target)) as link:
        rows = link.execute("SELECT service_call_id, state FROM timer_schedules ORDER BY 1").fetchall()
    assert rows == [("order-1", "Scheduled"), ("order-2", "Cancelled")]
    assert report == BackupReport(2, 1, target.stat().st_size)
    assert sorted(path.name for path in tmp_path.glob("copy*")) == ["copy.db"]


def test_a_copy_leaves_no_file_open(database: Path, tmp_path: Path) -> None:
    def open_files() -> int:
        gc.collect()
        return len(list(Path("/dev/fd").iterdir()))

    back_up(database, tmp_path / "first.db")
    before = open_files()

    back_up(database, tmp_path / "copy.db")

    assert open_files() == before


def test_a_copy_is_on_disk_before_it_has_its_name(
    database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = [path_beside(database) for path_beside in BESIDE]
    for path in beside:
        with closing(sqlite3.connect(path)) as link:
            link.execute("CREATE TABLE entries (id)")
    target, synced = tmp_path / "copy.db", dict[Path, bool]()

    def sync(descriptor: int) -> None:
        synced[Path(f"/dev/fd/{descriptor}").resolve()] = target.exists()

    monkeypatch.setattr(os, "fsync", sync)
    back_up(database, target)

    assert synced == {
        **{path_beside(target): False for path_beside in BESIDE},
        target.with_name("copy.db.unfinished"): False,
        tmp_path: True,
    }


def test_what_is_beside_the_database_is_copied_and_an_old_copy_of_it_replaced(
    database: Path, tmp_path: Path
) -> None:
    target = tmp_path / "copy.db"
    for path_beside in BESIDE:
        path_beside(target).write_text("left by a copy that failed")
        with closing(sqlite3.connect(path_beside(database))) as link, link:
            link.execute("CREATE TABLE entries (id)")
            link.execute("INSERT INTO entries VALUES ('ours')")

    back_up(database, target)

    for path_beside in BESIDE:
        with closing(sqlite3.connect(path_beside(target))) as link:
            assert link.execute("SELECT id FROM entries").fetchall() == [("ours",)]


def test_a_copy_never_replaces_a_file(database: Path, tmp_path: Path) -> None:
    target = tmp_path / "copy.db"
    target.write_text("mine")

    with pytest.raises(CriticalError, match="already exists"):
        back_up(database, target)
    assert target.read_text() == "mine"


def test_without_a_database_nothing_is_made(tmp_path: Path) -> None:
    with pytest.raises(CriticalError, match="there is no database"):
        back_up(tmp_path / "none.db", tmp_path / "copy.db")
    assert list(tmp_path.iterdir()) == []


def test_a_copy_that_cannot_be_written_leaves_nothing(database: Path, tmp_path: Path) -> None:
    with pytest.raises(CriticalError, match="failed"):
        back_up(database, tmp_path / "no folder" / "copy.db")
    assert sorted(path.name for path in tmp_path.glob("*.unfinished")) == []


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ("DELETE FROM timer_schedules WHERE state = 'Cancelled'", "holds 1 timers, the source 2"),
        ("PRAGMA writable_schema = ON; UPDATE sqlite_schema SET rootpage = 3 WHERE rootpage = 4", "damaged"),
    ],
)
def test_a_copy_that_differs_from_its_source_is_not_kept(
    database: Path, tmp_path: Path, change: str, complaint: str
) -> None:
    def copy_and_spoil(source: Path, target: Path) -> tuple[int, int]:
        expected = copy_database(source, target)
        with closing(sqlite3.connect(target)) as link:
            link.executescript(change)
        return expected

    with pytest.raises(CriticalError, match=complaint):
        back_up(database, tmp_path / "copy.db", copy=copy_and_spoil)
    assert sorted(path.name for path in tmp_path.glob("copy*")) == []


def test_a_change_of_a_file_beside_that_was_cut_off_is_not_in_the_copy(
    database: Path, tmp_path: Path
) -> None:
    keys, copied = keys_path(database), keys_path(tmp_path / "copy.db")
    with closing(sqlite3.connect(keys)) as link, link:
        link.execute("CREATE TABLE api_keys AS SELECT 'k1' AS key_id")
    left_by_a_kill(keys)

    back_up(database, tmp_path / "copy.db")

    with closing(sqlite3.connect(copied)) as link:
        assert link.execute("SELECT key_id FROM api_keys").fetchall() == [("k1",)]


def test_counts_and_copy_are_of_one_moment_while_the_service_writes(database: Path, tmp_path: Path) -> None:
    def count_and_let_another_write(link: sqlite3.Connection) -> tuple[int, int]:
        counts = count_timers(link)
        with closing(sqlite3.connect(database)) as other, other:
            other.execute("DELETE FROM timer_schedules WHERE service_call_id = 'order-1'")
        return counts

    copy = partial(copy_database, count=count_and_let_another_write)
    report = back_up(database, tmp_path / "copy.db", copy=copy)

    assert (report.timers, report.pending) == (2, 1)
