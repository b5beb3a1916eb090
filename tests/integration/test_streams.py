"""The streams and the consumer on a real broker: what we make, and what we say of what others made."""

from collections.abc import AsyncIterator
from typing import Any

import nats
import pytest
import structlog
from nats.js import JetStreamContext
from nats.js.api import (
    AckPolicy,
    ConsumerConfig,
    DeliverPolicy,
    DiscardPolicy,
    PersistMode,
    RetentionPolicy,
    StorageType,
    StreamConfig,
    StreamSource,
    SubjectTransform,
)

from tests.support.broker import NatsServer
from tests.support.lines import NatsLine, nats_line, until
from tests.support.patience import PATIENCE_S
from timer_service.adapters.nats.bus import NatsMeans
from timer_service.adapters.nats.options import NatsOptions
from timer_service.adapters.nats.session import SessionMeans
from timer_service.adapters.nats.stream_rules import COMMANDS, EVENTS, LETTERS, Finding, broken_promises
from timer_service.adapters.nats.streams import ensure_stream, wanted_streams
from timer_service.testing import ManualClock

DAY_S = 86_400.0
ACK_WAIT_S = 17.0


@pytest.fixture
async def jetstream(shared_broker: NatsServer) -> AsyncIterator[JetStreamContext]:
    client = await nats.connect(shared_broker.url)
    yield client.jetstream(timeout=PATIENCE_S)
    await client.close()


@pytest.fixture
async def line(shared_broker: NatsServer, prefix: str, clock: ManualClock) -> AsyncIterator[NatsLine]:
    async with nats_line(lambda: shared_broker, prefix, clock, ACK_WAIT_S) as opened:
        assert isinstance(opened, NatsLine)
        yield opened


async def ensured(jetstream: JetStreamContext, prefix: str) -> list[Finding]:
    streams = wanted_streams(NatsOptions(connect={}, prefix=prefix), letters_repeated_within_s=70.0)
    return [finding for one in streams for finding in (await ensure_stream(jetstream, one, 1)).findings]


# What we make


def of_ours(config: StreamConfig) -> dict[str, Any]:
    names = "subjects retention discard storage duplicate_window max_age max_msgs max_bytes allow_batched"
    return {name: getattr(config, name) for name in f"{names} max_msgs_per_subject no_ack".split()}


async def test_the_streams_are_made_as_documented(line: NatsLine, jetstream: JetStreamContext) -> None:
    stem, unlimited = line.prefix.upper(), {"max_msgs": -1, "max_bytes": -1, "max_msgs_per_subject": -1}

    found = {
        name: of_ours((await jetstream.stream_info(f"{stem}_{name}")).config)
        for name in ("COMMANDS", "EVENTS", "DEADLETTER")
    }

    common = {**unlimited, "storage": StorageType.FILE, "no_ack": False, "allow_batched": None}
    assert found == {
        "COMMANDS": {
            **common,
            "subjects": [f"{line.prefix}.commands.>"],
            "retention": RetentionPolicy.WORK_QUEUE,
            "discard": DiscardPolicy.NEW,
            "duplicate_window": 120.0,
            "max_age": 0.0,
        },
        "EVENTS": {
            **common,
            "subjects": [f"{line.prefix}.events.>"],
            "allow_batched": True,
            "retention": RetentionPolicy.LIMITS,
            "discard": DiscardPolicy.OLD,
            "duplicate_window": 120.0,
            "max_age": 7 * DAY_S,
        },
        "DEADLETTER": {
            **common,
            "subjects": [f"{line.prefix}.deadletter.>"],
            "retention": RetentionPolicy.LIMITS,
            "discard": DiscardPolicy.OLD,
            "duplicate_window": 3600.0,
            "max_age": 28 * DAY_S,
        },
    }


async def test_the_consumer_never_gives_a_command_up(line: NatsLine, jetstream: JetStreamContext) -> None:
    info = await jetstream.consumer_info(line.stream, "timer-service")

    found = info.config
    assert ConsumerConfig(
        durable_name=found.durable_name,
        deliver_policy=found.deliver_policy,
        ack_policy=found.ack_policy,
        ack_wait=found.ack_wait,
        max_deliver=found.max_deliver,
        backoff=found.backoff,
        filter_subject=found.filter_subject,
        max_ack_pending=found.max_ack_pending,
        inactive_threshold=found.inactive_threshold,
    ) == ConsumerConfig(
        durable_name="timer-service",
        deliver_policy=DeliverPolicy.ALL,
        ack_policy=AckPolicy.EXPLICIT,
        ack_wait=ACK_WAIT_S,
        max_deliver=-1,
        backoff=None,
        filter_subject=f"{line.prefix}.commands.>",
        # What good commands need at this batch size, and room for refused ones that wait for letters.
        max_ack_pending=1_000 + 20_000,
        inactive_threshold=None,
    )


@pytest.mark.parametrize(("batch_size", "pending"), [(100, 21_000), (2_000, 36_000)])
async def test_the_consumer_has_room_for_eight_batches_beside_what_is_refused(
    shared_broker: NatsServer,
    jetstream: JetStreamContext,
    prefix: str,
    clock: ManualClock,
    batch_size: int,
    pending: int,
) -> None:
    async with nats_line(lambda: shared_broker, prefix, clock, ACK_WAIT_S, batch_size=batch_size):
        info = await jetstream.consumer_info(f"{prefix.upper()}_COMMANDS", "timer-service")

    assert info.config.max_ack_pending == pending


async def test_our_own_streams_break_no_rule(jetstream: JetStreamContext, prefix: str) -> None:
    made, again = await ensured(jetstream, prefix), await ensured(jetstream, prefix)

    assert (made, again) == ([], [])


# What others made

SAFE: dict[str, dict[str, Any]] = {
    "COMMANDS": {"subjects": ["{prefix}.commands.>"], "retention": RetentionPolicy.WORK_QUEUE},
    "EVENTS": {"subjects": ["{prefix}.events.>"]},
    "DEADLETTER": {"subjects": ["{prefix}.deadletter.>"]},
}
NEW, OLD = {"discard": DiscardPolicy.NEW}, {"discard": DiscardPolicy.OLD}
UNSAFE = [
    ("COMMANDS", {"retention": RetentionPolicy.INTEREST}, "interest retention", True),
    ("COMMANDS", {"retention": RetentionPolicy.LIMITS}, "limits retention", False),
    ("COMMANDS", {"storage": StorageType.MEMORY}, "in memory", True),
    ("COMMANDS", {"max_msgs": 10, **OLD}, "discards old messages", True),
    ("COMMANDS", {"max_bytes": 100_000, **OLD}, "discards old messages", True),
    ("COMMANDS", {"max_age": 3600.0}, "after 3600 s", True),
    ("COMMANDS", {"max_msgs_per_subject": 1}, "keeps 1 messages per subject", True),
    ("COMMANDS", {"max_msgs_per_subject": 1, **NEW}, "keeps 1 messages per subject", True),
    ("COMMANDS", {"duplicate_window": 0.1}, "window of 0.1 s, less than 30 s", False),
    ("COMMANDS", {"subjects": ["{prefix}.commands.acme.>"]}, "does not take", True),
    ("COMMANDS", {"no_ack": True}, "does not acknowledge", True),
    ("COMMANDS", {"allow_rollup_hdrs": True}, "rollups", True),
    ("COMMANDS", {"allow_msg_schedules": True}, "message schedules", True),
    ("COMMANDS", {"max_msg_size": 1_000}, "1000 bytes", False),
    (
        "COMMANDS",
        {"subject_transform": SubjectTransform(src="{prefix}.commands.>", dest="x{prefix}.>")},
        "rewrites subjects",
        True,
    ),
    ("EVENTS", {"retention": RetentionPolicy.INTEREST}, "interest retention", True),
    ("EVENTS", {"retention": RetentionPolicy.WORK_QUEUE}, "work queue", True),
    ("EVENTS", {"storage": StorageType.MEMORY}, "in memory", True),
    ("EVENTS", {"max_msgs_per_subject": 1}, "keeps 1 messages per subject", True),
    ("EVENTS", {"duplicate_window": 0.1}, "window of 0.1 s, less than 30 s", False),
    ("EVENTS", {"no_ack": True}, "does not acknowledge", True),
    ("EVENTS", {"subjects": ["{prefix}.events.acme.>"]}, "does not take", True),
    ("EVENTS", {"max_msg_size": 100}, "100 bytes", True),
    ("EVENTS", {"persist_mode": PersistMode.ASYNC}, "before they are written", True),
    ("DEADLETTER", {"retention": RetentionPolicy.INTEREST}, "interest retention", True),
    ("DEADLETTER", {"storage": StorageType.MEMORY}, "in memory", True),
    ("DEADLETTER", {"max_bytes": 100_000, **NEW}, "discards new messages", False),
    ("DEADLETTER", {"max_msgs": 100, **NEW}, "discards new messages", False),
    ("DEADLETTER", {"max_msgs_per_subject": 1}, "keeps 1 messages per subject", True),
    ("DEADLETTER", {"duplicate_window": 69.0}, "window of 69 s, less than 70 s", False),
    ("DEADLETTER", {"no_ack": True}, "does not acknowledge", True),
    ("DEADLETTER", {"subjects": ["{prefix}.deadletter.acme"]}, "does not take", True),
    ("DEADLETTER", {"max_msg_size": 100}, "100 bytes", False),
]


def stream(prefix: str, name: str, **changes: Any) -> StreamConfig:
    def own(value: Any) -> Any:
        if isinstance(value, str):
            return value.format(prefix=prefix)
        if isinstance(value, list):
            return [own(part) for part in value]
        if isinstance(value, SubjectTransform):
            return SubjectTransform(src=own(value.src), dest=own(value.dest))
        return value

    values = {key: own(value) for key, value in {**SAFE[name], **changes}.items()}
    return StreamConfig(name=f"{prefix.upper()}_{name}", **values)


@pytest.mark.parametrize(("name", "changes", "words", "loses_data"), UNSAFE)
async def test_what_breaks_a_promise_is_found(
    jetstream: JetStreamContext, prefix: str, name: str, changes: dict[str, Any], words: str, loses_data: bool
) -> None:
    await jetstream.add_stream(stream(prefix, name, **changes))

    (finding,) = await ensured(jetstream, prefix)

    assert finding.detail.startswith(f"{prefix.upper()}_{name} ")
    assert words in finding.detail
    assert finding.loses_data == loses_data


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("COMMANDS", {}),
        ("COMMANDS", {"max_msgs": 1_000_000, **NEW}),
        ("COMMANDS", {"max_msgs_per_subject": 9, "discard_new_per_subject": True, **NEW}),
        ("COMMANDS", {"deny_purge": True, "deny_delete": True}),
        ("COMMANDS", {"subjects": ["{prefix}.commands.>", "{prefix}other.>"]}),
        (
            "EVENTS",
            {"subjects": ["{prefix}.events.>", "{prefix}audit.>"], "max_age": 60.0, "duplicate_window": 30.0},
        ),
        ("EVENTS", {"max_bytes": 100_000_000, **OLD}),
        ("DEADLETTER", {"max_bytes": 100_000_000, **OLD}),
    ],
)
async def test_what_breaks_no_promise_is_used_without_a_word(
    jetstream: JetStreamContext, prefix: str, name: str, changes: dict[str, Any]
) -> None:
    config = stream(prefix, name, **changes)
    await jetstream.add_stream(config)

    assert await ensured(jetstream, prefix) == []


@pytest.mark.parametrize("rules", [COMMANDS, EVENTS, LETTERS])
def test_a_mirror_a_sealed_stream_and_a_counter_take_nothing(rules: Any) -> None:
    """The broker changes no stream of ours into one of these, so the rules are asked directly."""
    good = StreamConfig(name="S", subjects=["s.>"], duplicate_window=120.0)
    if rules is COMMANDS:
        good = good.evolve(retention=RetentionPolicy.WORK_QUEUE)

    found = [
        [finding.detail for finding in broken_promises(good.evolve(**change), rules, "s.>", 30.0)]
        for change in (
            {"mirror": StreamSource(name="other"), "subjects": None},
            {"sealed": True},
            {"allow_msg_counter": True},
            {},
        )
    ]

    assert [len(details) for details in found] == [1, 1, 1, 0]


# While we run


@pytest.fixture
async def watchful_line(
    shared_broker: NatsServer, prefix: str, clock: ManualClock
) -> AsyncIterator[NatsLine]:
    """A bus that looks at its streams whenever it looks at its connection."""
    means = NatsMeans(session=SessionMeans(look_interval_s=0.0))
    async with nats_line(lambda: shared_broker, prefix, clock, ACK_WAIT_S, means=means) as opened:
        assert isinstance(opened, NatsLine)
        yield opened


async def test_a_stream_that_is_changed_under_us_is_told_in_one_line(
    watchful_line: NatsLine, jetstream: JetStreamContext
) -> None:
    line = watchful_line
    events = f"{line.prefix.upper()}_EVENTS"
    config = (await jetstream.stream_info(events)).config

    with structlog.testing.capture_logs() as logs:
        # As FastStream does to a stream that is given as a plain name.
        await jetstream.update_stream(config.evolve(max_age=0.0, max_msgs_per_subject=5))

        async def noticed() -> bool:
            return line.bus.warnings != {}

        await until(noticed, "the change to be noticed")
        warnings = line.bus.warnings
        await jetstream.update_stream(config)

        async def mended() -> bool:
            return line.bus.warnings == {}

        await until(mended, "the mending to be noticed")

    detail = f"{events} keeps 5 messages per subject: older ones are lost"
    assert warnings == {"streams": detail}
    assert logs == [
        {
            "event": "stream.changed",
            "log_level": "warning",
            "stream": events,
            "detail": "max_age was 604800 and is 0, max_msgs_per_subject was -1 and is 5",
        },
        {"event": "stream.unsafe", "log_level": "warning", "detail": detail},
        {
            "event": "stream.changed",
            "log_level": "warning",
            "stream": events,
            "detail": "max_age was 0 and is 604800, max_msgs_per_subject was 5 and is -1",
        },
    ]
