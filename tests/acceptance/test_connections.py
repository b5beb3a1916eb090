"""Every way to reach and to log in to a broker, and what an operator may do to it meanwhile."""

import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.js.api import DiscardPolicy, RetentionPolicy, StreamConfig

from tests.support.broker import NatsServer
from tests.support.credentials import Authority, NKey, Operator
from tests.support.http import fetch_json
from tests.support.messages import in_seconds
from tests.support.patience import PATIENCE_S
from tests.support.ports import free_port
from tests.support.process import TimerServiceProcess, run_cli
from tests.support.world import World

Settings = dict[str, Any]

PASSWORD = "authorization { users: [ { user: me, password: right } ] }"
TOKEN = "authorization { token: right }"


@contextlib.asynccontextmanager
async def guarded(folder: Path, config: str) -> AsyncIterator[World]:
    """A world whose broker has this configuration; the test itself is not let in."""
    broker = NatsServer(folder / "broker", config).start()
    world = World(folder, broker, "timer")
    try:
        yield world
    finally:
        await world.close()
        broker.stop()


async def fires(world: World, **settings: Any) -> TimerServiceProcess:
    """Schedule by the command line and see the timer fire, all with these settings."""
    service = world.service(**settings).start_ready()
    where: Settings = {"broker_url": world.broker.url, "subject_prefix": world.prefix, **settings}

    arguments = ("--tenant", "acme", "--id", "order-42", "--in", "0s")
    finished = run_cli("schedule", *arguments, cwd=world.folder, **where)

    assert (finished.returncode, finished.stderr) == (0, "")
    await world.wait_for_row("acme", "order-42", state="Reached")
    return service


async def refused(world: World, **settings: Any) -> str:
    """Start the service with credentials that the broker refuses, and return its last line."""
    service = world.service(**settings).start()

    assert service.wait() == 1
    assert not any("Traceback" in line for line in service.stderr)
    complaints = [line for line in service.stderr if line.startswith("timer-service: ")]
    assert complaints == service.stderr[-1:]
    return complaints[0]


# Ways to log in


async def test_user_and_password(tmp_path: Path) -> None:
    async with guarded(tmp_path, PASSWORD) as world:
        await fires(world, broker_user="me", broker_password="right")


async def test_user_and_password_in_the_address_stay_out_of_the_log(tmp_path: Path) -> None:
    async with guarded(tmp_path, PASSWORD) as world:
        service = await fires(world, broker_url=f"nats://me:right@127.0.0.1:{world.broker.port}")

        assert service.terminate() == 0
        assert "right" not in json.dumps(service.log)


async def test_token(tmp_path: Path) -> None:
    async with guarded(tmp_path, TOKEN) as world:
        await fires(world, broker_token="right")


async def test_nkey(tmp_path: Path) -> None:
    key = NKey.user()
    (tmp_path / "user.nk").write_text(f"{key.seed}\n")
    async with guarded(tmp_path, f"authorization {{ users: [ {{ nkey: {key.public} }} ] }}") as world:
        await fires(world, broker_nkey=tmp_path / "user.nk")


async def test_credentials_file(tmp_path: Path) -> None:
    operator = Operator()
    credentials = operator.credentials(tmp_path / "user.creds")
    async with guarded(tmp_path, operator.broker_config) as world:
        await fires(world, broker_creds=credentials)


@pytest.mark.parametrize("scheme", ["nats", "tls"])
async def test_tls_with_a_client_certificate(tmp_path: Path, scheme: str) -> None:
    authority = Authority(tmp_path / "ca")
    certificate, key = authority.issue("service")
    async with guarded(tmp_path, tls(authority)) as world:
        await fires(
            world,
            broker_url=f"{scheme}://127.0.0.1:{world.broker.port}",
            broker_tls_ca=authority.certificate,
            broker_tls_cert=certificate,
            broker_tls_key=key,
        )


def tls(authority: Authority) -> str:
    certificate, key = authority.issue("broker")
    return (
        f"tls {{ cert_file: '{certificate}', key_file: '{key}', ca_file: '{authority.certificate}', "
        "verify: true }"
    )


async def test_a_broker_with_a_certificate_of_somebody_else_is_not_trusted(tmp_path: Path) -> None:
    authority, stranger = Authority(tmp_path / "ca"), Authority(tmp_path / "stranger")
    certificate, key = authority.issue("service")
    async with guarded(tmp_path, tls(stranger)) as world:
        service = world.service(
            broker_tls_ca=authority.certificate, broker_tls_cert=certificate, broker_tls_key=key
        ).start()

        told = service.wait_for_log("broker.unavailable")

        assert "certificate" in told["detail"].lower()
        assert service.terminate() == 0
        assert service.events("broker.connected") == []


# Wrong credentials


async def test_a_wrong_password_at_start_ends_it_with_one_clear_line(tmp_path: Path) -> None:
    async with guarded(tmp_path, PASSWORD) as world:
        line = await refused(world, broker_user="me", broker_password="hunter2")

    assert "TIMER_BROKER_USER" in line
    assert str(world.broker.port) in line
    assert "hunter2" not in line


async def test_a_wrong_password_in_the_address_is_not_repeated(tmp_path: Path) -> None:
    async with guarded(tmp_path, PASSWORD) as world:
        line = await refused(world, broker_url=f"nats://me:hunter2@127.0.0.1:{world.broker.port}")

    assert str(world.broker.port) in line
    assert "hunter2" not in line


@pytest.mark.parametrize("settings", [{}, {"broker_token": "hunter2"}], ids=["none", "a wrong one"])
async def test_a_missing_or_wrong_token_at_start_ends_it_with_one_clear_line(
    tmp_path: Path, settings: Settings
) -> None:
    async with guarded(tmp_path, TOKEN) as world:
        line = await refused(world, **settings)

    assert "_TOKEN" in line
    assert "hunter2" not in line


async def test_an_unknown_nkey_at_start_ends_it_with_one_clear_line(tmp_path: Path) -> None:
    known, unknown = NKey.user(), NKey.user()
    (tmp_path / "user.nk").write_text(unknown.seed)
    async with guarded(tmp_path, f"authorization {{ users: [ {{ nkey: {known.public} }} ] }}") as world:
        line = await refused(world, broker_nkey=tmp_path / "user.nk")

    assert "_NKEY" in line


async def test_credentials_of_another_operator_at_start_end_it_with_one_clear_line(tmp_path: Path) -> None:
    credentials = Operator().credentials(tmp_path / "user.creds")
    async with guarded(tmp_path, Operator().broker_config) as world:
        line = await refused(world, broker_creds=credentials)

    assert "_CREDS" in line


async def test_the_command_line_names_a_refused_password_and_does_not_repeat_it(tmp_path: Path) -> None:
    async with guarded(tmp_path, PASSWORD) as world:
        finished = run_cli(
            *("schedule", "--tenant", "acme", "--id", "order-42", "--in", "1h"),
            cwd=tmp_path,
            broker_url=f"nats://me:hunter2@127.0.0.1:{world.broker.port}",
        )

    assert (finished.returncode, finished.stdout) == (3, "")
    assert finished.stderr.count("\n") == 1
    assert "authorization" in finished.stderr.lower()
    assert "hunter2" not in finished.stderr


async def test_credentials_revoked_and_restored_while_running_cost_no_timer(tmp_path: Path) -> None:
    users = "authorization {{ users: [ {{ user: tenant, password: t }}, {{ user: {name}, password: s }} ] }}"
    broker = NatsServer(tmp_path / "broker", users.format(name="service")).start()
    world = await World(tmp_path, broker, "timer").open(user="tenant", password="t")
    try:
        service = world.service(broker_user="service", broker_password="s").start_ready()
        await world.schedule("acme", "before", in_seconds(1))
        await world.wait_for_row("acme", "before", state="Scheduled")

        broker.reconfigure(users.format(name="somebody-else"))
        broker.reload()
        service.wait_for_log("broker.unavailable")
        await world.schedule("acme", "meanwhile", in_seconds(0))
        await world.until(lambda: refusals_by(broker, 4), "four refused tries")
        fired_meanwhile = await world.events()
        broker.reconfigure(users.format(name="service"))
        broker.reload()
        service.wait_for_log("broker.connected", count=2)
        events = await world.wait_for_events(2)

        assert service.is_running
        assert fired_meanwhile == []
        assert {event["payload"]["serviceCallId"] for event in events} == {"before", "meanwhile"}
        assert len(service.events("broker.unavailable")) == 1
    finally:
        await world.close()
        broker.stop()


async def refusals_by(broker: NatsServer, count: int) -> bool:
    log = (broker.folder / "nats-server.log").read_text()
    return log.count("authentication error") >= count


# Where the broker is


async def test_several_servers_of_which_the_first_is_dead(world: World) -> None:
    dead = f"nats://127.0.0.1:{free_port()}"

    await fires(world, broker_url=f"{dead}, {world.broker.url}")


async def test_a_prefix_of_several_tokens(tmp_path: Path) -> None:
    broker = NatsServer(tmp_path / "broker").start()
    world = await World(tmp_path, broker, "eu.prod-1.timer").open()
    try:
        await fires(world)
        streams = {info.config.name: info.config.subjects for info in await world.jetstream.streams_info()}

        assert streams == {
            "EU_PROD-1_TIMER_COMMANDS": ["eu.prod-1.timer.commands.>"],
            "EU_PROD-1_TIMER_EVENTS": ["eu.prod-1.timer.events.>"],
            "EU_PROD-1_TIMER_DEADLETTER": ["eu.prod-1.timer.deadletter.>"],
        }
    finally:
        await world.close()
        broker.stop()


async def test_streams_in_another_jetstream_domain(tmp_path: Path) -> None:
    leaf_port = free_port()
    hub = NatsServer(tmp_path / "hub", domain(tmp_path / "hub", "hub", f"port: {leaf_port}")).start()
    remote = f"remotes: [ {{ url: 'nats-leaf://127.0.0.1:{leaf_port}' }} ]"
    leaf = NatsServer(tmp_path / "leaf", domain(tmp_path / "leaf", "leaf", remote)).start()
    world = World(tmp_path, leaf, "timer")
    try:
        await fires(world, jetstream_domain="hub")
        in_hub, in_leaf = await stream_names(hub), await stream_names(leaf)

        assert in_hub == ["TIMER_COMMANDS", "TIMER_DEADLETTER", "TIMER_EVENTS"]
        assert in_leaf == []
    finally:
        await world.close()
        leaf.stop()
        hub.stop()


def domain(folder: Path, name: str, leafnodes: str) -> str:
    return (
        f"server_name: {name}\n"
        f"jetstream {{ domain: {name}, store_dir: '{folder / 'data'}' }}\n"
        f"leafnodes {{ {leafnodes} }}"
    )


async def stream_names(broker: NatsServer) -> list[str]:
    client = await nats.connect(broker.url)
    try:
        return sorted(
            info.config.name or "" for info in await client.jetstream(timeout=PATIENCE_S).streams_info()
        )
    finally:
        await client.close()


async def test_a_broker_without_jetstream_is_told_once_and_waited_for(tmp_path: Path) -> None:
    broker = NatsServer(tmp_path / "broker", "jetstream: disabled").start()
    world = World(tmp_path, broker, "timer")
    try:
        service = world.service().start()
        told = service.wait_for_log("broker.unavailable")
        broker.stop()
        broker.reconfigure("")
        broker.start()
        service.wait_for_log("broker.connected")

        assert "jetstream" in told["detail"].lower()
        assert len(service.events("broker.unavailable")) == 1
    finally:
        await world.close()
        broker.stop()


# Streams that an operator made

SAFE = {
    "TIMER_COMMANDS": StreamConfig(
        name="TIMER_COMMANDS", subjects=["timer.commands.>"], retention=RetentionPolicy.WORK_QUEUE
    ),
    "TIMER_EVENTS": StreamConfig(name="TIMER_EVENTS", subjects=["timer.events.>"]),
    "TIMER_DEADLETTER": StreamConfig(name="TIMER_DEADLETTER", subjects=["timer.deadletter.>"]),
}


async def make_streams(world: World, **changes: dict[str, Any]) -> dict[str, StreamConfig]:
    """Make the three streams as an operator would, and return them as the broker has them."""
    made = {}
    for name, config in SAFE.items():
        info = await world.jetstream.add_stream(replace(config, **changes.get(name, {})))
        made[name] = info.config
    return made


@pytest.mark.parametrize(
    ("stream", "changes", "word"),
    [
        ("TIMER_COMMANDS", {"max_age": 3600.0}, "3600 s"),
        ("TIMER_EVENTS", {"subjects": ["timer.events.acme.>"]}, "timer.events.>"),
    ],
)
async def test_an_unsafe_stream_is_told_in_one_line_and_used_as_it_is(
    world: World, stream: str, changes: dict[str, Any], word: str
) -> None:
    made = await make_streams(world, **{stream: changes})

    port = free_port()
    service = world.service(http_port=port).start_ready()
    await world.client.close()
    world.broker.kill()
    world.broker.start()
    service.wait_for_log("broker.connected", count=2)
    await world.open()

    told = [line["detail"] for line in service.events("stream.unsafe")]
    assert len(told) == 1
    assert stream in told[0]
    assert word in told[0]
    assert fetch_json(port, "/readyz") == (200, {"status": "ok", "warnings": {"streams": told[0]}})
    found = {name: (await world.jetstream.stream_info(name)).config for name in SAFE}
    assert found == made


async def test_streams_with_room_of_their_own_are_used_without_a_word(world: World) -> None:
    made = await make_streams(
        world,
        TIMER_COMMANDS={"max_msgs": 1_000_000, "discard": DiscardPolicy.NEW},
        TIMER_EVENTS={"subjects": ["timer.events.>", "audit.>"], "max_age": 60.0},
        TIMER_DEADLETTER={"subjects": ["timer.deadletter.>", "dead.>"]},
    )

    service = await fires(world)

    assert service.events("stream.unsafe") == []
    found = {name: (await world.jetstream.stream_info(name)).config for name in SAFE}
    assert found == made
