"""A broker in memory that behaves as JetStream does: streams, a pull consumer, links that break."""

import asyncio
import json
from bisect import insort
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, Protocol

from tests.simulation.clock import START_MS
from tests.simulation.fast_ingest import BEGIN, END, FastIngest, Place
from tests.simulation.loop import VirtualLoop

COMMANDS, EVENTS, LETTERS = "TIMER_COMMANDS", "TIMER_EVENTS", "TIMER_DEADLETTER"
PREFIXES = {COMMANDS: "timer.commands.", EVENTS: "timer.events.", LETTERS: "timer.deadletter."}
TENANTS_INBOX = "_INBOX.tenants."

Headers = dict[str, str] | None
Position = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Message:
    """Anything that goes over a link."""

    subject: str
    data: bytes
    reply: str = ""
    headers: Headers = None


@dataclass(frozen=True, slots=True)
class Stored:
    """A message in a stream."""

    position: Position
    subject: str
    data: bytes
    headers: Headers
    stored_at: float

    @property
    def stored_ns(self) -> int:
        """When it was stored, by the broker's clock."""
        return START_MS * 1_000_000 + int(self.stored_at * 1e9)


@dataclass(slots=True)
class Stream:
    """A stream with de-duplication by message id within a window."""

    name: str
    created_us: int
    window_s: float
    config: Any
    messages: dict[int, Stored] = field(default_factory=dict)
    last_sequence: int = 0
    last_stored_ns: int = 0
    losses: int = 0
    """How often its newest messages were lost."""
    full: bool = False
    batches: FastIngest = field(init=False)
    _ids: dict[str, tuple[float, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.batches = FastIngest(self.name)

    def store(self, message: Message, now: float) -> tuple[Stored | None, int]:
        """Keep a message unless its id was seen lately; return it and its sequence."""
        message_id = (message.headers or {}).get("Nats-Msg-Id")
        if message_id is not None:
            seen = self._ids.get(message_id)
            if seen is not None and now - seen[0] < self.window_s:
                return None, seen[1]
        self.last_sequence += 1
        if message_id is not None:
            self._ids[message_id] = (now, self.last_sequence)
        stored = Stored(
            (self.created_us + self.losses, self.last_sequence),
            message.subject,
            message.data,
            message.headers,
            now,
        )
        self.messages[self.last_sequence] = stored
        self.last_stored_ns = stored.stored_ns
        return stored, self.last_sequence

    def recover(self) -> None:
        """Remember the ids of what is still there, and no others; know no batch."""
        self.batches.forget()
        self._ids = {
            stored.headers["Nats-Msg-Id"]: (stored.stored_at, sequence)
            for sequence, stored in self.messages.items()
            if stored.headers and "Nats-Msg-Id" in stored.headers
        }


@dataclass(slots=True)
class _Pull:
    link: "Link"
    reply: str
    left: int
    ends_at: float


@dataclass(slots=True)
class Consumer:
    """A durable pull consumer with explicit acknowledgement."""

    ack_wait_s: float
    max_ack_pending: int
    next_sequence: int = 1
    deadlines: dict[int, float] = field(default_factory=dict)
    """Delivered and not acknowledged: sequence to the moment at which it is delivered again."""
    deliveries: dict[int, int] = field(default_factory=dict)
    again: list[int] = field(default_factory=list)
    pulls: deque[_Pull] = field(default_factory=deque)
    delivered: int = 0
    ended: int = 0
    """Acknowledged or terminated."""


class Watcher(Protocol):
    """Is told what the broker sees."""

    def commands_created(self, created_us: int) -> None: ...
    def command_stored(self, stored: Stored) -> None: ...
    def commands_lost(self, lost: Sequence[Stored], newest: Position) -> None: ...
    def command_ended(self, position: Position, word: str) -> None: ...
    def event_stored(self, message: Message, *, duplicate: bool) -> None: ...
    def event_forbidden(self, message: Message) -> None: ...
    def letter_stored(self, message: Message) -> None: ...
    def note(self, text: str) -> None: ...


@dataclass(slots=True)
class BrokerFaults:
    """What goes wrong at present."""

    lost_acks: float = 0.0
    lost_confirmations: float = 0.0
    late_confirmations: float = 0.0
    """The share of confirmations that come up to `late_by_s` late."""
    late_by_s: float = 0.0
    lost_statuses: bool = False
    """A pull that runs out ends without a word."""
    failing_in_batches: float = 0.0
    """The share of messages in batches that the disk does not take; each gets its error, and the last answer
    counts them all the same."""
    events_full: bool = False
    letters: str = ""
    """Why no letter is taken: `full`, `forbidden` or `silent`."""
    forbidden_tenants: set[str] = field(default_factory=set)
    jetstream_away: bool = False
    """The server runs, but its streams do not answer yet."""
    commands_silent: bool = False
    """The command stream takes and delivers messages, but answers no question about itself."""
    slow_s: float = 0.0
    """The network takes up to this many seconds longer."""


class Broker:
    """The server: survives every crash of the service, and restarts of its own."""

    def __init__(
        self, loop: VirtualLoop, random: Random, watcher: Watcher, epoch_us: Callable[[], int]
    ) -> None:
        self.loop = loop
        self.random = random
        self.watcher = watcher
        self.faults = BrokerFaults()
        self.latency_s = 0.001
        self.up = True
        self.takes_batches = True
        """Whether streams that allow it confirm many messages at once; an old server's do not."""
        self.streams: dict[str, Stream] = {}
        self.consumer: Consumer | None = None
        self.links: list[Link] = []
        self.answers: dict[str, Callable[[Message], None]] = {}
        """Where tenants wait for the answers to their requests."""
        self._epoch_us = epoch_us
        self._wake: asyncio.TimerHandle | None = None

    # What tenants do.

    def publish_command(self, message: Message) -> bool:
        """Publish as a tenant; False where nobody takes it."""
        stream = self.streams.get(COMMANDS)
        if not self.up or stream is None or self.faults.jetstream_away:
            return False
        stored, _ = stream.store(message, self.loop.time())
        if stored is not None:
            self.watcher.command_stored(stored)
            self._deliver()
        return True

    def request(self, message: Message) -> bool:
        """Send a request to the subject's responder; return False if there is none."""
        if not self.up:
            return False
        takers = [link for link in self.links if link.interest(message.subject)]
        if not takers:
            return False
        self.random.choice(takers).down(message)
        return True

    # What happens to the broker.

    def stop(self) -> None:
        """Go away: every connection breaks, whatever is on the wire is lost."""
        self.up = False
        for link in list(self.links):
            link.cut()
        if self.consumer is not None:
            self.consumer.pulls.clear()

    def start(self) -> None:
        """Come back with everything that was stored; unacknowledged messages wait again."""
        self.up = True
        for stream in self.streams.values():
            stream.recover()
        if self.consumer is not None:
            for sequence in self.consumer.deadlines:
                self.consumer.deadlines[sequence] = self.loop.time() + self.consumer.ack_wait_s
        self._deliver()

    def keep_copy(self) -> Callable[[], None]:
        """Copy the commands as they are; return what puts the copy back, as after a power cut."""
        stream, consumer = self.streams.get(COMMANDS), self.consumer
        if stream is None or consumer is None:
            return lambda: None
        last_sequence, messages, losses = stream.last_sequence, dict(stream.messages), stream.losses
        last_stored_ns = stream.last_stored_ns
        kept = deepcopy((consumer.next_sequence, consumer.deadlines, consumer.deliveries, consumer.again))

        def put_back() -> None:
            is_other = self.streams.get(COMMANDS) is not stream or self.consumer is not consumer
            if is_other or stream.losses != losses:
                return  # They were made again since, or the copy is of what was lost itself.
            lost = [stored for sequence, stored in stream.messages.items() if sequence > last_sequence]
            if stream.last_sequence > last_sequence:
                stream.losses += 1
            stream.last_sequence, stream.messages = last_sequence, messages
            stream.last_stored_ns = last_stored_ns
            consumer.next_sequence, consumer.deadlines, consumer.deliveries, consumer.again = kept
            self.watcher.commands_lost(lost, (stream.created_us + stream.losses, last_sequence))

        return put_back

    def wake(self) -> None:
        """Go on with what was held up."""
        self._deliver()

    def delete_consumer(self) -> None:
        consumer, self.consumer = self.consumer, None
        if consumer is not None:
            for pull in consumer.pulls:
                pull.link.down(_status(pull.reply, "409", "Consumer Deleted"))

    def delete_stream(self, name: str) -> None:
        if self.streams.pop(name, None) is not None and name == COMMANDS:
            self.delete_consumer()

    # What the service does, as it arrives.

    def receive(self, link: "Link", message: Message) -> None:
        subject = message.subject
        if subject.startswith("$JS.ACK."):
            self._acknowledged(message)
        elif subject.startswith("$JS.API.CONSUMER.MSG.NEXT."):
            self._pulled(link, message)
        elif subject in (f"$JS.API.STREAM.INFO.{COMMANDS}", f"$JS.API.STREAM.MSG.GET.{COMMANDS}"):
            self._asked(link, message)
        elif subject.startswith(TENANTS_INBOX):
            answer = self.answers.pop(subject, None)
            if answer is not None:
                answer(message)
        else:
            self._published(link, message)

    def _asked(self, link: "Link", message: Message) -> None:
        """Tell how many messages there are, and on which subjects; or find the next message of one."""
        if self.faults.commands_silent:
            return
        if self.faults.jetstream_away:
            link.down(_status(message.reply, "503", ""))
            return
        stream, request = self.streams.get(COMMANDS), json.loads(message.data or "{}")
        if stream is None:
            answer: dict[str, Any] = {"error": {"code": 404, "err_code": 10059}}
        elif "next_by_subj" in request:
            answer = _next_message(stream, request["seq"], request["next_by_subj"])
        elif "seq" in request:
            answer = _message(stream, request["seq"])
        else:
            answer = _information(stream, request.get("subjects_filter", "").split("."))
        link.down(Message(message.reply, json.dumps(answer).encode()))

    def stream_info(self, name: str) -> Stream | None:
        return self.streams.get(name)

    def add_stream(self, name: str, config: Any, window_s: float) -> Stream:
        if name not in self.streams:
            self.streams[name] = Stream(name, self._epoch_us(), window_s, config)
            self.watcher.note(f"broker: stream {name} created")
            if name == COMMANDS:
                self.watcher.commands_created(self.streams[name].created_us)
        return self.streams[name]

    def add_consumer(self, ack_wait_s: float, max_ack_pending: int) -> None:
        if self.consumer is None:
            # On a work queue a new consumer begins with everything that is still there.
            self.consumer = Consumer(ack_wait_s, max_ack_pending)
            self.watcher.note("broker: consumer created")

    def drop(self, link: "Link") -> None:
        """Notice that a link is gone."""
        if link in self.links:
            self.links.remove(link)
        if self.consumer is not None:
            self.consumer.pulls = deque(pull for pull in self.consumer.pulls if pull.link is not link)

    def _published(self, link: "Link", message: Message) -> None:
        name = next((name for name, prefix in PREFIXES.items() if message.subject.startswith(prefix)), None)
        if name == EVENTS and message.subject.split(".")[2] in self.faults.forbidden_tenants:
            self.watcher.event_forbidden(message)
            # In lower case, as nats-py tells it.
            link.error(f'nats: permissions violation for publish to "{message.subject.lower()}"')
            return
        if name == LETTERS and self.faults.letters in ("forbidden", "silent"):
            if self.faults.letters == "forbidden":
                link.error(f'nats: permissions violation for publish to "{message.subject.lower()}"')
            return
        stream = self.streams.get(name) if name is not None else None
        if stream is None or self.faults.jetstream_away:
            if message.reply:
                link.down(_status(message.reply, "503", ""))
            return
        place = Place.of(message.reply)
        if place is not None and not self._is_next_of_batch(link, stream, message, place):
            return
        full = (self.faults.events_full and name == EVENTS) or (self.faults.letters and name == LETTERS)
        if stream.full or full:
            error = {"code": 503, "err_code": 10077, "description": "maximum messages exceeded"}
            alone = [{"stream": name, "error": error}]
            for answer in alone if place is None else stream.batches.refuse(place, error):
                link.down(Message(message.reply, json.dumps(answer).encode()))
            return
        stored, sequence = stream.store(message, self.loop.time())
        if name == EVENTS:
            self.watcher.event_stored(message, duplicate=stored is None)
        elif name == LETTERS and stored is not None:
            self.watcher.letter_stored(message)
        if place is not None and place.operation == BEGIN:
            link.down(Message(message.reply, b'{"type":"ack","seq":0,"msgs":500}'))
        elif place is not None and place.operation == END:
            self._confirm(link, message, stream.batches.end(place.batch, sequence))
        elif place is None and message.reply:
            duplicate = {"duplicate": True} if stored is None else {}
            self._confirm(link, message, {"stream": name, "seq": sequence, **duplicate})

    def _is_next_of_batch(self, link: "Link", stream: Stream, message: Message, place: Place) -> bool:
        """Take a message in a batch, or say why not."""
        batches, faults = stream.batches, self.faults
        takes_batches = bool(stream.config.allow_batched) and self.takes_batches
        answers = batches.admit(place) if takes_batches else [batches.disabled()]
        if not answers and faults.failing_in_batches and self.random.random() < faults.failing_in_batches:
            answers = [{"stream": stream.name, "error": {"err_code": 10077, "description": "no space left"}}]
            if place.operation == END:
                batches.end(place.batch)  # Then nothing else is answered.
        for answer in answers:
            self.watcher.note(f"broker: {place} is answered with {answer}")
            # Not lost by itself: it goes before the last answer, on the same way.
            link.down(Message(message.reply, json.dumps(answer).encode()))
        return not answers

    def _confirm(self, link: "Link", message: Message, answer: Mapping[str, Any]) -> None:
        chance, faults = self.random.random, self.faults
        if faults.lost_confirmations and chance() < faults.lost_confirmations:
            self.watcher.note(f"broker: confirmation of {message.subject} lost")
            return
        late_s = 0.0
        if faults.late_confirmations and chance() < faults.late_confirmations:
            late_s = chance() * faults.late_by_s
            self.watcher.note(f"broker: confirmation of {message.subject} is {late_s:.3f} s late")
        confirmation = Message(message.reply, json.dumps(answer).encode())
        if late_s:
            self.loop.world_at(self.loop.time() + late_s, link.down, confirmation)
        else:
            link.down(confirmation)

    def _pulled(self, link: "Link", message: Message) -> None:
        if self.consumer is None or self.faults.jetstream_away:
            link.down(_status(message.reply, "503", ""))
            return
        request = json.loads(message.data)
        ends_at = self.loop.time() + request["expires"] / 1e9
        self.consumer.pulls.append(_Pull(link, message.reply, request["batch"], ends_at))
        self._deliver()

    def _acknowledged(self, message: Message) -> None:
        sequence = int(message.subject.split(".")[5])
        consumer, stream = self.consumer, self.streams.get(COMMANDS)
        word, _, options = message.data.decode().partition(" ")
        if consumer is None or stream is None or self.faults.jetstream_away:
            return
        if self.faults.lost_acks and self.random.random() < self.faults.lost_acks:
            self.watcher.note(f"broker: {word} of {sequence} lost")
            return
        if word == "-NAK":
            if sequence in consumer.deadlines:
                delay_s = json.loads(options)["delay"] / 1e9 if options else 0.0
                consumer.deadlines[sequence] = self.loop.time() + delay_s
        elif (ended := stream.messages.pop(sequence, None)) is not None:
            consumer.deadlines.pop(sequence, None)
            consumer.ended += 1
            if sequence in consumer.again:
                consumer.again.remove(sequence)
            self.watcher.command_ended(ended.position, word)
        self._deliver()

    def _deliver(self) -> None:
        """Answer pulls with what there is, and see to it that we look again when something runs out."""
        consumer, stream = self.consumer, self.streams.get(COMMANDS)
        if not self.up or consumer is None or stream is None or self.faults.jetstream_away:
            return
        now = self.loop.time()
        self._collect(consumer, stream, now)
        while consumer.pulls and (sequence := self._next(consumer, stream)) is not None:
            pull = consumer.pulls[0]
            stored = stream.messages[sequence]
            consumer.delivered += 1
            times = consumer.deliveries[sequence] = consumer.deliveries.get(sequence, 0) + 1
            consumer.deadlines[sequence] = now + consumer.ack_wait_s
            numbers = f"{times}.{sequence}.{consumer.delivered}.{stored.stored_ns}.0"
            reply = f"$JS.ACK.{COMMANDS}.timer-service.{numbers}"
            pull.link.down(Message(stored.subject, stored.data, reply, stored.headers), inbox=pull.reply)
            pull.left -= 1
            if pull.left == 0:
                consumer.pulls.popleft()
        self._look_again(consumer)

    def _collect(self, consumer: Consumer, stream: Stream, now: float) -> None:
        while consumer.pulls and consumer.pulls[0].ends_at <= now:
            pull = consumer.pulls.popleft()
            if not self.faults.lost_statuses:
                pull.link.down(_status(pull.reply, "408", "Request Timeout"))
        for sequence in [s for s, deadline in consumer.deadlines.items() if deadline <= now]:
            del consumer.deadlines[sequence]
            if sequence in stream.messages:
                insort(consumer.again, sequence)

    def _next(self, consumer: Consumer, stream: Stream) -> int | None:
        if consumer.again:
            return consumer.again.pop(0)
        if len(consumer.deadlines) >= consumer.max_ack_pending:
            return None
        while consumer.next_sequence <= stream.last_sequence:
            consumer.next_sequence += 1
            if consumer.next_sequence - 1 in stream.messages:
                return consumer.next_sequence - 1
        return None

    def _look_again(self, consumer: Consumer) -> None:
        moments = [pull.ends_at for pull in consumer.pulls]
        if consumer.pulls:
            moments.extend(consumer.deadlines.values())
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        if moments:
            self._wake = self.loop.world_at(min(moments), self._deliver)


class Endpoint(Protocol):
    """The client's end of a link."""

    def arrived(self, message: Message, inbox: str) -> None: ...
    def failed(self, text: str) -> None: ...
    def closed(self) -> None: ...
    def listens(self, subject: str) -> bool: ...


class Link:
    """One connection: both ways in order, until it breaks."""

    def __init__(self, broker: Broker, endpoint: Endpoint) -> None:
        self._broker = broker
        self._endpoint = endpoint
        self._up_at = self._down_at = 0.0
        # Of two things that arrive at one instant, the first sent is the first to arrive.
        self._going_up: deque[tuple[Callable[[], None], float]] = deque()
        self._coming_down: deque[Callable[[], None]] = deque()
        self._broken = False
        self._process_died_at: float | None = None
        self.deaf_until = 0.0
        """Until then what the client sends is swallowed."""
        self.mute_until = 0.0
        """Until then what the broker sends is swallowed."""
        broker.links.append(self)

    def interest(self, subject: str) -> bool:
        return not self._broken and self._endpoint.listens(subject)

    def up(self, work: Callable[[], None]) -> None:
        """Let the broker do something once it has travelled there."""
        if self._broken:
            return
        left_at = self._broker.loop.time() + self._broker.random.random() * 0.0002
        self._up_at = max(self._up_at, left_at + self._delay())
        self._going_up.append((work, left_at))
        self._broker.loop.world_at(self._up_at, self._arrive_up)

    def send(self, message: Message) -> None:
        self.up(lambda: self._broker.receive(self, message))

    def down(self, message: Message, inbox: str = "") -> None:
        """Send to the client; a delivery goes to the inbox of its pull but keeps its subject."""
        self.back(lambda: self._endpoint.arrived(message, inbox or message.subject))

    def back(self, work: Callable[[], None]) -> None:
        """Let the client do something once it has travelled there."""
        if self._broken:
            return
        self._down_at = max(self._down_at, self._broker.loop.time() + self._delay())
        self._coming_down.append(work)
        self._broker.loop.world_at(self._down_at, self._arrive_down)

    def error(self, text: str) -> None:
        self.back(lambda: self._endpoint.failed(text))

    def cut(self) -> None:
        """Break it: both sides notice, nothing on the wire arrives."""
        if not self._broken:
            self._broken = True
            self._broker.drop(self)
            self._broker.loop.world_at(self._broker.loop.time() + self._delay(), self._endpoint.closed)

    def close(self) -> None:
        """End it from the client's side: what was sent before still arrives."""
        self._broker.loop.world_at(self._up_at, self._forget)

    def process_died(self) -> None:
        """What had left the process arrives; the rest never does."""
        self._process_died_at = self._broker.loop.time()
        self.close()

    def _forget(self) -> None:
        self._broken = True
        self._broker.drop(self)

    def _delay(self) -> float:
        broker = self._broker
        return broker.random.random() * (broker.latency_s + broker.faults.slow_s)

    def _arrive_up(self) -> None:
        work, left_at = self._going_up.popleft()
        died_before = self._process_died_at is not None and left_at > self._process_died_at
        if self._broken or died_before or self._broker.loop.time() < self.deaf_until or not self._broker.up:
            return
        work()

    def _arrive_down(self) -> None:
        work = self._coming_down.popleft()
        gone = self._broken or self._process_died_at is not None
        if not gone and self._broker.loop.time() >= self.mute_until:
            work()


def _information(stream: Stream, pattern: Sequence[str]) -> dict[str, Any]:
    subjects = Counter(
        stored.subject for stored in stream.messages.values() if matches(pattern, stored.subject.split("."))
    )
    state = {
        "messages": len(stream.messages),
        "first_seq": min(stream.messages, default=stream.last_sequence + 1),
        "last_seq": stream.last_sequence,
        "subjects": subjects,
    }
    return {"created": str(stream.created_us), "total": len(subjects), "state": state}


def _next_message(stream: Stream, first: int, subject: str) -> dict[str, Any]:
    found = [n for n, stored in stream.messages.items() if n >= first and stored.subject == subject]
    return {"message": {"seq": min(found)}} if found else {"error": {"code": 404, "err_code": 10037}}


def _message(stream: Stream, sequence: int) -> dict[str, Any]:
    stored = stream.messages.get(sequence)
    if stored is None:
        return {"error": {"code": 404, "err_code": 10037}}
    stored_at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=stored.stored_ns // 1000)
    return {"message": {"seq": sequence, "time": stored_at.isoformat()}}


def _status(inbox: str, status: str, description: str) -> Message:
    headers = {"Status": status}
    if description:
        headers["Description"] = description
    return Message(inbox, b"", "", headers)


def matches(pattern: Sequence[str], subject: Sequence[str]) -> bool:
    """Return whether a subject falls under a pattern with `*` and `>`."""
    for index, word in enumerate(pattern):
        if word == ">":
            return len(subject) > index
        if index >= len(subject) or word not in ("*", subject[index]):
            return False
    return len(pattern) == len(subject)
