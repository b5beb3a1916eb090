"""The API over NATS: definite answers after the commit."""

import asyncio
import json
import sqlite3
from contextlib import closing
from typing import Any

from tests.support.broker import told
from tests.support.messages import in_seconds, iso
from tests.support.patience import PATIENCE_S
from tests.support.requests import ask, ask_raw, ask_until_answered
from tests.support.schemas import complaints
from tests.support.world import World


async def test_a_scheduled_timer_can_be_read_right_after_the_answer(world: World) -> None:
    world.service().start_ready()
    due = iso(in_seconds(3600))

    answer = await ask(world, "schedule", serviceCallId="order-1", dueAt=due, correlationId="r-1")
    read = await ask(world, "get", serviceCallId="order-1")

    assert answer["outcome"] == "scheduled"
    assert read["timer"] == answer["timer"]
    assert {name: read["timer"][name] for name in ("state", "dueAt", "generation", "correlationId")} == {
        "state": "Scheduled",
        "dueAt": due,
        "generation": 1,
        "correlationId": "r-1",
    }


async def test_each_answer_says_what_the_call_did(world: World) -> None:
    world.service().start_ready()
    near, far = iso(in_seconds(1800)), iso(in_seconds(3600))

    answers = [
        (await ask(world, "schedule", serviceCallId="a", dueAt=far))["outcome"],
        (await ask(world, "schedule", serviceCallId="a", dueAt=far))["outcome"],
        (await ask(world, "schedule", serviceCallId="a", dueAt=near))["outcome"],
        (await ask(world, "cancel", serviceCallId="a"))["outcome"],
        (await ask(world, "cancel", serviceCallId="a"))["outcome"],
        (await ask(world, "schedule", serviceCallId="a", dueAt=far))["outcome"],
        (await ask(world, "cancel", serviceCallId="never-seen"))["outcome"],
    ]

    assert answers == [
        *("scheduled", "unchanged", "rescheduled", "cancelled", "cancelled", "scheduled", "not_found"),
    ]


async def test_a_reached_timer_is_answered_as_already_reached(world: World) -> None:
    world.service().start_ready()
    await ask(world, "schedule", serviceCallId="a", dueAt="2020-01-01T00:00:00Z")
    await world.wait_for_row("acme", "a", state="Reached")

    cancelled = await ask(world, "cancel", serviceCallId="a")
    moved = await ask(world, "schedule", serviceCallId="a", dueAt=iso(in_seconds(60)))

    assert (cancelled["outcome"], moved["outcome"]) == ("already_reached", "already_reached")
    assert moved["timer"]["state"] == "Reached"


async def test_a_call_fires_on_time(world: World) -> None:
    world.service().start_ready()
    due = in_seconds(0.4)

    await ask(world, "schedule", serviceCallId="soon", dueAt=iso(due))
    [event] = await world.wait_for_events(1)

    assert event["payload"]["dueAt"] == iso(due)


async def test_cancelled_means_that_it_never_fires_also_in_the_moment_it_comes_due(world: World) -> None:
    world.service().start_ready()
    names = [f"race-{number}" for number in range(60)]
    for number, name in enumerate(names):
        await world.schedule("acme", name, in_seconds(0.3 + number * 0.01))
    await world.wait_until_consumed()

    async def cancel(number: int, name: str) -> tuple[str, str]:
        row = world.row("acme", name)
        assert row is not None
        # Aim at the due time itself, a little before and a little after.
        await asyncio.sleep(max(0.0, 0.25 + number * 0.01 - 0.05 + (number % 10) * 0.01))
        return name, (await ask_until_answered(world, "cancel", serviceCallId=name))["outcome"]

    outcomes = dict(await asyncio.gather(*(cancel(number, name) for number, name in enumerate(names))))
    reached = [name for name in names if outcomes[name] == "already_reached"]
    assert set(outcomes.values()) <= {"cancelled", "already_reached"}

    events = await world.wait_for_events(len(reached))

    assert sorted(event["payload"]["serviceCallId"] for event in events) == sorted(reached)


async def test_a_cancel_of_a_due_timer_waits_for_its_firing(world: World) -> None:
    world.service().start_ready()
    await world.schedule("acme", "a", in_seconds(0.5))
    await world.wait_until_consumed()

    # While the file is locked the event goes out but cannot be marked.
    with closing(sqlite3.connect(world.db_path, isolation_level=None)) as link:
        link.execute("BEGIN IMMEDIATE")
        await world.wait_for_events(1)
        asked = asyncio.create_task(ask_until_answered(world, "cancel", serviceCallId="a"))
        await asyncio.sleep(0)
        link.execute("ROLLBACK")
    answer = await asked

    assert answer["outcome"] == "already_reached"


async def test_a_call_is_newer_than_every_command_in_the_stream(world: World) -> None:
    """A command that was published before the request, but is consumed after it, does not undo it."""
    service = world.service().start_ready()
    service.terminate()
    await world.schedule("acme", "a", "2020-01-01T00:00:00Z")
    consumer = await world.jetstream.pull_subscribe_bind("timer-service", world.commands_stream)
    [held] = await consumer.fetch(1, timeout=PATIENCE_S)
    service.restart()
    service.wait_for_log("broker.connected")

    answer = await ask(world, "cancel", serviceCallId="a")
    await held.nak()
    await world.wait_until_consumed()

    assert answer["outcome"] == "not_found"
    row = world.row("acme", "a")
    assert row is not None
    assert row["state"] == "Cancelled"
    assert await world.events() == []


async def test_a_command_after_a_call_is_newer_than_the_ask(world: World) -> None:
    world.service().start_ready()
    await world.schedule("acme", "other", in_seconds(3600))
    await world.wait_until_consumed()
    await ask(world, "cancel", serviceCallId="a")

    await world.schedule("acme", "a", in_seconds(3600))
    row = await world.wait_for_row("acme", "a", state="Scheduled")

    assert row["generation"] == 1


async def test_a_list_comes_in_pages_that_neither_repeat_nor_miss(world: World) -> None:
    world.service().start_ready()
    due = [iso(in_seconds(1000 + number // 3)) for number in range(20)]
    for number in range(20):
        await ask(world, "schedule", serviceCallId=f"t-{number:02}", dueAt=due[number])
    await ask(world, "schedule", tenant="globex", serviceCallId="theirs", dueAt=due[0])

    pages: list[list[str]] = []
    cursor: dict[str, str] = {}
    while True:
        page = await ask(world, "list", limit=7, **cursor)
        pages.append([timer["serviceCallId"] for timer in page["timers"]])
        if "cursor" not in page:
            break
        cursor = {"cursor": page["cursor"]}

    assert [len(page) for page in pages] == [7, 7, 6]
    assert [name for page in pages for name in page] == [f"t-{number:02}" for number in range(20)]


async def test_a_list_is_narrowed_by_state_due_time_and_correlation(world: World) -> None:
    world.service().start_ready()
    for number in range(6):
        await ask(
            world,
            "schedule",
            serviceCallId=f"t-{number}",
            dueAt=f"2999-01-0{number + 1}T00:00:00Z",
            correlationId="even" if number % 2 == 0 else "odd",
        )
    await ask(world, "cancel", serviceCallId="t-0")

    async def ids(**request: Any) -> list[str]:
        return [timer["serviceCallId"] for timer in (await ask(world, "list", **request))["timers"]]

    assert await ids(state="Cancelled") == ["t-0"]
    assert await ids(state="Scheduled", correlationId="even") == ["t-2", "t-4"]
    assert await ids(dueFrom="2999-01-02T00:00:00Z", dueBefore="2999-01-04T00:00:00Z") == ["t-1", "t-2"]
    assert await ids(correlationId="odd") == ["t-1", "t-3", "t-5"]


BAD_REQUESTS = [
    ("get", b"not json", "400", "JSON"),
    ("get", b"[]", "400", "object"),
    ("get", b"{}", "400", "serviceCallId"),
    ("get", b'{"serviceCallId": "no such"}', "400", "whitespace"),
    ("get", b'{"serviceCallId": "unknown"}', "404", "unknown"),
    ("schedule", b'{"serviceCallId": "a", "dueAt": "2026-12-01T09:00:00"}', "400", "offset"),
    ("schedule", b'{"serviceCallId": "a"}', "400", "dueAt"),
    ("list", b'{"limit": 0}', "400", "limit"),
    ("list", b'{"limit": 501}', "400", "limit"),
    ("list", b'{"state": "Lost"}', "400", "state"),
    ("list", b'{"cursor": "x"}', "400", "cursor"),
    ("cancel", b"{" * 100_000, "400", "bytes"),
]


async def test_a_bad_request_gets_a_clear_error(world: World) -> None:
    world.service().start_ready()

    for endpoint, body, code, word in BAD_REQUESTS:
        answer = await ask_raw(world, f"{world.prefix}.api.acme.{endpoint}", body)

        assert (answer["code"], word in answer["error"]) == (code, True), (body[:80], answer)


async def test_a_tenant_that_breaks_the_rule_is_refused(world: World) -> None:
    world.service().start_ready()

    answer = await ask_raw(world, f"{world.prefix}.api.{'x' * 65}.get", b'{"serviceCallId": "a"}')

    assert answer["code"] == "400"
    assert "tenant" in answer["error"]


async def test_a_reply_goes_to_inboxes_only(world: World) -> None:
    """Permissions do not check reply subjects: a caller could make us write where it may not."""
    service = world.service().start_ready()
    target = f"{world.prefix}.commands.globex.ScheduleTimer"

    await world.client.publish(f"{world.prefix}.api.acme.get", b'{"serviceCallId": "a"}', reply=target)
    await told(world.client)
    service.wait_for_log("request.ignored")
    await ask(world, "list")

    assert (await world.jetstream.stream_info(world.commands_stream)).state.last_seq == 0


async def test_the_service_answers_the_micro_service_verbs(world: World) -> None:
    world.service().start_ready()

    info = await _ask(world, "$SRV.INFO.timer")
    ping = await _ask(world, "$SRV.PING.timer")
    stats = await _ask(world, "$SRV.STATS.timer")

    assert info["name"] == ping["name"] == stats["name"] == "timer"
    endpoints = {endpoint["name"]: endpoint for endpoint in info["endpoints"]}
    assert set(endpoints) == {"get", "list", "explain", "schedule", "cancel", "status", "clock-accept"}
    schemas = {
        (name, kind): json.loads(endpoint["metadata"][kind])
        for name, endpoint in endpoints.items()
        for kind in ("request_schema", "response_schema")
    }
    assert set(schemas["schedule", "request_schema"]["required"]) == {"serviceCallId"}
    assert {"dueAt", "delayMs"} <= set(schemas["schedule", "request_schema"]["properties"])
    assert set(schemas["schedule", "response_schema"]["required"]) == {"outcome", "timer"}
    assert set(schemas["list", "response_schema"]["required"]) == {"timers"}


async def test_every_answer_has_the_shape_that_its_schema_says(world: World) -> None:
    world.service().start_ready()
    empty = json.loads((await world.client.request("timer.status", b"", timeout=PATIENCE_S)).data)
    timer = {"serviceCallId": "a", "dueAt": iso(in_seconds(60)), "correlationId": "request-1"}
    past = {"serviceCallId": "past", "dueAt": "2020-01-01T00:00:00Z"}
    trace = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}

    answers = [
        ("status", empty),
        ("schedule", await ask(world, "schedule", **timer)),
        ("schedule", await ask_raw(world, "timer.api.acme.schedule", json.dumps(past).encode(), trace)),
        ("get", await ask(world, "get", serviceCallId="a")),
        ("cancel", await ask(world, "cancel", serviceCallId="a")),
        ("cancel", await ask(world, "cancel", serviceCallId="never-seen")),
        ("get", await ask(world, "get", serviceCallId="never-seen")),
        ("clock-accept", await ask_raw(world, "timer.clock.accept", b"")),
    ]
    await world.wait_for_row("acme", "past", state="Reached")
    await ask(world, "schedule", **{**timer, "serviceCallId": "b"})
    full = await ask_raw(world, "timer.status", b"")
    answers += [
        ("get", await ask(world, "get", serviceCallId="past")),
        ("list", await ask(world, "list")),
        ("list", await ask(world, "list", limit=1)),
        ("status", full),
    ]

    info = json.loads((await world.client.request("$SRV.INFO.timer", b"", timeout=PATIENCE_S)).data)
    schemas = {e["name"]: json.loads(e["metadata"]["response_schema"]) for e in info["endpoints"]}
    assert [complaints(answer, schemas[name]) for name, answer in answers] == [[]] * len(answers)
    assert "null" not in json.dumps(list(schemas.values()))
    absent = {"nextDueAt", "latenessP50Seconds", "latenessP99Seconds"}
    assert full.keys() - empty.keys() == absent
    assert set(schemas["status"]["properties"]) - set(schemas["status"]["required"]) == {*absent, "broker"}


async def test_the_statistics_count_errors_and_time(world: World) -> None:
    world.service().start_ready()
    await ask(world, "get", serviceCallId="nobody")
    await ask(world, "schedule", serviceCallId="a", dueAt=iso(in_seconds(60)))

    stats = await _ask(world, "$SRV.STATS.timer")

    found = {endpoint["name"]: endpoint for endpoint in stats["endpoints"]}
    counts = {name: (found[name]["num_requests"], found[name]["num_errors"]) for name in found}
    assert (counts["get"], counts["schedule"], counts["list"]) == ((1, 1), (1, 0), (0, 0))
    assert found["get"]["last_error"] == "404: there is no timer 'nobody'"
    assert found["schedule"]["average_processing_time"] == found["schedule"]["processing_time"] > 100_000


async def test_the_api_is_there_again_after_the_broker_was_restarted(world: World) -> None:
    service = world.service().start_ready()
    world.broker.kill()
    world.broker.start()
    service.wait_for_log("broker.connected", count=2)
    await world.until(lambda: _connected(world), "the client to be back")

    answer = await ask(world, "schedule", serviceCallId="a", dueAt=iso(in_seconds(60)))

    assert answer["outcome"] == "scheduled"


async def _connected(world: World) -> bool:
    return world.client.stats["reconnects"] > 0 and world.client.is_connected


async def _ask(world: World, subject: str) -> Any:
    return json.loads((await world.client.request(subject, b"", timeout=PATIENCE_S)).data)
