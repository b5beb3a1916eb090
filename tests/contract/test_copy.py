"""Moving timers from one store to another: nothing lost, nothing changed, or nothing at all."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import asyncpg
import pytest

from tests.support.lines import until
from tests.support.postgres import execute, fresh_schema
from tests.support.process import run_cli
from tests.support.timers import ACME, at, call, cancel, schedule
from timer_service.adapters.postgres.archive import COPY_NAME
from timer_service.adapters.postgres.connections import APPLICATION_NAME
from timer_service.adapters.postgres.limits import PostgresLimits
from timer_service.adapters.postgres.opening import open_postgres_store
from timer_service.adapters.sqlite.opening import open_sqlite_store
from timer_service.domain.api_keys import ApiKey, Scope
from timer_service.domain.callback import Callback, Sink
from timer_service.domain.delivery import Answered, Attempt, after_attempt
from timer_service.domain.errors import CriticalError, StoreBusy, StoreFailed, StoreInUse
from timer_service.domain.messages import Command, TenantId, Trace
from timer_service.domain.timer import Timer, TimerState
from timer_service.ports.delivery_store import CallbackRecord, Finished
from timer_service.ports.secret_store import SecretKind, StoredSecret
from timer_service.ports.timer_archive import CopyState, WritableArchive
from timer_service.ports.timer_store import TimerQuery, TimerStore
from timer_service.wiring.stores import open_archive, open_archives, open_secrets_and_keys
from timer_service.workflows.copy_secrets import copy_keys, copy_secrets
from timer_service.workflows.copy_timers import CopyReport, copy_timers


@pytest.fixture
async def postgres() -> AsyncIterator[str]:
    async with fresh_schema() as url:
        yield url


@pytest.fixture
def sqlite(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'timers.db'}"


def opened(url: str) -> AbstractAsyncContextManager[TimerStore]:
    if url.startswith("sqlite:///"):
        return open_sqlite_store(Path(url.removeprefix("sqlite:///")), lambda: at(0))
    return open_postgres_store(url, lambda: at(0))


def many(count: int = 100) -> list[Command]:
    """Return commands that make timers of every kind."""
    names = [f"order-{n}" for n in range(count)]
    return [
        *[schedule(name, n - 50, number=n + 1, tenant=f"tenant-{n % 7}") for n, name in enumerate(names)],
        *[
            cancel(name, number=n + 1000, tenant=f"tenant-{n % 7}")
            for n, name in enumerate(names)
            if n % 5 == 0
        ],
        cancel("tombstone", number=5000),
        schedule("Zebra", 1, number=5001, correlation="request-1"),
        schedule("ähnlich", 1, number=5002, stream=2**60),
        schedule("😀", 1, number=5003),
        replace(schedule("first", number=5004), due_at=datetime(1, 1, 1, tzinfo=UTC)),
        replace(
            schedule("last", number=5005), due_at=datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)
        ),
        replace(schedule("traced", 1, number=5006), trace=Trace("00-ab-cd-01", "vendor=1")),
    ]


async def fill(url: str, commands: Sequence[Command]) -> None:
    async with opened(url) as store:
        await store.apply(commands, at(0))
        async with store.claim_due(at(0), 20) as claim:
            await claim.mark_reached([timer.reached(at(0)) for timer in claim.timers])


async def everything(url: str) -> list[Timer]:
    async with open_archive(url, as_source=True) as archive:
        return list(await archive.read(None, 100_000))


class Interrupted(Exception):
    """As if somebody had pulled the plug."""


class _Unended:
    """An archive whose copy does everything but the last step."""

    def __init__(self, archive: WritableArchive) -> None:
        self._archive = archive
        self.copying = _UnendedCopy(archive.copying)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._archive, name)


class _UnendedCopy:
    def __init__(self, copying: CopyState) -> None:
        self._copying = copying

    def __getattr__(self, name: str) -> Any:
        return getattr(self._copying, name)

    async def end(self) -> None:
        raise Interrupted


BATCH_SIZE = 10


async def copy(
    source: str, target: str, *, restart: bool = False, stop_after: int | None = None
) -> CopyReport:
    """Copy; where asked to, fail once this many timers are copied."""

    def progress(what: str, done: int, _: int) -> None:
        if stop_after is not None and what == "copying" and done >= stop_after:
            raise Interrupted

    async with open_archives(source, target) as (one, other):
        return await copy_timers(
            source=one, target=other, restart=restart, progress=progress, batch_size=BATCH_SIZE
        )


@pytest.mark.parametrize("back", [False, True], ids=["to PostgreSQL", "to SQLite"])
async def test_a_copy_holds_every_timer_as_it_was(sqlite: str, postgres: str, back: bool) -> None:
    source, target = (postgres, sqlite) if back else (sqlite, postgres)
    await fill(source, many())

    report = await copy(source, target)

    before, after = await everything(source), await everything(target)
    assert after == before
    assert (report.timers, report.pending) == (107, sum(timer.state.value == "Scheduled" for timer in before))


async def test_there_and_back_again_is_the_same(sqlite: str, postgres: str, tmp_path: Path) -> None:
    await fill(sqlite, many())
    third = f"sqlite:///{tmp_path / 'third.db'}"

    reports = [await copy(sqlite, postgres), await copy(postgres, third)]

    assert reports[0] == reports[1]
    assert await everything(third) == await everything(sqlite)


async def test_an_empty_store_is_copied_too(sqlite: str, postgres: str) -> None:
    await fill(sqlite, [])

    assert (await copy(sqlite, postgres)).timers == 0


async def test_what_was_pending_fires_from_the_copy(sqlite: str, postgres: str) -> None:
    await fill(sqlite, [schedule("order-1", 60)])
    await copy(sqlite, postgres)

    async with opened(postgres) as store, store.claim_due(at(60), 10) as claim:
        assert [timer.service_call_id for timer in claim.timers] == ["order-1"]


@pytest.mark.parametrize("back", [False, True], ids=["to PostgreSQL", "to SQLite"])
async def test_an_interrupted_copy_goes_on_where_it_ended(sqlite: str, postgres: str, back: bool) -> None:
    source, target = (postgres, sqlite) if back else (sqlite, postgres)
    await fill(source, many())
    with pytest.raises(Interrupted):
        await copy(source, target, stop_after=40)
    with pytest.raises(StoreFailed, match="unfinished copy"):
        async with opened(target):
            pass
    seen: list[int] = []

    async with open_archives(source, target) as (first, second):
        await copy_timers(
            source=first,
            target=second,
            restart=False,
            progress=lambda _, done, __: seen.append(done),
            batch_size=BATCH_SIZE,
        )

    assert seen[0] == 40
    assert await everything(target) == await everything(source)


async def test_a_target_that_holds_timers_is_refused(sqlite: str, postgres: str) -> None:
    await fill(sqlite, many())
    await fill(postgres, [schedule("precious")])
    before = await everything(postgres)

    for restart in (False, True):
        with pytest.raises(CriticalError, match="already holds timers"):
            await copy(sqlite, postgres, restart=restart)

    assert await everything(postgres) == before


async def test_a_copy_that_is_refused_leaves_secrets_and_keys_alone(
    sqlite: str, postgres: str, tmp_path: Path
) -> None:
    await fill(sqlite, many())
    await fill(postgres, [schedule("precious")])
    async with open_secrets_and_keys(sqlite) as (store, kept):
        await store.save_secrets([named_secret(b"theirs")])
        await kept.add(api_key("0"))
    async with open_secrets_and_keys(postgres) as (store, _):
        await store.save_secrets([named_secret(b"ours")])

    result = await asyncio.to_thread(run_cli, "copy", "--from", sqlite, "--to", postgres, cwd=tmp_path)

    assert (result.returncode, "already holds timers" in result.stderr) == (1, True)
    async with open_secrets_and_keys(postgres) as (store, kept):
        assert [each.sealed for each in await store.secrets_after(None, 10)] == [b"ours"]
        assert list(await kept.list_keys()) == []


async def test_a_key_that_is_revoked_after_it_was_copied_is_revoked_in_the_copy(
    sqlite: str, postgres: str
) -> None:
    for url in (sqlite, postgres):
        await fill(url, [schedule("order-1")])
    async with open_secrets_and_keys(sqlite) as (_, source), open_secrets_and_keys(postgres) as (_, target):
        await source.add(api_key("0"))
        counts = [await copy_keys(source, target)]
        await source.revoke("0", at(3))
        counts.append(await copy_keys(source, target))

        assert counts == [1, 0]
        assert await target.get("0") == await source.get("0")


@pytest.mark.parametrize("name", ["before.db", "zebra.db"])
async def test_an_unfinished_copy_of_another_store_is_refused(
    sqlite: str, postgres: str, tmp_path: Path, name: str
) -> None:
    another = f"sqlite:///{tmp_path / name}"
    await fill(sqlite, many())
    await fill(another, many())
    with pytest.raises(Interrupted):
        await copy(another, postgres, stop_after=10)

    with pytest.raises(CriticalError, match="unfinished copy of"):
        await copy(sqlite, postgres)

    # From now on it is one of the store that was copied last, also where that copy was interrupted.
    with pytest.raises(Interrupted):
        await copy(sqlite, postgres, restart=True, stop_after=40)
    with pytest.raises(CriticalError, match="unfinished copy of"):
        await copy(another, postgres)
    assert (await copy(sqlite, postgres)).timers == 107


async def test_a_source_that_changed_between_two_tries_is_noticed(sqlite: str, postgres: str) -> None:
    await fill(sqlite, many())
    with pytest.raises(Interrupted):
        await copy(sqlite, postgres, stop_after=40)
    async with opened(sqlite) as store:
        await store.apply([schedule("order-0", 999, tenant="tenant-0", number=9999)], at(1))

    with pytest.raises(CriticalError, match="run it again with --restart"):
        await copy(sqlite, postgres)

    assert (await copy(sqlite, postgres, restart=True)).timers == 107
    assert await everything(postgres) == await everything(sqlite)


_LOOKED = """
SELECT count(*) FROM pg_stat_activity WHERE application_name = $1 AND query LIKE '%pg_stat_activity%'
"""


@pytest.mark.parametrize("back", [False, True], ids=["a source", "a target"])
async def test_a_store_that_a_service_uses_is_refused(sqlite: str, postgres: str, back: bool) -> None:
    await fill(sqlite, many(5))
    source, target = (sqlite, postgres) if back else (postgres, sqlite + "2")

    async with opened(postgres):
        with pytest.raises(StoreInUse, match="stop every instance"):
            await copy(source, target)


async def test_a_service_that_has_just_gone_is_waited_for(sqlite: str, postgres: str) -> None:
    await fill(postgres, many(5))
    leaving = await asyncpg.connect(postgres, server_settings={"application_name": APPLICATION_NAME})
    copying = asyncio.ensure_future(copy(postgres, sqlite))

    async def looked() -> bool:
        return copying.done() or bool(await leaving.fetchval(_LOOKED, COPY_NAME))

    await until(looked, "the copy to look who is at work")
    await leaving.close()

    assert (await copying).timers == len(await everything(sqlite))


# After the copy


@pytest.mark.parametrize("back", [False, True], ids=["to PostgreSQL", "to SQLite"])
async def test_no_service_starts_on_a_store_whose_timers_were_moved(
    sqlite: str, postgres: str, back: bool
) -> None:
    source, target = (postgres, sqlite) if back else (sqlite, postgres)
    await fill(source, many(5))
    await copy(source, target)

    with pytest.raises(StoreFailed, match=r"were moved to (sqlite|postgresql)://.*timer-service reopen"):
        async with opened(source):
            pass

    async with opened(target) as store:
        assert len(await store.list_timers(TimerQuery(TenantId("tenant-1")))) == 1


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_a_store_whose_timers_were_moved_can_be_used_again(
    sqlite: str, postgres: str, tmp_path: Path, kind: str
) -> None:
    source = sqlite if kind == "sqlite" else postgres
    await fill(source, many(5))
    await copy(source, f"sqlite:///{tmp_path / 'two.db'}")

    async with open_archive(source, as_source=True) as archive:
        moved_to = [await archive.copying.reopen()]
    async with open_archive(source, as_source=True) as archive:
        moved_to.append(await archive.copying.reopen())

    assert moved_to == [f"sqlite:///{tmp_path / 'two.db'}", None]
    async with opened(source) as store:
        assert (await store.count(at(0))).pending > 0


@pytest.mark.parametrize("back", [False, True], ids=["to PostgreSQL", "to SQLite"])
async def test_a_copy_that_ends_between_its_last_two_steps_leaves_no_store_usable_and_goes_on(
    sqlite: str, postgres: str, back: bool
) -> None:
    source, target = (postgres, sqlite) if back else (sqlite, postgres)
    await fill(source, many(5))

    with pytest.raises(Interrupted):
        async with open_archives(source, target) as (one, other):
            await copy_timers(
                source=one,
                target=cast(WritableArchive, _Unended(other)),
                restart=False,
                progress=lambda *_: None,
            )
    for store, problem in ((source, "were moved"), (target, "unfinished copy")):
        with pytest.raises(StoreFailed, match=problem):
            async with opened(store):
                pass

    await copy(source, target)

    async with opened(target):
        pass


# An instance that was away while the copy began


async def test_nothing_is_claimed_or_changed_in_a_source_while_it_is_copied(
    postgres: str,
) -> None:
    limits = PostgresLimits(lock_timeout_s=0.1)
    await fill(postgres, [schedule("order-1", -1), *many(30)])

    async with (
        open_archive(postgres, as_source=True),
        open_postgres_store(postgres, lambda: at(0), limits=limits) as store,
    ):
        with pytest.raises(StoreBusy, match="lock timeout"):
            async with store.claim_due(at(0), 10):
                pass
        with pytest.raises(StoreBusy, match="lock timeout"):
            await store.apply([schedule("order-2", 60, number=9_999)], at(0))
        with pytest.raises(StoreBusy, match="lock timeout"):
            await store.purge(at(10**6), 10)

    async with opened(postgres) as later, later.claim_due(at(0), 10) as claim:
        assert claim.timers


async def claim_something(store: TimerStore) -> None:
    """Claim; the store may first have to notice that its connections are gone."""
    while True:
        with suppress(StoreBusy):
            async with store.claim_due(at(0), 10):
                return


@pytest.mark.parametrize("connects_during_the_copy", [False, True])
async def test_an_instance_that_comes_back_after_the_copy_fires_nothing(
    postgres: str, sqlite: str, connects_during_the_copy: bool
) -> None:
    await fill(postgres, [schedule("order-1", -1), *many(30)])

    async with opened(postgres) as away:
        await execute(
            postgres,
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'timer-service'",
        )
        async with open_archives(postgres, sqlite) as (one, other):
            if connects_during_the_copy:
                await away.next_due_at(at(0))
            await copy_timers(source=one, target=other, restart=False, progress=lambda *_: None)

        with pytest.raises(StoreFailed, match="were moved to sqlite://"):
            await claim_something(away)


def test_the_command_opens_a_store_again(sqlite: str, tmp_path: Path) -> None:
    asyncio.run(fill(sqlite, many(5)))
    asyncio.run(copy(sqlite, f"sqlite:///{tmp_path / 'two.db'}"))

    results = [run_cli("reopen", sqlite, cwd=tmp_path) for _ in range(2)]

    assert [result.returncode for result in results] == [0, 0]
    assert "two.db, where nothing may run now" in results[0].stdout
    assert "nothing to do" in results[1].stdout


def test_the_command_says_what_it_copied(sqlite: str, tmp_path: Path) -> None:
    async def prepare() -> None:
        await fill(sqlite, many())

    asyncio.run(prepare())

    result = run_cli(
        "copy", "--from", sqlite, "--to", f"sqlite:///{tmp_path / 'two.db'}", "--json", cwd=tmp_path
    )

    assert (result.returncode, result.stderr) == (0, "")
    assert json.loads(result.stdout)["timers"] == 107


def test_a_target_that_is_no_file_is_one_clear_line(sqlite: str, tmp_path: Path) -> None:
    asyncio.run(fill(sqlite, many(5)))
    (tmp_path / "folder").mkdir()

    result = run_cli("copy", "--from", sqlite, "--to", "sqlite:///folder", cwd=tmp_path)

    assert result.returncode == 1
    assert "folder: Is a directory: " in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("source", "target", "complaint"),
    [
        ("sqlite:///missing.db", "sqlite:///two.db", "there is no database"),
        ("timers.db", "sqlite:///two.db", "must be sqlite:///path or postgresql://"),
        ("sqlite:///one.db", "sqlite:///one.db", "name the same store"),
        ("sqlite:///missing.db", "postgresql://u:secret@localhost:1/x", "there is no database"),
    ],
)
def test_a_copy_that_cannot_begin_is_one_clear_line(
    tmp_path: Path, source: str, target: str, complaint: str
) -> None:
    result = run_cli("copy", "--from", source, "--to", target, cwd=tmp_path)

    assert result.returncode != 0
    assert complaint in result.stderr
    assert "Traceback" not in result.stderr
    assert "secret" not in result.stderr


def named_secret(sealed: bytes) -> StoredSecret:
    return StoredSecret(TenantId(ACME), SecretKind.NAMED, "token", sealed, created_at=at(0))


def api_key(key_id: str) -> ApiKey:
    return ApiKey(key_id, TenantId(ACME), frozenset({Scope.READ}), bytes(32), at(0), None, None, "")


@pytest.mark.parametrize("back", [False, True])
async def test_secrets_and_keys_come_along_as_they_are(
    sqlite: str, postgres: str, tmp_path: Path, back: bool
) -> None:
    source, target = (postgres, sqlite) if back else (sqlite, postgres)
    await fill(source, many(3))
    secrets = [
        StoredSecret(TenantId(f"tenant-{n}"), SecretKind.NAMED, "token", bytes([n]), created_at=at(n))
        for n in range(3)
    ]
    keys = [
        ApiKey(
            f"k{n}", TenantId("acme"), frozenset({Scope.READ}), bytes(32), at(n), at(n + 9), revoked_at, "x"
        )
        for n, revoked_at in enumerate([None, at(3)])
    ]
    async with open_secrets_and_keys(source) as (store, kept):
        await store.save_secrets(secrets)
        for key in keys:
            await kept.add(key)

    result = await asyncio.to_thread(run_cli, "copy", "--from", source, "--to", target, cwd=tmp_path)

    assert result.returncode == 0, result.stderr
    async with open_secrets_and_keys(target) as (store, kept):
        assert list(await store.secrets_after(None, 10)) == secrets
        assert await copy_secrets(store, store, batch_size=2) == 3
        assert list(await kept.list_keys()) == keys
        assert await copy_keys(kept, kept) == 0


CALLBACK = Callback(
    "https://shop.example/hooks", headers=(("x-a", "1"),), body=b"\x00\xff", metadata='{"a": 1}'
)


async def fill_callbacks(url: str) -> None:
    """Keep timers with callbacks in every state."""
    names = ("later", "waits", "delivered", "failed")
    async with opened(url) as opened_store:
        store = cast(Any, opened_store)
        requests = [
            replace(schedule(name, 60 if name == "later" else -1, number=n + 1), callback=CALLBACK)
            for n, name in enumerate(names)
        ]
        await store.decide(requests, at(-10))
        async with store.claim_due(at(0), 20, sink=Sink.HTTP) as claim:
            await claim.mark_reached([timer.event(TimerState.REACHED, at(0)) for timer in claim.timers])
        claimed = await store.deliveries.claim([(ACME, call("delivered")), (ACME, call("failed"))], at(1))
        finished = []
        for each in claimed:
            result = Answered(200 if each.delivery.service_call_id == "delivered" else 410)
            after = after_attempt(each.delivery, CALLBACK.retry, result, at(1), at(2), lambda: 0.0)
            failure = Attempt(1, at(1), timedelta(seconds=1), 410, "gone", "moved") if after.error else None
            finished.append(Finished(each.delivery, after, failure))
        assert await store.deliveries.finish(finished) == 2


async def callbacks(url: str) -> dict[str, CallbackRecord]:
    async with open_archive(url, as_source=True) as archive:
        found = await archive.records([timer.key for timer in await archive.read(None, 100)])
    return {str(key[1]): record for key, record in found.items()}


async def test_callbacks_and_what_became_of_them_travel_along(
    sqlite: str, postgres: str, tmp_path: Path
) -> None:
    back = f"sqlite:///{tmp_path / 'back.db'}"
    await fill_callbacks(sqlite)
    before = await callbacks(sqlite)

    await copy(sqlite, postgres)
    between = await callbacks(postgres)
    await copy(postgres, back)

    assert set(before) == {"later", "waits", "delivered", "failed"}
    assert [record.delivery.state.value for record in before.values() if record.delivery] != []
    assert (between, await callbacks(back)) == (before, before)


async def test_no_more_callbacks_are_in_memory_than_were_asked_for(sqlite: str, tmp_path: Path) -> None:
    target = f"sqlite:///{tmp_path / 'target.db'}"
    await fill_callbacks(sqlite)
    await fill(sqlite, [schedule(f"on-the-bus-{n}", 60, number=n + 10) for n in range(3)])
    seen: list[tuple[str, int]] = []

    async with open_archives(sqlite, target) as (one, other):
        await copy_timers(
            source=one,
            target=other,
            restart=False,
            progress=lambda what, done, _: seen.append((what, done)),
            batch_size=5,
            callbacks=2,
        )

    # By name: delivered, failed | later and two on the bus, where the batch ends | one on the bus, waits.
    parts = [2, 5, 7]
    assert seen == [("copying", 0), *[("copying", n) for n in parts], *[("verifying", n) for n in parts] * 2]
    assert await callbacks(target) == await callbacks(sqlite)


async def test_a_copy_that_lost_a_callback_is_not_taken_for_whole(sqlite: str, postgres: str) -> None:
    await fill_callbacks(sqlite)

    with pytest.raises(Interrupted):
        await copy(sqlite, postgres, stop_after=4)
    await execute(postgres, "DELETE FROM timer_callbacks WHERE service_call_id = 'waits'")

    with pytest.raises(CriticalError, match="is not the same"):
        await copy(sqlite, postgres)
