"""Fast-ingest batches as JetStream takes them: numbered, stopped at the first gap, confirmed at the end."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

BEGIN, GO_ON, END = "0", "1", "2"
GAPS_FAIL = "fail"


class Place(NamedTuple):
    """Where a message stands in a batch, as its reply subject says."""

    batch: str
    number: int
    operation: str

    @classmethod
    def of(cls, reply: str) -> "Place | None":
        """Read a reply subject; None if it is not that of a batch."""
        if not reply.endswith(".$FI"):
            return None
        _, batch, _, gaps, number, operation, _ = reply.rsplit(".", 6)
        assert gaps == GAPS_FAIL, "with other batches the last answer says less"
        return cls(batch, int(number), operation)


Answer = Mapping[str, Any]


@dataclass(slots=True)
class FastIngest:
    """The batches that one stream has begun."""

    stream: str
    _last: dict[str, int] = field(default_factory=dict)
    """The newest number of each."""

    def admit(self, place: Place) -> list[Answer]:
        """Return why a message is not taken; nothing if it is the next of its batch."""
        last = self._last.get(place.batch, 0 if place.number == 1 else None)
        if last is None:
            return [self._error(10208, "batch publish ID unknown")]
        if place.number != last + 1:
            gap = {"type": "gap", "last_seq": last + 1, "seq": place.number}
            return [gap, self.end(place.batch)]
        self._last[place.batch] = place.number
        return []

    def refuse(self, place: Place, error: Answer) -> list[Answer]:
        """Return the answers to a message that the stream cannot take; its batch ends before it."""
        self._last[place.batch] = place.number - 1
        return [{"type": "err", "seq": place.number, "error": error}, self.end(place.batch)]

    def end(self, batch: str, sequence: int = 0) -> Answer:
        """Forget a batch and return its last answer, which counts what it has seen."""
        return {"stream": self.stream, "seq": sequence, "batch": batch, "count": self._last.pop(batch, 0)}

    def forget(self) -> None:
        """Know no batch any longer: the broker was away."""
        self._last.clear()

    def disabled(self) -> Answer:
        """Return what a stream says that takes no batches."""
        return self._error(10205, "batch publish is disabled")

    def _error(self, number: int, description: str) -> Answer:
        return {"stream": self.stream, "error": {"err_code": number, "description": description}}
