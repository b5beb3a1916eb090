"""What a probe and a scraper see."""

import errno
from pathlib import Path

from tests.support import messages
from tests.support.broker import NatsServer
from tests.support.disk import Disk
from tests.support.http import fetch, fetch_json, metric
from tests.support.messages import in_seconds
from tests.support.ports import free_port
from tests.support.process import TimerServiceProcess
from tests.support.world import World


async def test_a_working_service_is_live_and_ready(world: World) -> None:
    port = free_port()
    service = world.service(http_port=port).start_ready()

    assert fetch_json(port, "/livez") == (200, {"status": "ok"})
    assert fetch_json(port, "/readyz") == (200, {"status": "ok"})
    told = service.wait_for_log("service.started")
    assert {name: told[name] for name in ("http_port", "api_port", "page_port")} == {
        "http_port": port,
        "api_port": 0,
        "page_port": 0,
    }


async def test_without_a_broker_it_is_live_but_not_ready_and_recovers(world: World) -> None:
    port = free_port()
    service = world.service(http_port=port).start_ready()

    world.broker.kill()
    service.wait_for_log("broker.unavailable")
    status, report = fetch_json(port, "/readyz")
    live, _ = fetch_json(port, "/livez")
    world.broker.start()
    service.wait_for_log("broker.connected", count=2)

    assert (status, list(report["problems"])) == (503, ["broker"])
    assert live == 200
    assert fetch_json(port, "/readyz") == (200, {"status": "ok"})


async def test_a_right_that_is_missing_is_named(tmp_path: Path) -> None:
    users = """authorization { users: [ { user: service, password: secret, permissions: {
        publish: { deny: "$JS.API.STREAM.CREATE.TIMER_EVENTS" } } }, { user: test, password: secret } ] }"""
    broker = NatsServer(tmp_path / "broker", users).start()
    port = free_port()
    service = TimerServiceProcess(
        tmp_path, broker_url=broker.url, broker_user="service", broker_password="secret", http_port=port
    )
    try:
        told = service.start().wait_for_log("broker.unavailable")
        status, report = fetch_json(port, "/readyz")
    finally:
        service.close()
        broker.stop()

    assert status == 503
    assert "$js.api.stream.create.timer_events" in report["problems"]["broker"].lower()
    assert "permissions violation" in told["detail"].lower()


async def test_a_full_disk_is_named_and_nothing_is_lost_when_space_returns(world: World, disk: Disk) -> None:
    port = free_port()
    service = world.service(http_port=port).start_ready()
    await world.schedule("acme", "before", in_seconds(3600))
    await world.wait_until_consumed()

    disk.fail(errno.ENOSPC)
    for number in range(50):
        await world.schedule("acme", f"meanwhile-{number}", in_seconds(3600))
    service.wait_for_log("store.unavailable")
    status, report = fetch_json(port, "/readyz")
    live, _ = fetch_json(port, "/livez")
    waiting = (await world.jetstream.stream_info(world.commands_stream)).state.messages
    disk.recover()
    service.wait_for_log("store.recovered")
    await world.wait_until_consumed()

    assert (status, list(report["problems"])) == (503, ["store"])
    assert "full" in report["problems"]["store"]
    assert live == 200
    assert waiting == 50
    assert len(world.rows()) == 51
    assert fetch_json(port, "/readyz") == (200, {"status": "ok"})


async def test_the_metrics_count_what_happened(world: World) -> None:
    port = free_port()
    service = world.service(http_port=port, metrics_tenants=1).start_ready()
    await world.schedule("acme", "a", "2020-01-01T00:00:00Z")
    await world.wait_for_row("acme", "a", state="Reached")  # By itself: the next one makes a second batch.
    await world.schedule("acme", "b", in_seconds(3600))
    await world.schedule("globex", "c", in_seconds(0.3))
    await world.cancel("acme", "b")
    await world.send_raw(f"{world.prefix}.commands.acme.ScheduleTimer", b"not json")
    await world.wait_for_events(2)
    await world.wait_until_consumed()
    service.wait_for_log("batch.fired", count=2)

    def value(name: str) -> float:
        return metric(port, name)

    assert value('timer_commands_received_total{outcome="scheduled",type="ScheduleTimer"}') == 3
    assert value('timer_commands_received_total{outcome="cancelled",type="CancelTimer"}') == 1
    assert value('timer_dead_letters_total{reason="not_json"}') == 1
    assert value("timer_schedules_processed_total") == 2
    assert value("timer_lateness_seconds_count") == 2
    assert value('timer_tenant_lateness_seconds_count{tenant="acme"}') == 1
    assert value('timer_tenant_lateness_seconds_count{tenant="other"}') == 1
    assert value("timer_broker_connected") == 1
    assert value("timer_store_available") == 1
    assert value("timer_broker_connects_total") == 1
    assert value("timer_polling_duration_seconds_count") >= 2
    assert value('timer_store_write_seconds_count{operation="mark"}') == 2


async def test_an_unknown_page_is_not_found(world: World) -> None:
    port = free_port()
    world.service(http_port=port).start_ready()

    assert fetch(port, "/nothing")[0] == 404


async def test_a_taken_port_ends_the_start_with_one_clear_line(world: World) -> None:
    port = free_port()
    world.service(http_port=port).start_ready()
    second = TimerServiceProcess(
        world.folder, broker_url=world.broker.url, db_path=world.folder / "other.db", http_port=port
    ).start()

    assert second.wait() == 1
    [line] = [line for line in second.stderr if "store.created" not in line]
    assert "TIMER_HTTP_PORT" in line
    assert str(port) in line


async def test_a_trace_and_a_correlation_are_carried_to_the_event(world: World) -> None:
    world.service().start_ready()
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    headers = {"traceparent": parent, "tracestate": "vendor=1", "Nats-Expected-Stream": world.commands_stream}
    envelope = messages.schedule("acme", "a", in_seconds(0.3), correlationId="r-9")

    await world.jetstream.publish(
        f"{world.prefix}.commands.acme.ScheduleTimer", messages.encode(envelope), headers=headers
    )
    [event] = await world.wait_for_events(1)
    raw = await world.jetstream.get_msg(world.events_stream, 1)

    assert event["correlationId"] == "r-9"
    assert raw.headers == {"Nats-Msg-Id": event["id"], "traceparent": parent, "tracestate": "vendor=1"}


async def test_a_broken_trace_is_ignored(world: World) -> None:
    world.service().start_ready()
    envelope = messages.schedule("acme", "a", "2020-01-01T00:00:00Z")

    await world.jetstream.publish(
        f"{world.prefix}.commands.acme.ScheduleTimer",
        messages.encode(envelope),
        headers={"traceparent": "nonsense"},
    )
    [event] = await world.wait_for_events(1)
    raw = await world.jetstream.get_msg(world.events_stream, 1)

    assert raw.headers == {"Nats-Msg-Id": event["id"]}
