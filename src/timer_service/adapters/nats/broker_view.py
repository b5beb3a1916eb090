"""What the broker tells of its streams and of those who read them, and which instances answer."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from timer_service.adapters.nats.looking_back import LOOK_PREFIX, StreamReader, filters_of
from timer_service.adapters.nats.options import NatsOptions
from timer_service.ports.broker_view import InstanceSeen, ReaderSeen, StreamSeen


class NatsBrokerView:
    """The look around on NATS."""

    def __init__(self, options: NatsOptions, reader: StreamReader) -> None:
        self._reader = reader
        self._streams = options.streams
        self._status = options.subjects.status

    async def streams(self) -> Sequence[StreamSeen]:
        """Ask for each stream."""
        names = (self._streams.commands, self._streams.events, self._streams.dead_letters)
        return [_stream(name, await self._reader.state(name)) for name in names]

    async def readers(self) -> Sequence[ReaderSeen]:
        """Ask for the consumers of the events; our own looks are gone after a moment and do not count."""
        found = [
            ReaderSeen(
                str(each.get("name", "")),
                filters_of(each),
                int(each.get("num_pending", 0)),
                int(each.get("num_ack_pending", 0)),
                int(each.get("num_redelivered", 0)),
            )
            for each in await self._reader.consumers(self._streams.events)
        ]
        return sorted(
            (each for each in found if not each.name.startswith(LOOK_PREFIX)), key=lambda each: each.name
        )

    async def instances(self) -> Sequence[InstanceSeen]:
        """Ask all at once, and take what comes until no more does."""
        answers = [_answer(body) for body in await self._reader.ask_all(self._status, b"{}")]
        found = [_instance(answer) for answer in answers if "instance" in answer]
        return sorted(found, key=lambda each: each.name)


def _stream(name: str, state: Mapping[str, Any]) -> StreamSeen:
    messages, size, consumers = (int(state.get(key, 0)) for key in ("messages", "bytes", "consumer_count"))
    return StreamSeen(name, messages, size, consumers)


def _answer(body: bytes) -> dict[str, Any]:
    """Return what an instance says of itself; nothing if that cannot be read."""
    try:
        answer = json.loads(body)
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}


def _instance(answer: Mapping[str, Any]) -> InstanceSeen:
    late = answer.get("latenessP99Seconds")
    return InstanceSeen(
        str(answer["instance"]),
        str(answer.get("version", "")),
        not answer.get("problems"),
        float(answer.get("firedPerSecond", 0)),
        None if late is None else float(late),
    )
