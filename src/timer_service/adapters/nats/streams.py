"""The streams and the consumer the service needs on the broker."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

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

from timer_service.adapters.codec import Subjects

CONSUMER_NAME: Final = "timer-service"
EVENTS_KEPT_S: Final = 7 * 24 * 3600.0
LETTERS_KEPT_S: Final = 28 * 24 * 3600.0
DUPLICATE_WINDOW_S: Final = 120.0
LETTER_DUPLICATE_WINDOW_S: Final = 3600.0
"""Longer than for events: a refused message may be delivered again after a long restart."""


@dataclass(frozen=True, slots=True)
class StreamNames:
    """What the streams are called."""

    commands: str
    events: str
    dead_letters: str

    @classmethod
    def of(cls, prefix: str) -> "StreamNames":
        """Derive the names from the subject prefix: `timer` gives TIMER_COMMANDS and so on."""
        stem = prefix.upper().replace(".", "_")
        return cls(f"{stem}_COMMANDS", f"{stem}_EVENTS", f"{stem}_DEADLETTER")


async def ensure_streams(
    jetstream: JetStreamContext, subjects: Subjects, names: StreamNames, replicas: int
) -> tuple[StreamInfo, list[str]]:
    """Create what is missing; return the command stream and what is dangerous about those that exist."""
    warnings: list[str] = []
    commands = await _ensure(
        jetstream,
        StreamConfig(
            name=names.commands,
            description="timer-service: commands not yet kept",
            subjects=[subjects.all_commands],
            retention=RetentionPolicy.WORK_QUEUE,
            discard=DiscardPolicy.NEW,
            storage=StorageType.FILE,
            num_replicas=replicas,
            duplicate_window=DUPLICATE_WINDOW_S,
        ),
        warnings,
    )
    warnings.extend(_dropped_commands(commands.config))
    await _ensure(
        jetstream,
        StreamConfig(
            name=names.events,
            description="timer-service: due times reached",
            subjects=[subjects.all_events],
            retention=RetentionPolicy.LIMITS,
            max_age=EVENTS_KEPT_S,
            storage=StorageType.FILE,
            num_replicas=replicas,
            duplicate_window=DUPLICATE_WINDOW_S,
        ),
        warnings,
    )
    await _ensure(
        jetstream,
        StreamConfig(
            name=names.dead_letters,
            description="timer-service: messages that were refused, with the reason",
            subjects=[subjects.all_dead_letters],
            retention=RetentionPolicy.LIMITS,
            max_age=LETTERS_KEPT_S,
            storage=StorageType.FILE,
            num_replicas=replicas,
            duplicate_window=LETTER_DUPLICATE_WINDOW_S,
        ),
        warnings,
    )
    return commands, warnings


async def ensure_consumer(
    jetstream: JetStreamContext,
    subjects: Subjects,
    names: StreamNames,
    *,
    ack_wait_s: float,
    max_ack_pending: int,
) -> None:
    """Create the durable consumer of commands, or bring an existing one up to date."""
    await jetstream.add_consumer(
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


async def _ensure(jetstream: JetStreamContext, wanted: StreamConfig, warnings: list[str]) -> StreamInfo:
    assert wanted.name
    assert wanted.subjects
    try:
        info = await jetstream.stream_info(wanted.name)
    except NotFoundError:
        return await jetstream.add_stream(wanted)
    warnings.extend(_broken_promises(info.config, wanted))
    return info


def _broken_promises(found: StreamConfig, wanted: StreamConfig) -> Iterator[str]:
    assert wanted.subjects
    if not any(_covers(subject, wanted.subjects[0]) for subject in found.subjects or []):
        yield f"{found.name} does not take {wanted.subjects[0]}: such messages are lost or refused"
    if found.duplicate_window <= 0:
        yield f"{found.name} has no duplicate window: a repeated message is stored twice"
    if found.no_ack:
        yield f"{found.name} does not acknowledge: nothing published to it is ever confirmed"


def _dropped_commands(found: StreamConfig) -> Iterator[str]:
    limited = any(limit is not None and limit > 0 for limit in (found.max_msgs, found.max_bytes))
    if limited and found.discard == DiscardPolicy.OLD:
        yield f"{found.name} discards old messages when full: commands can be lost; set discard to new"
    if found.max_msgs_per_subject > 0:
        yield f"{found.name} keeps {found.max_msgs_per_subject} messages a subject: commands can be lost"
    if found.max_age:
        yield f"{found.name} drops messages after {found.max_age:g} s: commands can be lost"


def _covers(pattern: str, subject: str) -> bool:
    """Tell whether every subject that `subject` stands for also matches `pattern`."""
    ours, theirs = subject.split("."), pattern.split(".")
    for index, word in enumerate(theirs):
        if word == ">":
            return len(ours) > index
        if index >= len(ours) or ours[index] == ">" or word not in ("*", ours[index]):
            return False
    return len(ours) == len(theirs)
