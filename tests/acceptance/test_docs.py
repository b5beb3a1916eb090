"""What docs/messages.md, docs/cli.md and the two READMEs show is what the service does."""

import asyncio
import base64
import hashlib
import json
import os
import re
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import nats
import pytest

from tests.support.broker import NatsServer, told
from tests.support.documents import code_words, marked_blocks, read, table
from tests.support.messages import encode, iso, parse, with_payload
from tests.support.patience import PATIENCE_S
from tests.support.process import run_cli
from tests.support.requests import ask
from tests.support.world import World
from timer_client import Timers

MESSAGES = "docs/messages.md"
LONG_BODY = b"x" * 65_537
"""What the document says was sent where it shortens the body."""
SERVICE_USER = {
    "broker_user": "timer-service",
    "broker_password": "change-me-1",
    "broker_inbox_prefix": "_INBOX.timer-service",
}
OPERATOR = {"user": "timer-service", "password": "change-me-1", "inbox_prefix": "_INBOX.timer-service"}
"""The page has no operator; the service has rights enough to look at the streams."""
ACME_USER = {"user": "acme", "password": "change-me-2", "inbox_prefix": "_INBOX.acme"}


@pytest.fixture
async def guarded_world(tmp_path: Path) -> AsyncIterator[World]:
    """A world whose broker has the permissions that the document shows; the test connects as it likes."""
    async with _guarded(tmp_path, marked_blocks(MESSAGES)["example: permissions"]) as world:
        yield world


async def test_the_schedule_example_leads_to_the_event_example(world: World) -> None:
    world.service().start_ready()
    started = datetime.now(UTC)

    await world.send(_example("schedule"))
    events = await world.wait_for_events(1)
    headers = await world.stored_ids()

    reached_at = parse(events[0]["payload"]["reachedAt"])
    shown = with_payload(_example("event"), reachedAt=iso(reached_at))
    assert events == [{**shown, "timestampMs": round(reached_at.timestamp() * 1000)}]
    assert headers == [shown["id"]]
    assert iso(started) <= iso(reached_at) <= iso(datetime.now(UTC))


def test_the_id_of_the_event_example_follows_from_the_recipe() -> None:
    event = _example("event")
    payload = event["payload"]
    due_ms = round(parse(payload["dueAt"]).timestamp() * 1000)
    parts = [payload["tenantId"], payload["serviceCallId"], str(payload["generation"]), str(due_ms)]

    digest = hashlib.sha256("\n".join(parts).encode()).digest()
    bits = "".join(f"{byte:08b}" for byte in digest[:10])

    derived = f"{due_ms:048b}" + "0111" + bits[:12] + "10" + bits[-62:]
    assert event["id"] == str(uuid.UUID(int=int(derived, 2)))


async def test_the_cancel_example_cancels_its_timer(world: World) -> None:
    world.service().start_ready()
    example = _example("cancel")
    await world.schedule("acme", example["payload"]["serviceCallId"], "9999-01-01T00:00:00Z")

    await world.send(example)
    await world.wait_until_consumed()

    assert [(row["state"], row["generation"]) for row in world.rows()] == [("Cancelled", 1)]


async def test_each_refused_message_leads_to_the_letter_that_is_shown(world: World) -> None:
    world.service().start_ready()
    letters = {
        name.removeprefix("letter: "): json.loads(block)
        for name, block in marked_blocks(MESSAGES).items()
        if name.startswith("letter: ")
    }

    for letter in letters.values():
        await world.send_raw(letter["subject"], _body(letter))
    written = await world.wait_for_letters(len(letters))

    assert written == [
        {
            **letter,
            "body": LONG_BODY[:65_536].decode() if name == "too_large" else letter["body"],
            "receivedAt": found["receivedAt"],
            "letterSubject": "timer.deadletter.acme",
        }
        for (name, letter), found in zip(letters.items(), written, strict=True)
    ]


def test_every_reason_of_a_refusal_is_listed_and_has_an_example() -> None:
    listed = {word for row in table(MESSAGES, "reason") for word in code_words(row["reason"])}
    shown = {json.loads(b)["reason"] for n, b in marked_blocks(MESSAGES).items() if n.startswith("letter: ")}

    assert listed == shown == {"not_json", "invalid", "unknown_type", "tenant_mismatch", "too_large"}


async def test_each_time_becomes_what_the_table_says(world: World) -> None:
    world.service().start_ready()
    lines = [row.values() for row in table(MESSAGES, "`dueAt` as sent")]
    rows = {code_words(sent)[0]: became for sent, became in lines}
    kept = {sent: code_words(became)[0] for sent, became in rows.items() if not became.startswith("refused")}

    for number, sent in enumerate(rows):
        await world.schedule("acme", f"call-{number}", sent)
    events = await world.wait_for_events(len(kept))
    letters = await world.wait_for_letters(len(rows) - len(kept))

    calls = list(rows)
    assert {calls[_number(event)]: event["payload"]["dueAt"] for event in events} == kept
    assert {calls[_number(json.loads(letter["body"]))] for letter in letters} == set(rows) - set(kept)


async def test_the_python_program_schedules_a_timer_and_handles_its_event(guarded_world: World) -> None:
    guarded_world.service(**SERVICE_USER).start_ready()

    output = _run_snippet("snippet: python", guarded_world)

    assert output == "order-42 is due\n"


async def test_the_faststream_program_handles_an_event_and_leaves_the_stream_as_it_was(
    guarded_world: World,
) -> None:
    guarded_world.service(**SERVICE_USER).start_ready()
    await _connect(guarded_world, **OPERATOR)
    before = (await guarded_world.jetstream.stream_info("TIMER_EVENTS")).config

    with _running_snippet("snippet: faststream", guarded_world) as program:
        first = await asyncio.to_thread(_first_about, "order-42", program)
        await _until_acknowledged(guarded_world, "TIMER_EVENTS", "acme-billing")

    assert first == "order-42 is due\n"
    assert (await guarded_world.jetstream.stream_info("TIMER_EVENTS")).config == before


async def test_a_faststream_handler_that_raises_gets_the_event_again(guarded_world: World) -> None:
    guarded_world.service(**SERVICE_USER).start_ready()
    await _connect(guarded_world, **OPERATOR)
    good = '    if event["id"] not in seen:\n'
    failing = '    if not seen:\n        seen.add("tried")\n        raise RuntimeError\n'

    with _running_snippet("snippet: faststream", guarded_world, (good, failing + good)) as program:
        first = await asyncio.to_thread(_first_about, "order-42", program)
        await _until_acknowledged(guarded_world, "TIMER_EVENTS", "acme-billing")

    assert first == "order-42 is due\n"


async def test_the_client_snippet_schedules_and_cancels(guarded_world: World) -> None:
    world = guarded_world
    world.service(**SERVICE_USER).start_ready()

    output = _run_snippet("snippet: client", world)
    row = await world.wait_for_row("acme", "order-43", state="Cancelled")

    assert output == "TIMER_COMMANDS 1\n"
    assert row["generation"] == 1


async def test_the_permissions_let_a_tenant_do_its_own_work(guarded_world: World) -> None:
    service = guarded_world.service(**SERVICE_USER).start_ready()
    errors = await _connect(guarded_world, **ACME_USER)

    await guarded_world.schedule("acme", "order-42", "2025-06-02T09:30:00+02:00")
    consumer = await guarded_world.jetstream.pull_subscribe(
        "timer.events.acme.DueTimeReached", durable="acme-billing", stream="TIMER_EVENTS"
    )
    [message] = await consumer.fetch(1, timeout=PATIENCE_S)
    await message.ack_sync()

    assert json.loads(message.data)["payload"]["serviceCallId"] == "order-42"
    assert errors == []
    assert service.events("broker.error") == []


async def test_the_permissions_let_a_tenant_use_all_that_is_its_own(guarded_world: World) -> None:
    """What the documents offer: commands, the API, and a durable consumer of events and of dead letters."""
    service = guarded_world.service(**SERVICE_USER).start_ready()
    errors = await _connect(guarded_world, **ACME_USER)
    timers = Timers(guarded_world.client, tenant="acme")

    await timers.schedule("order-1", datetime.now(UTC))
    await timers.schedule("order-2", datetime(9999, 1, 1, tzinfo=UTC))
    await timers.cancel("order-2")
    await guarded_world.send_raw("timer.commands.acme.Other", b"{}")
    due = {"serviceCallId": "order-3", "dueAt": "9999-01-01T00:00:00Z"}
    scheduled = await ask(guarded_world, "schedule", **due)
    got = await ask(guarded_world, "get", serviceCallId="order-3")
    listed = await ask(guarded_world, "list", state="Scheduled")
    cancelled = await ask(guarded_world, "cancel", serviceCallId="order-3")
    event = await _next(guarded_world, "TIMER_EVENTS", "acme-billing", "timer.events.acme.>")
    letter = await _next(guarded_world, "TIMER_DEADLETTER", "acme-letters", "timer.deadletter.acme")

    assert event["payload"]["serviceCallId"] == "order-1"
    assert letter["reason"] == "unknown_type"
    assert (scheduled["outcome"], cancelled["outcome"]) == ("scheduled", "cancelled")
    assert got["timer"] in listed["timers"]
    assert (errors, service.events("broker.error")) == ([], [])


@pytest.mark.parametrize("prefix", ["_INBOX.acme.nuid", "_INBOX.acme.nuid.1"])
async def test_the_permissions_grant_what_the_javascript_client_sends(
    guarded_world: World, prefix: str
) -> None:
    """The subjects that nats.js 3.4 used for the program that is shown, as the broker's trace had them."""
    guarded_world.service(**SERVICE_USER).start_ready()
    errors = await _connect(guarded_world, **ACME_USER)
    consumer = "TIMER_EVENTS.acme-billing"
    sent = [
        "timer.commands.acme.ScheduleTimer",
        f"$JS.API.CONSUMER.CREATE.{consumer}.timer.events.acme.DueTimeReached",
        f"$JS.API.CONSUMER.INFO.{consumer}",
        f"$JS.API.CONSUMER.MSG.NEXT.{consumer}",
        f"$JS.ACK.{consumer}.1.1.1.1794846315247030527.0",
    ]

    await guarded_world.client.subscribe(f"{prefix}.*")
    for subject in sent:
        await guarded_world.client.publish(subject, b"{}", reply=f"{prefix}.answer")
    await told(guarded_world.client)

    assert errors == []


async def test_the_permissions_keep_a_tenant_from_everything_else(guarded_world: World) -> None:
    guarded_world.service(**SERVICE_USER).start_ready()
    errors = await _connect(guarded_world, **ACME_USER)
    create = "$JS.API.CONSUMER.CREATE.TIMER_EVENTS.acme-billing"
    unpublishable = [
        "timer.commands.globex.ScheduleTimer",
        "timer.api.globex.get",
        "timer.events.acme.DueTimeReached",
        f"{create}.timer.events.globex.DueTimeReached",
        "$JS.API.CONSUMER.CREATE.TIMER_DEADLETTER.acme-letters.timer.deadletter.globex",
        "$JS.API.CONSUMER.CREATE.TIMER_DEADLETTER.acme-letters.timer.deadletter.>",
        "$JS.API.CONSUMER.MSG.NEXT.TIMER_DEADLETTER.globex-letters",
        "$JS.API.STREAM.UPDATE.TIMER_EVENTS",
        "$JS.API.CONSUMER.DURABLE.CREATE.TIMER_EVENTS.acme-billing",
        "$JS.API.STREAM.DELETE.TIMER_EVENTS",
    ]
    unreadable = [
        "timer.events.globex.>",
        "timer.events.>",
        "timer.commands.>",
        "_INBOX.>",
        "timer.deadletter.*",
    ]

    for subject in unpublishable:
        await guarded_world.client.publish(subject, b"{}")
    for subject in unreadable:
        await guarded_world.client.subscribe(subject)
    wider = {"name": "acme-billing", "durable_name": "acme-billing", "filter_subject": "timer.events.>"}
    answer = await guarded_world.client.request(
        f"{create}.timer.events.acme.DueTimeReached",
        encode({"stream_name": "TIMER_EVENTS", "config": wider}),
        timeout=PATIENCE_S,
    )

    refused = [re.findall('"(.+)"', error)[0] for error in errors]
    # nats-py puts what the broker says into lower case.
    assert refused == [subject.lower() for subject in unpublishable + unreadable]
    assert json.loads(answer.data)["error"]["code"] == 400


async def test_a_forbidden_event_is_told_as_rejected_and_delays_nobody(tmp_path: Path) -> None:
    """docs/events.md: publish.failed, kind rejected."""
    deny = 'permissions { publish: { deny: ["timer.events.acme.>"] } }'
    users = f'[ {{ user: "service", password: "p", {deny} }}, {{ user: "tenants", password: "p" }} ]'
    async with _guarded(tmp_path, f"authorization {{ users = {users} }}") as world:
        service = world.service(broker_user="service", broker_password="p").start_ready()
        await _connect(world, user="tenants", password="p")

        await world.schedule("acme", "order-1", "2025-06-02T09:30:00+02:00")
        await world.schedule("globex", "order-1", "2025-06-02T09:30:00+02:00")
        fired = await world.wait_for_events(1, "globex")
        failed = service.wait_for_log("publish.failed")

    assert [event["payload"]["serviceCallId"] for event in fired] == ["order-1"]
    assert (failed["kind"], failed["tenant_id"], failed["timers"]) == ("rejected", "acme", 1)


async def test_the_commands_of_the_readme_answer_as_shown(world: World) -> None:
    shown = marked_blocks("README.md")["session: commands"].replace("--in 3s", "--in 1s")
    world.service().start_ready()
    watch = _start_watch(world)
    replayed = []

    for line in shown.splitlines():
        if line.startswith("$ .venv/bin/timer-service watch"):
            replayed.append(line)
        elif line.startswith("$ .venv/bin/timer-service "):
            arguments = line.removeprefix("$ .venv/bin/timer-service ").split()
            answer = run_cli(
                *arguments,
                cwd=world.folder,
                broker_url=world.broker.url,
                subject_prefix=world.prefix,
            )
            replayed += [line, *answer.stdout.splitlines()]
    fired, _ = watch.communicate(timeout=PATIENCE_S)
    replayed += fired.splitlines()

    assert [_masked(line) for line in replayed] == [_masked(line) for line in shown.splitlines()]


async def test_the_python_program_of_the_readme_sees_its_timer_fire(world: World) -> None:
    world.service().start_ready()

    output = _run_snippet("snippet: readme", world, "README.md", ("nats://127.0.0.1:4222", world.broker.url))

    assert output == "order-44 is due\n"


async def test_the_program_of_the_clients_readme_sees_its_timer_fire(world: World) -> None:
    world.service().start_ready()

    output = _run_snippet(
        "snippet: client", world, "client/README.md", ("nats://127.0.0.1:4222", world.broker.url)
    )

    assert output == "order-42 fired for request-7\n"


def test_the_greeting_of_make_run_is_the_one_that_is_shown(tmp_path: Path) -> None:
    """Only the words are compared: another process may have the usual port."""
    shown = marked_blocks("docs/cli.md")["session: make run"].splitlines()[1:]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TIMER_")}
    process = subprocess.Popen(
        [sys.executable, "-m", "timer_service", "dev"],
        cwd=tmp_path,
        env={**environment, "PATH": "/usr/bin:/bin"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        printed = [process.stdout.readline().rstrip("\n") for _ in shown]
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE_S)

    assert [_words(line) for line in printed] == [_words(line) for line in shown]


def test_the_two_commands_stand_at_the_top_of_the_readme() -> None:
    top = read("README.md").splitlines()[:20]

    assert [line.split()[:2] for line in top if line.startswith("make ")] == [
        ["make", "run"],
        ["make", "test"],
    ]


def _example(name: str) -> dict[str, Any]:
    example: dict[str, Any] = json.loads(marked_blocks(MESSAGES)[f"example: {name}"])
    return example


def _body(letter: dict[str, Any]) -> bytes:
    if letter["reason"] == "too_large":
        return LONG_BODY
    text: str = letter["body"]
    return base64.b64decode(text) if letter["bodyEncoding"] == "base64" else text.encode()


@asynccontextmanager
async def _guarded(folder: Path, configuration: str) -> AsyncIterator[World]:
    broker = NatsServer(folder / "broker", configuration).start()
    world = World(folder, broker, "timer")
    try:
        yield world
    finally:
        await world.close()
        broker.stop()


async def _connect(world: World, **options: Any) -> list[str]:
    """Connect the world as one user; return the list of errors that the broker will tell it."""
    errors: list[str] = []

    async def remember(error: Exception) -> None:
        errors.append(str(error))

    world.client = await nats.connect(world.broker.url, error_cb=remember, **options)
    world.jetstream = world.client.jetstream(timeout=PATIENCE_S)
    return errors


def _number(envelope: dict[str, Any]) -> int:
    return int(envelope["payload"]["serviceCallId"].removeprefix("call-"))


async def _next(world: World, stream: str, consumer: str, subject: str) -> dict[str, Any]:
    """Create a durable consumer, as any client does, and return the next message, acknowledged."""
    subscription = await world.jetstream.pull_subscribe(subject, durable=consumer, stream=stream)
    [message] = await subscription.fetch(1, timeout=PATIENCE_S)
    await message.ack_sync()
    found: dict[str, Any] = json.loads(message.data)
    return found


async def _until_acknowledged(world: World, stream: str, consumer: str) -> None:
    async def acknowledged() -> bool:
        info = await world.jetstream.consumer_info(stream, consumer)
        return info.ack_floor is not None and info.ack_floor.stream_seq == 1

    await world.until(acknowledged, "the event to be acknowledged")


@contextmanager
def _running_snippet(
    marker: str, world: World, change: tuple[str, str] = ("", "")
) -> Iterator["subprocess.Popen[str]"]:
    """Run a program of the document that goes on until it is told to end."""
    text = marked_blocks(MESSAGES)[marker]
    assert change[0] in text
    program = world.folder / "program.py"
    program.write_text(text.replace(*change) if change[0] else text)
    process = subprocess.Popen(
        [sys.executable, str(program)],
        env={**os.environ, "NATS_URL": world.broker.url},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE_S)


def _first_about(word: str, program: "subprocess.Popen[str]") -> str:
    """Return the first line about something; FastStream logs to the same place."""
    assert program.stdout is not None
    return next((line for line in program.stdout if line.startswith(word)), "")


def _run_snippet(
    marker: str, world: World, document: str = MESSAGES, change: tuple[str, str] = ("", "")
) -> str:
    program = world.folder / "program.py"
    text = marked_blocks(document)[marker]
    assert change[0] in text
    program.write_text(text.replace(*change) if change[0] else text)
    result = subprocess.run(
        [sys.executable, str(program)],
        env={**os.environ, "NATS_URL": world.broker.url},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def _start_watch(world: World) -> "subprocess.Popen[str]":
    """Start `watch` and return once it listens."""
    process = subprocess.Popen(
        [sys.executable, "-m", "timer_service", "watch", "--count", "1"],
        cwd=world.folder,
        env={**os.environ, "TIMER_BROKER_URL": world.broker.url, "TIMER_SUBJECT_PREFIX": world.prefix},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    assert "watching" in process.stderr.readline()
    return process


def _masked(line: str) -> str:
    """Return a line without what differs from run to run."""
    line = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME", line)
    line = re.sub(r"in \d+\.\d s", "in N s", line)
    return re.sub(r"[+-]\d+ ms", "N ms", line)


def _words(line: str) -> str:
    """Return a line without the program's path and the broker's address."""
    program = r"\S*timer-service (?=watch|schedule|cancel)|\S+ -m timer_service (?=watch|schedule|cancel)"
    line = re.sub(program, "timer-service ", line)
    line = re.sub(r" --server nats://127.0.0.1:\d+| \(not 4222: .*\)", "", line)
    return re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:PORT", line)
