"""What an operator's stream must not be configured to do, because a promise would no longer hold."""

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from nats.js.api import DiscardPolicy, PersistMode, RetentionPolicy, StorageType, StreamConfig

from timer_client import wire

MIN_DUPLICATE_WINDOW_S: Final = 30.0
"""A message without an answer is sent again within this time: 5 s of waiting, a reconnect and a back-off."""
MAX_EVENT_BYTES: Final = 16_384
MAX_LETTER_BYTES: Final = 8 * wire.MAX_LETTER_BODY_BYTES
"""A body whose every byte is escaped, and what stands around it."""


class Rule(NamedTuple):
    """One thing that a stream must not do."""

    is_broken: Callable[[StreamConfig], bool]
    text: str
    """What follows from it; fields of the configuration may stand in it."""
    loses_data: bool = True


class Finding(NamedTuple):
    """A rule that a stream breaks."""

    detail: str
    loses_data: bool


def _limits(*names: str) -> Callable[[StreamConfig], bool]:
    return lambda found: any((getattr(found, name) or 0) > 0 for name in names)


def _is_limited(found: StreamConfig) -> bool:
    return _limits("max_msgs", "max_bytes")(found)


def _drops_by_subject(found: StreamConfig) -> bool:
    refuses = found.discard == DiscardPolicy.NEW and found.discard_new_per_subject
    return found.max_msgs_per_subject > 0 and not refuses


def _takes_less_than(size: int) -> Callable[[StreamConfig], bool]:
    return lambda found: 0 < (found.max_msg_size or 0) < size


ALL: Final = (
    Rule(
        lambda found: found.storage == StorageType.MEMORY,
        "is kept in memory: a restart of the broker loses it",
    ),
    Rule(
        lambda found: found.persist_mode == PersistMode.ASYNC,
        "confirms messages before they are written: a crash of the broker loses them",
    ),
    Rule(lambda found: found.no_ack, "does not acknowledge: nothing published to it is ever confirmed"),
    Rule(lambda found: found.mirror is not None, "is a mirror: nothing can be published to it"),
    Rule(lambda found: found.sealed, "is sealed: it takes no message"),
    Rule(lambda found: bool(found.allow_msg_counter), "is a counter: it takes no other message"),
    Rule(
        lambda found: found.subject_transform is not None,
        "rewrites subjects: the tenant of a message may become another",
    ),
    Rule(_drops_by_subject, "keeps {max_msgs_per_subject} messages per subject: older ones are lost"),
)

COMMANDS: Final = (
    *ALL,
    Rule(
        lambda found: found.retention == RetentionPolicy.INTEREST,
        "has interest retention: a command published while the consumer is missing is lost, and due timers "
        "do not wait for commands",
    ),
    Rule(
        lambda found: found.retention == RetentionPolicy.LIMITS,
        "has limits retention: commands stay, due timers do not wait for those that were stored before, and "
        "a new consumer applies all of them again",
        loses_data=False,
    ),
    Rule(
        lambda found: _is_limited(found) and found.discard == DiscardPolicy.OLD,
        "discards old messages when full: commands can be lost; set discard to new",
    ),
    Rule(_limits("max_age"), "drops messages after {max_age:g} s: commands can be lost"),
    Rule(
        # Schedules bring rollups with them.
        lambda found: found.allow_rollup_hdrs and not found.allow_msg_schedules,
        "allows rollups: one tenant's message can delete the commands of all",
    ),
    Rule(
        lambda found: bool(found.allow_msg_schedules),
        "allows message schedules: a tenant can publish to subjects that it has no right to, and delete",
    ),
    Rule(
        _takes_less_than(wire.MAX_LETTER_BODY_BYTES),
        "accepts messages of at most {max_msg_size} bytes: larger commands are refused by the broker",
        loses_data=False,
    ),
)

EVENTS: Final = (
    *ALL,
    Rule(
        lambda found: found.retention == RetentionPolicy.INTEREST,
        "has interest retention: an event without a consumer is lost",
    ),
    Rule(
        lambda found: found.retention == RetentionPolicy.WORK_QUEUE,
        "is a work queue: an event goes to one consumer only, and is then gone",
    ),
    Rule(
        _takes_less_than(MAX_EVENT_BYTES),
        "accepts messages of at most {max_msg_size} bytes: the timers of larger events never fire",
    ),
)

LETTERS: Final = (
    *ALL,
    Rule(
        lambda found: found.retention == RetentionPolicy.INTEREST,
        "has interest retention: a dead letter without a consumer is lost",
    ),
    Rule(
        lambda found: _is_limited(found) and found.discard == DiscardPolicy.NEW,
        "discards new messages when full: refused messages then wait, and are dropped when they are too many",
        loses_data=False,
    ),
    Rule(
        _takes_less_than(MAX_LETTER_BYTES),
        "accepts messages of at most {max_msg_size} bytes: larger dead letters are never written",
        loses_data=False,
    ),
)


def broken_promises(
    found: StreamConfig, rules: tuple[Rule, ...], subject: str, window_s: float
) -> Iterator[Finding]:
    """Yield what is dangerous about a stream that is to take `subject` and to know a repetition."""
    if found.mirror is None and not any(_covers(pattern, subject) for pattern in found.subjects or []):
        yield Finding(
            f"{found.name} does not take {subject}: such messages are lost or refused", loses_data=True
        )
    if found.duplicate_window < window_s:
        detail = (
            f"{found.name} has a duplicate window of {found.duplicate_window:g} s, less than {window_s:g} s"
        )
        yield Finding(f"{detail}: a repeated message is stored twice", loses_data=False)
    for rule in rules:
        if rule.is_broken(found):
            fields = {"max_age": found.max_age or 0.0, "max_msg_size": found.max_msg_size}
            text = rule.text.format(max_msgs_per_subject=found.max_msgs_per_subject, **fields)
            yield Finding(f"{found.name} {text}", rule.loses_data)


def _covers(pattern: str, subject: str) -> bool:
    """Return whether every subject that `subject` stands for also matches `pattern`."""
    ours, theirs = subject.split("."), pattern.split(".")
    for index, word in enumerate(theirs):
        if word == ">":
            return len(ours) > index
        if index >= len(ours) or ours[index] == ">" or word not in ("*", ours[index]):
            return False
    return len(ours) == len(theirs)
