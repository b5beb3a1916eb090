"""The streams and the consumer the service needs on the broker."""

from dataclasses import dataclass
from typing import Final, NamedTuple

from nats.js import JetStreamContext
from nats.js.api import (
    AckPolicy,
    ConsumerConfig,
    DiscardPolicy,
    RetentionPolicy,
    StorageType,
    StreamConfig,
    StreamInfo,
)
from nats.js.errors import NotFoundError

from timer_client.subjects import StreamNames, Subjects
from timer_service.adapters.nats import stream_rules
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


@dataclass(frozen=True, slots=True)
class Streams:
    """The streams as they are on the broker, and what is dangerous about them."""

    commands: StreamInfo
    configs: dict[str, StreamConfig]
    findings: list[Finding]


class _Wanted(NamedTuple):
    """A stream that there must be, and what it must not do where somebody else made it."""

    config: StreamConfig
    rules: tuple[Rule, ...]
    window_s: float


async def ensure_streams(
    jetstream: JetStreamContext,
    subjects: Subjects,
    names: StreamNames,
    *,
    replicas: int,
    letters_repeated_within_s: float,
) -> Streams:
    """Create what is missing; return what there is then."""
    found: dict[str, StreamInfo] = {}
    findings: list[Finding] = []
    for config, rules, window_s in _wanted(subjects, names, replicas, letters_repeated_within_s):
        assert config.name
        assert config.subjects
        try:
            info = await jetstream.stream_info(config.name)
        except NotFoundError:
            info = await jetstream.add_stream(config)
        found[config.name] = info
        findings += broken_promises(info.config, rules, config.subjects[0], window_s)
    configs = {name: info.config for name, info in found.items()}
    return Streams(found[names.commands], configs, findings)


def _wanted(
    subjects: Subjects, names: StreamNames, replicas: int, letters_repeated_within_s: float
) -> tuple[_Wanted, ...]:
    commands = StreamConfig(
        name=names.commands,
        description="timer-service: commands not yet kept",
        subjects=[subjects.all_commands],
        retention=RetentionPolicy.WORK_QUEUE,
        discard=DiscardPolicy.NEW,
        storage=StorageType.FILE,
        num_replicas=replicas,
        duplicate_window=DUPLICATE_WINDOW_S,
    )
    events = StreamConfig(
        name=names.events,
        description="timer-service: due times reached",
        subjects=[subjects.all_events],
        retention=RetentionPolicy.LIMITS,
        max_age=EVENTS_KEPT_S,
        storage=StorageType.FILE,
        num_replicas=replicas,
        duplicate_window=DUPLICATE_WINDOW_S,
    )
    letters = StreamConfig(
        name=names.dead_letters,
        description="timer-service: messages that were refused, with the reason",
        subjects=[subjects.all_dead_letters],
        retention=RetentionPolicy.LIMITS,
        max_age=LETTERS_KEPT_S,
        storage=StorageType.FILE,
        num_replicas=replicas,
        duplicate_window=LETTER_DUPLICATE_WINDOW_S,
    )
    letter_window_s = min(letters_repeated_within_s, LETTER_DUPLICATE_WINDOW_S)
    return (
        _Wanted(commands, stream_rules.COMMANDS, MIN_DUPLICATE_WINDOW_S),
        _Wanted(events, stream_rules.EVENTS, MIN_DUPLICATE_WINDOW_S),
        _Wanted(letters, stream_rules.LETTERS, letter_window_s),
    )


async def ensure_consumer(
    jetstream: JetStreamContext,
    subjects: Subjects,
    names: StreamNames,
    *,
    ack_wait_s: float,
    max_ack_pending: int,
) -> int:
    """Create the durable consumer of commands, or update it; return how much it has acknowledged."""
    info = await jetstream.add_consumer(
        names.commands,
        ConsumerConfig(
            name=CONSUMER_NAME,
            durable_name=CONSUMER_NAME,
            description="timer-service: reads every command in order",
            filter_subject=subjects.all_commands,
            ack_policy=AckPolicy.EXPLICIT,
            ack_wait=ack_wait_s,
            # Without limit: a broker that gives up on a message would lose a timer without a word.
            max_deliver=-1,
            max_ack_pending=max_ack_pending,
        ),
    )
    return info.ack_floor.consumer_seq if info.ack_floor else 0
