"""The streams and the consumer the service needs on the broker."""

from typing import Final, NamedTuple

from nats.js import JetStreamContext
from nats.js.api import (
    AckPolicy,
    ConsumerConfig,
    DiscardPolicy,
    RetentionPolicy,
    StorageType,
    StreamConfig,
)
from nats.js.errors import NotFoundError

from timer_service.adapters.nats import stream_rules
from timer_service.adapters.nats.options import NatsOptions
from timer_service.adapters.nats.stream_rules import (
    MIN_DUPLICATE_WINDOW_S,
    Finding,
    Rule,
    broken_promises,
)

CONSUMER_NAME: Final = "timer-service"
EVENTS_KEPT_S: Final = 7 * 24 * 3600.0
LETTERS_KEPT_S: Final = 28 * 24 * 3600.0
DUPLICATE_WINDOW_S: Final = 120.0
LETTER_DUPLICATE_WINDOW_S: Final = 3600.0
"""Longer than for events: a refused message may be delivered again after a long restart."""


class WantedStream(NamedTuple):
    """A stream that there must be, and what it must not do if somebody else made it."""

    name: str
    subject: str
    purpose: str
    retention: RetentionPolicy
    rules: tuple[Rule, ...]
    max_age_s: float | None = None
    discard: DiscardPolicy = DiscardPolicy.OLD
    duplicate_window_s: float = DUPLICATE_WINDOW_S
    batched: bool = False
    """Whether it should confirm many messages at once."""
    min_window_s: float = MIN_DUPLICATE_WINDOW_S


class WantedStreams(NamedTuple):
    """All that the service needs."""

    events: WantedStream
    letters: WantedStream
    commands: WantedStream


class FoundStream(NamedTuple):
    """A stream as it is on the broker, and what is dangerous about it."""

    name: str
    config: StreamConfig
    findings: list[Finding]


def wanted_streams(options: NatsOptions, letters_repeated_within_s: float) -> WantedStreams:
    """Return the table of streams."""
    names, subjects = options.streams, options.subjects
    return WantedStreams(
        events=WantedStream(
            name=names.events,
            subject=subjects.all_events,
            purpose="due times reached",
            retention=RetentionPolicy.LIMITS,
            rules=stream_rules.EVENTS,
            max_age_s=EVENTS_KEPT_S,
            batched=True,
        ),
        letters=WantedStream(
            name=names.dead_letters,
            subject=subjects.all_dead_letters,
            purpose="messages that were refused, with the reason",
            retention=RetentionPolicy.LIMITS,
            rules=stream_rules.LETTERS,
            max_age_s=LETTERS_KEPT_S,
            duplicate_window_s=LETTER_DUPLICATE_WINDOW_S,
            min_window_s=min(letters_repeated_within_s, LETTER_DUPLICATE_WINDOW_S),
        ),
        commands=WantedStream(
            name=names.commands,
            subject=subjects.all_commands,
            purpose="commands not yet kept",
            retention=RetentionPolicy.WORK_QUEUE,
            rules=stream_rules.COMMANDS,
            discard=DiscardPolicy.NEW,
        ),
    )


async def ensure_stream(jetstream: JetStreamContext, wanted: WantedStream, replicas: int) -> FoundStream:
    """Create a stream if it is missing; return what there is then."""
    try:
        info = await jetstream.stream_info(wanted.name)
    except NotFoundError:
        info = await jetstream.add_stream(_config(wanted, replicas))
    findings = broken_promises(info.config, wanted.rules, wanted.subject, wanted.min_window_s)
    return FoundStream(wanted.name, info.config, list(findings))


def _config(wanted: WantedStream, replicas: int) -> StreamConfig:
    return StreamConfig(
        name=wanted.name,
        description=f"timer-service: {wanted.purpose}",
        subjects=[wanted.subject],
        retention=wanted.retention,
        discard=wanted.discard,
        max_age=wanted.max_age_s,
        storage=StorageType.FILE,
        num_replicas=replicas,
        duplicate_window=wanted.duplicate_window_s,
        # Absent where it is not wanted, as on a server that does not know it.
        allow_batched=wanted.batched or None,
    )


async def ensure_consumer(
    jetstream: JetStreamContext,
    options: NatsOptions,
    max_ack_pending: int,
) -> int:
    """Create the durable consumer of commands, or update it; return how much it has acknowledged."""
    info = await jetstream.add_consumer(
        options.streams.commands,
        ConsumerConfig(
            name=CONSUMER_NAME,
            durable_name=CONSUMER_NAME,
            description="timer-service: reads every command in order",
            filter_subject=options.subjects.all_commands,
            ack_policy=AckPolicy.EXPLICIT,
            ack_wait=options.ack_wait_s,
            # Without limit: a broker that gives up on a message would lose a timer silently.
            max_deliver=-1,
            max_ack_pending=max_ack_pending,
        ),
    )
    return info.ack_floor.consumer_seq if info.ack_floor else 0
