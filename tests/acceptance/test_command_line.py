"""The command line, as a person at a terminal and as a script use it."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support import messages
from tests.support.broker import NatsServer
from tests.support.messages import in_seconds, iso, parse
from tests.support.patience import PATIENCE_S
from tests.support.process import run_cli, run_or_kill, start_cli
from tests.support.world import World

NOBODY = "nats://127.0.0.1:1"
"""An address where no broker is, so that a command under test never talks to one that is not the test's."""

SIDE_BY_SIDE = 4

Finished = subprocess.CompletedProcess[str]


def cli(world: World, *arguments: str, **settings: object) -> Finished:
    """Run a command against the world's broker."""
    where: dict[str, Any] = {"broker_url": world.broker.url, "subject_prefix": world.prefix}
    return run_cli(*arguments, cwd=world.folder, **{**where, **settings})


def only_line(text: str) -> str:
    lines = text.splitlines()
    assert len(lines) == 1, text
    return lines[0]


def said(finished: Finished, code: int) -> str:
    """Return the one line of output of a command that ended with this code and no complaint."""
    assert (finished.returncode, finished.stderr) == (code, "")
    return only_line(finished.stdout)


def complaint(finished: Finished, code: int) -> str:
    """Return the one line of complaint of a command that ended with this code and no output."""
    assert (finished.returncode, finished.stdout) == (code, "")
    line = only_line(finished.stderr)
    assert line.startswith("timer-service: ")
    return line


# schedule and cancel


async def test_schedule_says_when_the_timer_is_due_and_it_fires(world: World) -> None:
    world.service().start_ready()

    line = said(cli(world, "schedule", "--tenant", "acme", "--id", "order-42", "--in", "300ms"), 0)
    event = (await world.wait_for_events(1))[0]

    assert line == "acme/order-42 is due in 0.3 s"
    assert event["payload"]["serviceCallId"] == "order-42"


async def test_schedule_for_a_program_says_everything_as_json(world: World) -> None:
    world.service().start_ready()

    before, in_90_minutes = datetime.now(UTC), timedelta(minutes=90)
    arguments = ["--tenant", "acme", "--id", "order-42", "--in", "1h30m", "--json"]
    told = json.loads(said(cli(world, "schedule", *arguments), 0))
    row = await world.wait_for_row("acme", "order-42", state="Scheduled")

    command_id = told.pop("commandId")
    assert uuid.UUID(command_id).version == 7
    assert told == {
        "tenantId": "acme",
        "serviceCallId": "order-42",
        "delayMs": 5_400_000,
        "stream": world.commands_stream,
        "sequence": row["stream_sequence"],
    }
    assert iso(before + in_90_minutes) <= row["due_at"] <= iso(datetime.now(UTC) + in_90_minutes)


async def test_schedule_only_if_absent_leaves_the_first_due_time(world: World) -> None:
    world.service().start_ready()
    said(cli(world, *SCHEDULE, "--at", "2096-12-01T09:00:00Z"), 0)

    line = said(cli(world, *SCHEDULE, "--in", "5s", "--if-absent", "--expires-after", "1h"), 0)
    said(cli(world, "schedule", "--tenant", "acme", "--id", "order-43", "--in", "1h"), 0)
    await world.wait_for_row("acme", "order-43", state="Scheduled")

    assert line == "acme/order-42 is due in 5.0 s, unless there is such a timer"
    row = await world.wait_for_row("acme", "order-42", state="Scheduled")
    assert (row["due_at"], row["expires_after_ms"]) == ("2096-12-01T09:00:00.000Z", None)


async def test_a_timer_that_would_fire_too_late_expires_and_is_listed_as_such(world: World) -> None:
    world.service().start_ready()

    said(cli(world, *SCHEDULE, "--at", "2020-01-01T00:00:00Z", "--expires-after", "1h"), 0)
    await world.wait_for_row("acme", "order-42", state="Expired")

    listed = said(cli(world, "list", "--tenant", "acme", "--state", "Expired", "--json"), 0)
    timer = json.loads(listed)
    assert (timer["state"], timer["expiresAfterMs"], "expiredAt" in timer) == ("Expired", 3_600_000, True)


async def test_schedule_at_a_time_keeps_it_in_utc_with_its_correlation_id(world: World) -> None:
    world.service().start_ready()

    arguments = ["--id", "order-42", "--at", "2096-12-01T09:00:00+01:00", "--correlation-id", "request 7"]
    line = said(cli(world, "schedule", "--tenant", "acme", *arguments), 0)
    row = await world.wait_for_row("acme", "order-42", due_at="2096-12-01T08:00:00.000Z")

    assert "2096-12-01T08:00:00.000Z" in line
    assert row["correlation_id"] == "request 7"


async def test_schedule_in_the_past_says_that_it_fires_at_once(world: World) -> None:
    world.service().start_ready()

    arguments = ["--tenant", "acme", "--id", "order-42", "--at", "2020-01-01T00:00:00Z"]
    line = said(cli(world, "schedule", *arguments), 0)

    assert "fires at once" in line
    assert len(await world.wait_for_events(1)) == 1


async def test_schedule_without_an_id_makes_one_and_tells_it(world: World) -> None:
    world.service().start_ready()

    told = json.loads(said(cli(world, "schedule", "--tenant", "acme", "--in", "1h", "--json"), 0))

    assert uuid.UUID(told["serviceCallId"]).version == 7
    await world.wait_for_row("acme", told["serviceCallId"], state="Scheduled")


async def test_cancel_ends_a_timer(world: World) -> None:
    world.service().start_ready()
    cli(world, "schedule", "--tenant", "acme", "--id", "order-42", "--in", "1h")

    line = said(cli(world, "cancel", "--tenant", "acme", "--id", "order-42"), 0)
    await world.wait_for_row("acme", "order-42", state="Cancelled")

    assert line == "cancellation of acme/order-42 requested"


async def test_cancel_for_a_program_says_everything_as_json(world: World) -> None:
    world.service().start_ready()

    told = json.loads(said(cli(world, "cancel", "--tenant", "acme", "--id", "order-42", "--json"), 0))
    row = await world.wait_for_row("acme", "order-42", state="Cancelled")

    assert uuid.UUID(told.pop("commandId")).version == 7
    assert told == {
        "tenantId": "acme",
        "serviceCallId": "order-42",
        "stream": world.commands_stream,
        "sequence": row["stream_sequence"],
    }


SCHEDULE = ("schedule", "--tenant", "acme", "--id", "order-42")
WRONG_ARGUMENTS: dict[str, tuple[tuple[str, ...], str]] = {
    "unknown command": (("postpone",), "postpone"),
    "schedule without a time": (SCHEDULE, "--in"),
    "schedule without a tenant": (("schedule", "--id", "order-42", "--in", "1h"), "--tenant"),
    "cancel without an id": (("cancel", "--tenant", "acme"), "--id"),
    "duration without a unit": ((*SCHEDULE, "--in", "10"), "10s"),
    "duration with an unknown unit": ((*SCHEDULE, "--in", "10y"), "10y"),
    "negative duration": ((*SCHEDULE, "--in=-10s"), "-10s"),
    "duration of more than ten years": ((*SCHEDULE, "--in", "3653d"), "use --at"),
    "duration beyond all numbers": ((*SCHEDULE, "--in", "9" * 400 + "d"), "too long"),
    "time without a zone": ((*SCHEDULE, "--at", "2096-01-01T00:00:00"), "offset"),
    "time in words": ((*SCHEDULE, "--at", "tomorrow"), "ISO 8601"),
    "tenant with a dot": (("cancel", "--tenant", "acme.eu", "--id", "order-42"), "A-Z a-z 0-9 _ -"),
    "id with a blank": (("cancel", "--tenant", "acme", "--id", "order 42"), "whitespace"),
    "empty id to cancel": (("cancel", "--tenant", "acme", "--id", ""), "255"),
    "empty id to schedule": (("schedule", "--tenant", "acme", "--id", "", "--in", "1h"), "255"),
    "empty correlation id": ((*SCHEDULE, "--in", "1h", "--correlation-id", ""), "255"),
    "id that is not UTF-8": (("cancel", "--tenant", "acme", "--id", "order\udcff"), "id"),
    "watch a tenant with a wildcard": (("watch", "--tenant", "*"), "A-Z a-z 0-9 _ -"),
    "watch for no event": (("watch", "--count", "0"), "--count"),
    "address without a scheme": (
        ("cancel", "--tenant", "a", "--id", "b", "--server", "localhost"),
        "nats://",
    ),
    "address with a port in words": (
        ("cancel", "--tenant", "a", "--id", "b", "--server", "nats://127.0.0.1:port"),
        "nats://",
    ),
    "port for dev in words": (("dev", "--port", "many"), "65535"),
}


@pytest.fixture(scope="module")
def refusals(shared_broker: NatsServer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Finished]:
    """Every command with wrong arguments, run side by side: starting Python takes longer than to refuse."""
    folder = tmp_path_factory.mktemp("wrong")

    def run(case: tuple[tuple[str, ...], str]) -> Finished:
        where: dict[str, Any] = {"broker_url": shared_broker.url, "subject_prefix": "wrong"}
        return run_or_kill(*case[0], cwd=folder, **where)

    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        return dict(zip(WRONG_ARGUMENTS, pool.map(run, WRONG_ARGUMENTS.values()), strict=True))


@pytest.mark.parametrize("name", WRONG_ARGUMENTS)
def test_wrong_arguments_end_with_2_and_say_what_is_allowed(refusals: dict[str, Finished], name: str) -> None:
    finished, word = refusals[name], WRONG_ARGUMENTS[name][1]

    assert (finished.returncode, finished.stdout) == (2, "")
    assert "Traceback" not in finished.stderr
    last = finished.stderr.splitlines()[-1]
    assert last.startswith("timer-service")
    assert word in last


@pytest.mark.parametrize(
    "arguments", [(*SCHEDULE, "--in", "1h"), ("cancel", "--tenant", "acme", "--id", "order-42"), ("watch",)]
)
def test_without_a_broker_every_command_ends_with_3_and_says_where_it_looked(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    finished = run_or_kill(*arguments, cwd=tmp_path, broker_url="nats://me:hunter2@127.0.0.1:1")

    line = complaint(finished, 3)
    assert "127.0.0.1:1" in line
    assert "hunter2" not in line


def test_the_server_option_comes_before_the_environment(tmp_path: Path) -> None:
    arguments = ("--tenant", "acme", "--id", "order-42", "--server", "nats://127.0.0.1:2")

    line = complaint(run_cli("cancel", *arguments, cwd=tmp_path, broker_url=NOBODY), 3)

    assert "127.0.0.1:2" in line


@pytest.mark.parametrize(
    "arguments", [(*SCHEDULE, "--in", "1h"), ("cancel", "--tenant", "acme", "--id", "order-42")]
)
def test_a_broker_that_no_service_ever_used_is_told_apart(world: World, arguments: tuple[str, ...]) -> None:
    line = complaint(cli(world, *arguments), 3)

    assert "no stream" in line
    assert "start timer-service" in line


# watch


class Watch:
    """A running `watch`, read line by line."""

    def __init__(self, world: World, *arguments: str) -> None:
        self._world = world
        self.process = start_cli(
            "watch",
            *arguments,
            cwd=world.folder,
            broker_url=world.broker.url,
            subject_prefix=world.prefix,
        )
        self._reading: asyncio.Future[str] | None = None

    async def __aenter__(self) -> "Watch":
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PATIENCE_S)
        if self._reading is not None:
            await self._reading
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()

    async def line(self) -> str:
        """Return the next line of output."""
        async with asyncio.timeout(PATIENCE_S):
            return await asyncio.shield(self._next_line())

    def _next_line(self) -> "asyncio.Future[str]":
        if self._reading is None:
            assert self.process.stdout is not None
            self._reading = asyncio.get_running_loop().run_in_executor(None, self.process.stdout.readline)
            self._reading.add_done_callback(self._forget)
        return self._reading

    def _forget(self, _: object) -> None:
        self._reading = None

    async def ready(self, tenant: str) -> None:
        """Fire timers of this tenant until `watch` has shown one; read the rest of them away."""
        sent = 0
        while True:
            await self._world.schedule(tenant, f"ready-{sent}", in_seconds(0))
            sent += 1
            try:
                async with asyncio.timeout(0.2):
                    first = await asyncio.shield(self._next_line())
                break
            except TimeoutError:
                assert sent < PATIENCE_S / 0.2, "watch shows nothing"
        shown = first
        while f"ready-{sent - 1}" not in shown:
            shown = await self.line()

    async def end(self, number: signal.Signals | None = None) -> tuple[int, str]:
        """Return its exit code and what it said on stderr."""
        if number is not None:
            self.process.send_signal(number)
        code = await asyncio.to_thread(self.process.wait, PATIENCE_S)
        assert self.process.stderr is not None
        return code, self.process.stderr.read()


async def test_watch_shows_an_event_with_its_lateness_in_one_line(world: World) -> None:
    world.service().start_ready()
    due = in_seconds(1.5)

    async with Watch(world) as watch:
        await watch.ready("acme")
        await world.schedule("acme", "order-42", due, correlationId="request-7")
        line = await watch.line()

    shown = re.fullmatch(
        r"\S+Z  acme/order-42  due (\S+)  ([+-]\d+) ms  generation 1  correlation request-7\n", line
    )
    assert shown is not None, line
    assert parse(shown[1]) == due
    assert int(shown[2]) >= 0


async def test_watch_shows_an_expired_timer_as_such(world: World) -> None:
    world.service().start_ready()

    async with Watch(world, "--tenant", "acme") as watch:
        await watch.ready("acme")
        late = messages.schedule("acme", "order-42", in_seconds(-60))
        await world.send(messages.with_payload(late, expiresAfterMs=1_000))
        line = await watch.line()

    shown = re.fullmatch(r"\S+Z  acme/order-42  due \S+  [+]\d+ ms  generation 1  expired\n", line)
    assert shown is not None, line


async def test_watch_for_a_program_prints_the_whole_event_and_its_lateness(world: World) -> None:
    world.service().start_ready()

    async with Watch(world, "--json") as watch:
        await watch.ready("acme")
        await world.schedule("acme", "bestellung-ü", in_seconds(0), correlationId="request-7")
        shown = json.loads(await watch.line())
    stored = (await world.events())[-1]

    lateness_ms = shown.pop("latenessMs")
    assert shown == stored
    assert isinstance(lateness_ms, int)
    assert lateness_ms >= 0


async def test_watch_of_one_tenant_shows_no_other(world: World) -> None:
    world.service().start_ready()

    async with Watch(world, "--json", "--tenant", "acme") as watch:
        await watch.ready("acme")
        await world.schedule("globex", "not-for-acme", in_seconds(0))
        await world.wait_for_events(1, tenant="globex")
        await world.schedule("acme", "for-acme", in_seconds(0))
        shown = json.loads(await watch.line())

    assert shown["payload"]["serviceCallId"] == "for-acme"


async def test_watch_ends_by_itself_after_so_many_events(world: World) -> None:
    world.service().start_ready()

    async with Watch(world, "--json", "--count", "3") as watch:
        sent = 0
        while watch.process.poll() is None:
            assert sent < 300
            await world.schedule("acme", f"order-{sent}", in_seconds(0))
            await world.wait_for_row("acme", f"order-{sent}", state="Reached")
            sent += 1
        code, complaints = await watch.end()
        assert watch.process.stdout is not None
        lines = watch.process.stdout.read().splitlines()

    assert (code, complaints) == (0, "")
    assert len(lines) == 3


async def test_watch_goes_on_after_something_that_is_no_event(world: World) -> None:
    world.service().start_ready()

    async with Watch(world, "--json") as watch:
        await watch.ready("acme")
        await world.client.publish(f"{world.prefix}.events.acme.DueTimeReached", b"not an event")
        await world.schedule("acme", "order-42", in_seconds(0))
        shown: dict[str, Any] = json.loads(await watch.line() or "{}")

    assert shown.get("payload", {}).get("serviceCallId") == "order-42"


async def test_ctrl_c_ends_watch_with_130_and_no_noise(world: World) -> None:
    world.service().start_ready()

    async with Watch(world, "--json") as watch:
        await watch.ready("acme")
        code, complaints = await watch.end(signal.SIGINT)

    assert (code, complaints) == (130, "")


async def test_watch_ends_quietly_when_its_reader_has_enough(world: World) -> None:
    world.service().start_ready()

    async with Watch(world, "--json") as watch:
        await watch.ready("acme")
        assert watch.process.stdout is not None
        watch.process.stdout.close()
        await world.schedule("acme", "order-42", in_seconds(0))
        code, complaints = await watch.end()

    assert (code, complaints) == (0, "")


async def test_watch_survives_a_restart_of_the_broker(world: World) -> None:
    service = world.service().start_ready()

    async with Watch(world, "--json") as watch:
        await watch.ready("acme")
        await world.client.close()
        world.broker.kill()
        world.broker.start()
        service.wait_for_log("broker.connected", count=2)
        await world.open()
        await watch.ready("acme-after")
        still_running = watch.process.poll() is None

    assert still_running


# config and the rest


def test_config_shows_every_setting_and_no_secret(tmp_path: Path) -> None:
    secrets: dict[str, Any] = {
        "broker_url": "nats://me:hunter2@one:4222,tls://hunter2@two:4222",
        "broker_token": "hunter2",
    }

    shown = json.loads(said(run_cli("config", "--json", cwd=tmp_path, **secrets), 0))
    table = run_cli("config", cwd=tmp_path, **secrets).stdout

    assert "hunter2" not in json.dumps(shown) + table
    assert shown["TIMER_BROKER_URL"] == "nats://*****@one:4222,tls://*****@two:4222"
    assert shown["TIMER_BROKER_TOKEN"] == "*****"
    assert shown["TIMER_POLLING_INTERVAL"] == "5000"
    assert shown["TIMER_DB_PATH"] == "event_service.db"
    assert [line.split()[0] for line in table.splitlines()] == list(shown)


def test_config_masks_a_password(tmp_path: Path) -> None:
    finished = run_cli("config", cwd=tmp_path, broker_user="me", broker_password="hunter2")

    assert finished.returncode == 0
    assert "hunter2" not in finished.stdout
    assert re.search(r"^TIMER_BROKER_USER +me$", finished.stdout, re.MULTILINE)


def test_a_dotenv_file_is_read_and_the_environment_comes_before_it(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("TIMER_BATCH_SIZE=7\nTIMER_ACK_WAIT=2000\nOTHER=1\n")

    shown = json.loads(said(run_cli("config", "--json", cwd=tmp_path, ack_wait=3000), 0))

    assert (shown["TIMER_BATCH_SIZE"], shown["TIMER_ACK_WAIT"]) == ("7", "3000")


def test_a_wrong_value_in_a_dotenv_file_is_named(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("TIMER_BATCH_SIZE=many\n")

    line = complaint(run_cli("config", cwd=tmp_path), 2)

    assert "TIMER_BATCH_SIZE='many'" in line


async def test_an_unknown_setting_in_the_environment_is_told_with_a_hint(world: World) -> None:
    service = world.service(poling_interval=100).start_ready()

    warnings = service.events("setting.unknown")

    assert [line["detail"] for line in warnings] == [
        "TIMER_POLING_INTERVAL is not a setting; did you mean TIMER_POLLING_INTERVAL?"
    ]


async def test_an_unknown_setting_in_a_dotenv_file_is_told_with_a_hint(world: World) -> None:
    (world.folder / ".env").write_text("TIMER_POLING_INTERVAL=100\n")
    service = world.service().start_ready()

    warnings = service.events("setting.unknown")

    assert ["TIMER_POLLING_INTERVAL" in line["detail"] for line in warnings] == [True]


def test_version_is_one_line(tmp_path: Path) -> None:
    line = said(run_cli("--version", cwd=tmp_path), 0)

    assert re.fullmatch(r"timer-service \d+\.\d+\.\d+", line)


def test_help_names_every_command_and_the_exit_codes(tmp_path: Path) -> None:
    finished = run_cli("--help", cwd=tmp_path)

    assert (finished.returncode, finished.stderr) == (0, "")
    text = finished.stdout
    commands = ("run", "dev", "schedule", "cancel", "watch", "config")
    assert [name for name in commands if not re.search(rf"^ +{name} ", text, re.MULTILINE)] == []
    assert "Exit codes" in text


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_config_ends_quietly_when_nobody_reads_it(tmp_path: Path, unbuffered: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)

    finished = subprocess.run(
        [sys.executable, "-m", "timer_service", "config"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    os.close(writer)

    assert (finished.returncode, finished.stderr) == (0, "")
