"""Several instances on one PostgreSQL database: real processes, a real server, a real broker."""

import asyncio
import json
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import asyncpg
import pytest
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from tests.support.broker import NatsServer, told
from tests.support.http import fetch_json, metric
from tests.support.messages import in_seconds, parse
from tests.support.patience import PATIENCE_S
from tests.support.ports import free_port
from tests.support.postgres import PostgresServer, fresh_schema, shared_server_url
from tests.support.process import TimerServiceProcess, run_cli
from tests.support.requests import ask
from tests.support.world import World

T = TypeVar("T")
pytestmark = pytest.mark.cluster

# The wall clock of an instance, half a minute ahead of everybody else's.
CLOCK_AHEAD = """
import time
real = time.time_ns
time.time_ns = lambda: real() + 30_000_000_000
"""
BURST = 20_000
BATCH = 1_000
SELDOM_MS = 600_000
"""A poll that comes too late for every test: what happens sooner was not waiting for it."""

# As the service itself would have kept them.
_PREPARE = """
INSERT INTO timer_schedules (tenant_id, service_call_id, state, due_at, generation, registered_at,
  stream_created_us, stream_sequence)
SELECT 'tenant-' || n % 7, 'order-' || n, 'Scheduled', date_trunc('milliseconds', $1::timestamptz), 1,
  date_trunc('milliseconds', now()), 1, n
FROM generate_series(1, $2::integer) AS n
"""
# The instance that accepts a timer tells the others.
_CHANNEL = "left('timer_due_' || current_schema(), 60)"
_TELL = f"""
SELECT pg_notify({_CHANNEL},
  (extract(epoch FROM $1::timestamptz) * 1000)::bigint::text)
"""
_STATES = "SELECT state, count(*) FROM timer_schedules GROUP BY state"


@pytest.fixture
async def database() -> AsyncIterator[str]:
    """An empty schema on the shared server."""
    async with fresh_schema() as url:
        yield url


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    """A PostgreSQL that the test may stop and start."""
    server = PostgresServer().start()
    yield server
    server.remove()


class Published:
    """Every publication of an event, also those that the broker then drops as a repetition."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.ids: list[str] = []

    async def watch(self) -> "Published":
        await self._world.client.subscribe(
            f"{self._world.prefix}.events.>",
            cb=self._note,
            pending_msgs_limit=-1,
            pending_bytes_limit=-1,
        )
        await told(self._world.client)
        return self

    async def _note(self, message: Msg) -> None:
        self.ids.append((message.headers or {})["Nats-Msg-Id"])

    async def wait_for(self, distinct: int, timeout_s: float = PATIENCE_S) -> None:
        async def enough() -> bool:
            return len(self.ids) >= distinct and len(set(self.ids)) >= distinct

        await self._world.until(enough, f"{distinct} events", timeout_s)

    @property
    def repeated(self) -> int:
        return len(self.ids) - len(set(self.ids))


async def query(url: str, sql: str, *parameters: object) -> list[tuple[Any, ...]]:
    connection = await asyncpg.connect(url)
    try:
        return [tuple(row) for row in await connection.fetch(sql, *parameters)]
    finally:
        await connection.close()


async def prepare(url: str, due_at: datetime, count: int) -> None:
    """Put timers into the store, all due at one moment, and tell every instance."""
    await query(url, _PREPARE, due_at, count)
    await query(url, _TELL, due_at)


@asynccontextmanager
async def hints(url: str) -> AsyncIterator[asyncio.Event]:
    """Tell when an instance has told the others of a timer."""
    told = asyncio.Event()
    connection = await asyncpg.connect(url)
    try:
        await connection.add_listener(await connection.fetchval(f"SELECT {_CHANNEL}"), lambda *_: told.set())
        yield told
    finally:
        await connection.close()


async def prepare_within(connection: Any, due_at: datetime, count: int) -> None:
    await connection.execute(_PREPARE, due_at, count)


async def wait_for_locks(world: World, url: str, count: int) -> None:
    """Wait until an instance holds this many timers."""
    free = "SELECT count(*) FROM (SELECT FROM timer_schedules FOR UPDATE SKIP LOCKED) AS free"
    all_of_them = "SELECT count(*) FROM timer_schedules"

    async def so() -> bool:
        [(total,)], [(unlocked,)] = await query(url, all_of_them), await query(url, free)
        return bool(total - unlocked == count)

    await world.until(so, f"{count} timers to be claimed")


async def wait_for_states(world: World, url: str, **expected: int) -> None:
    async def so() -> bool:
        return dict(await query(url, _STATES)) == expected

    await world.until(so, f"timers by state to be {expected}")


def instances(world: World, url: str, count: int, **settings: object) -> list[TimerServiceProcess]:
    """Start this many instances; the first alone, so that it makes the streams."""
    defaults = {"store_url": url, "batch_size": BATCH}
    started = [world.service(**{**defaults, **settings}) for _ in range(count)]
    for instance in started:
        instance.start_ready()
    return started


async def test_an_operator_reaches_every_instance(world: World, database: str, tmp_path: Path) -> None:
    group = instances(world, database, 3)
    names = sorted(each.events("service.started")[0]["instance"] for each in group)

    def ask(*command: str) -> list[str]:
        done = run_cli(*command, "--json", cwd=tmp_path, broker_url=world.broker.url)
        assert done.returncode == 0, done.stderr
        return [json.loads(line)["instance"] for line in done.stdout.splitlines()]

    assert len(set(names)) == 3
    assert await asyncio.to_thread(ask, "status") == names
    assert await asyncio.to_thread(ask, "clock", "accept") == names


# Sharing the work


async def test_three_instances_publish_each_of_20000_timers_once(world: World, database: str) -> None:
    group = instances(world, database, 3)
    published = await Published(world).watch()

    await prepare(database, in_seconds(2), BURST)
    await published.wait_for(BURST)

    await wait_for_states(world, database, Reached=BURST)
    assert published.repeated == 0
    assert len(published.ids) == BURST
    for each in group:
        assert each.terminate() == 0  # The log is complete only now.
    fired = [sum(line["timers"] for line in each.events("batch.fired")) for each in group]
    assert sum(fired) == BURST
    assert min(fired) > 0


async def test_instances_share_the_commands_and_keep_every_one(world: World, database: str) -> None:
    group = instances(world, database, 3)
    published = await Published(world).watch()
    due_at = in_seconds(3)

    for n in range(600):
        await world.schedule("acme", f"order-{n}", due_at)
    for n in range(0, 600, 3):
        await world.cancel("acme", f"order-{n}")
    await world.wait_until_consumed()
    await published.wait_for(400)

    await wait_for_states(world, database, Reached=400, Cancelled=200)
    assert published.repeated == 0
    took = [len(each.events("commands.applied")) for each in group]
    assert min(took) > 0


async def test_cancelled_means_that_no_instance_fires_it(world: World, database: str) -> None:
    instances(world, database, 3)
    names = [f"race-{number}" for number in range(90)]
    first_due = in_seconds(1)
    for number, name in enumerate(names):
        await world.schedule("acme", name, first_due + timedelta(milliseconds=10 * number))
    await world.wait_until_consumed()

    async def stop(number: int, name: str) -> tuple[str, str]:
        # Aim at the due time itself, a little before and a little after.
        aim = first_due + timedelta(milliseconds=10 * number + (number % 10 - 5) * 10)
        await asyncio.sleep(max(0.0, (aim - in_seconds(0)).total_seconds()))
        return name, (await ask(world, "cancel", serviceCallId=name))["outcome"]

    outcomes = dict(await asyncio.gather(*(stop(number, name) for number, name in enumerate(names))))
    reached = sorted(name for name in names if outcomes[name] == "already_reached")
    await wait_for_states(world, database, Reached=len(reached), Cancelled=len(names) - len(reached))
    events = await world.events()

    assert set(outcomes.values()) == {"cancelled", "already_reached"}
    assert sorted(event["payload"]["serviceCallId"] for event in events) == reached


async def test_an_instance_whose_clock_is_ahead_fires_nothing_early(
    world: World, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = world.folder / "ahead"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(CLOCK_AHEAD)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]))
    port = free_port()
    [instance] = instances(world, database, 1, http_port=port)
    published = await Published(world).watch()
    due_at = in_seconds(2)

    await world.schedule("acme", "order-1", due_at)
    await published.wait_for(1)
    out_at = in_seconds(0)

    assert instance.is_running
    assert out_at >= due_at
    assert metric(port, "timer_clock_skew_seconds") == pytest.approx(30, abs=15)


# An instance dies or hangs


async def test_the_batch_of_a_killed_instance_does_not_wait_for_a_poll(world: World, database: str) -> None:
    group = instances(world, database, 3, polling_interval=SELDOM_MS)
    published = await Published(world).watch()
    await prepare(database, in_seconds(2), BURST)
    await published.wait_for(BURST // 4)

    group[0].kill()
    await published.wait_for(BURST)

    await wait_for_states(world, database, Reached=BURST)
    assert published.repeated <= BATCH
    assert len(await world.stored_ids()) == BURST


async def test_what_an_instance_holds_is_taken_over_after_its_connection_ends_without_a_poll(
    world: World, database: str
) -> None:
    [instance] = instances(world, database, 1, polling_interval=SELDOM_MS)
    published = await Published(world).watch()
    dying = await asyncpg.connect(database)
    async with dying.transaction():
        await prepare_within(dying, in_seconds(-1), 10)
    await dying.execute("BEGIN")
    await dying.fetch("SELECT FROM timer_schedules FOR UPDATE")
    await world.schedule("acme", "free", in_seconds(-1))
    await published.wait_for(1)

    dying.terminate()
    await published.wait_for(11)

    assert published.repeated == 0
    assert instance.is_running


async def test_a_stopped_instance_holds_up_nobody_and_its_late_mark_changes_nothing(
    world: World, database: str
) -> None:
    # Without a limit for catching up it claims first and then finds that the broker does not answer.
    [stopped] = instances(world, database, 1, batch_size=10, catch_up="0")
    published = await Published(world).watch()
    await prepare(database, in_seconds(1.5), 30)
    world.broker.freeze()
    await wait_for_locks(world, database, 10)

    os.kill(stopped.pid, signal.SIGSTOP)
    world.broker.thaw()
    [other] = instances(world, database, 1, batch_size=10)
    await wait_for_states(world, database, Reached=30)
    before = await query(database, "SELECT * FROM timer_schedules ORDER BY service_call_id")
    other.kill()
    os.kill(stopped.pid, signal.SIGCONT)
    await world.schedule("acme", "after", in_seconds(-1))
    await published.wait_for(31)
    await wait_for_states(world, database, Reached=31)

    after = await query(
        database, "SELECT * FROM timer_schedules WHERE tenant_id <> 'acme' ORDER BY service_call_id"
    )
    assert after == before
    assert len(await world.stored_ids()) == 31


async def test_another_instance_fires_what_a_hanging_one_has_accepted(world: World, database: str) -> None:
    # Only the hint lets the other instance look in time.
    first, second = instances(world, database, 2, polling_interval=SELDOM_MS)
    published = await Published(world).watch()
    due_at = in_seconds(2)

    async def accepted() -> bool:
        return bool(first.events("commands.applied") or second.events("commands.applied"))

    async with hints(database) as told:
        await world.schedule("acme", "order-1", due_at)
        await world.until(accepted, "an instance to take the command")
        # The hint goes out beside everything else: what hangs before that has told nobody.
        await asyncio.wait_for(told.wait(), PATIENCE_S)
    accepting, other = (first, second) if first.events("commands.applied") else (second, first)
    os.kill(accepting.pid, signal.SIGSTOP)
    await published.wait_for(1)
    os.kill(accepting.pid, signal.SIGCONT)

    other.wait_for_log("batch.fired")
    [event] = await world.wait_for_events(1)
    assert parse(event["payload"]["reachedAt"]) >= due_at


async def test_the_loss_of_a_broker_and_an_instance_at_once_loses_no_timer(
    tmp_path: Path, database: str
) -> None:
    ports = [free_port() for _ in range(3)]
    routes = ", ".join(f"'nats://127.0.0.1:{port}'" for port in ports)
    brokers = [
        NatsServer(
            tmp_path / f"broker-{port}",
            f"server_name: n{port}\n"
            f"cluster {{ name: timers, listen: '127.0.0.1:{port}', routes: [{routes}] }}",
        ).start()
        for port in ports
    ]
    world = await World(tmp_path, brokers[0], "timer").open()
    try:
        await world.until(lambda: has_leader(world), "the brokers to find each other")
        servers = ",".join(broker.url for broker in brokers)
        group = instances(world, database, 3, broker_url=servers, stream_replicas=3)
        names = [f"order-{n}" for n in range(300)]
        due_at = in_seconds(4)
        for name in names:
            await patiently(world, partial(world.schedule, "acme", name, due_at))
        await patiently(world, world.wait_until_consumed)

        brokers[2].kill()
        group[2].kill()
        await world.wait_for_event_count(len(names))
        events = await patiently(world, world.events)

        assert sorted(event["payload"]["serviceCallId"] for event in events) == sorted(names)
        await wait_for_states(world, database, Reached=len(names))
    finally:
        await world.close()
        for broker in brokers:
            broker.stop()


async def patiently(world: World, ask: Callable[[], Awaitable[T]]) -> T:
    """Ask until there is an answer: a replicated stream without a leader gives none."""
    answers: list[T] = []

    async def answered() -> bool:
        with suppress(NatsError, TimeoutError):
            async with asyncio.timeout(5):
                answers.append(await ask())
        return bool(answers)

    await world.until(answered, "the brokers to answer")
    return answers[0]


async def has_leader(world: World) -> bool:
    with suppress(NatsError, TimeoutError):
        info = json.loads((await world.client.request("$JS.API.INFO", timeout=0.5)).data)
        return "error" not in info
    return False


# The database goes away and comes back


@pytest.mark.parametrize("crash", [False, True], ids=["restart", "crash"])
async def test_a_restart_of_the_database_under_load_loses_nothing(
    world: World, own_server: PostgresServer, crash: bool
) -> None:
    url = own_server.url()
    group = instances(world, url, 2)
    names = [f"order-{n}" for n in range(300)]

    async def load() -> None:
        for name in names:
            await world.schedule("acme", name, in_seconds(0.5))
            await asyncio.sleep(0.01)

    loading = asyncio.ensure_future(load())
    await world.wait_for_events(20)
    await asyncio.to_thread(own_server.kill if crash else own_server.stop)
    group[0].wait_for_log("store.unavailable")
    await asyncio.to_thread(own_server.start)
    await asyncio.to_thread(group[0].wait_for_log, "store.recovered")
    await loading
    events = await world.wait_for_events(len(names))

    assert Counter(event["payload"]["serviceCallId"] for event in events) == dict.fromkeys(names, 1)
    await wait_for_states(world, url, Reached=len(names))


async def test_without_its_database_the_service_is_live_but_not_ready_and_recovers(
    world: World, own_server: PostgresServer
) -> None:
    port = free_port()
    [instance] = instances(world, own_server.url(), 1, http_port=port, polling_interval=200)

    own_server.stop()
    instance.wait_for_log("store.unavailable")
    not_ready = fetch_json(port, "/readyz")
    live = fetch_json(port, "/livez")
    own_server.start()
    instance.wait_for_log("store.recovered")

    assert (not_ready[0], list(not_ready[1]["problems"])) == (503, ["store"])
    assert live == (200, {"status": "ok"})
    assert fetch_json(port, "/readyz") == (200, {"status": "ok"})


async def test_the_service_waits_for_a_database_that_is_still_starting(
    world: World, own_server: PostgresServer
) -> None:
    own_server.stop()
    service = world.service(store_url=own_server.url()).start()
    service.wait_for_log("store.unavailable")

    own_server.start()
    service.wait_for_log("broker.connected")

    await world.schedule("acme", "order-1", in_seconds(-1))
    await world.wait_for_events(1)


# Settings that cannot work


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("postgresql://postgres@{host}/no_such_database", 'database "no_such_database" does not exist'),
        ("postgresql://nobody:secret@{host}/postgres", 'role "nobody" does not exist'),
        ("mysql://localhost/timers", "TIMER_STORE_URL"),
    ],
)
def test_a_wrong_address_is_one_clear_line(tmp_path: Path, url: str, complaint: str) -> None:
    host = urlsplit(shared_server_url()).netloc.rpartition("@")[2]

    result = run_cli("run", cwd=tmp_path, store_url=url.format(host=host), log_format="json")

    assert result.returncode != 0
    assert complaint in result.stderr
    assert "secret" not in result.stderr
    assert "Traceback" not in result.stderr
