"""Keep claims and requests off each other's timers: a timer is fired or answered for, never both at once."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager

from timer_service.domain.callback import Sink
from timer_service.domain.messages import TimerKey


class Exclusion:
    """Who holds which timer, in this process.

    A claim leaves out a timer that a request may have changed since the claim's look began: what was read may
    be outdated. Such a timer is due, so it is closed to further requests until a claim has it.
    """

    def __init__(self) -> None:
        self._claimed: set[TimerKey] = set()
        self._asking: Counter[TimerKey] = Counter()
        self._asked_since: dict[Sink, set[TimerKey]] = {}
        """By sink that looks: timers with a request under way since the look began, ended or not."""
        self._wanted: dict[Sink, set[TimerKey]] = {}
        """By sink: the looks of one find nothing of what those of another left out."""

    @contextmanager
    def requesting(self, keys: Iterable[TimerKey]) -> Iterator[Collection[TimerKey]]:
        """Hold those of the timers that are open to requests, and give them back at the end."""
        closed = self._claimed.union(*self._wanted.values())
        held = [key for key in dict.fromkeys(keys) if key not in closed]
        for asked_since in self._asked_since.values():
            asked_since.update(held)
        self._asking.update(held)
        try:
            yield held
        finally:
            self._asking.subtract(held)
            self._asking = +self._asking  # Entries of zero would stay forever.

    def begin_look(self, sink: Sink = Sink.BUS) -> Collection[TimerKey]:
        """Note every request from here on; return what is claimed, which the look has to leave out."""
        # With those under way: one may end before the reading does, and the reading not see it.
        self._asked_since[sink] = set(self._asking)
        return self._claimed

    def end_look(self, sink: Sink = Sink.BUS) -> None:
        """Note no more requests: the look has failed."""
        self._asked_since.pop(sink, None)

    def claim(self, found: Collection[TimerKey], sink: Sink = Sink.BUS) -> set[TimerKey]:
        """Claim what a look has found, but for the timers of requests since it began; return the claimed."""
        self._wanted[sink] = self._asked_since.pop(sink, set()).intersection(found)
        # A look that began at a place may have found again what was claimed from further on.
        claimed = set(found) - self._wanted[sink] - self._claimed
        self._claimed |= claimed
        return claimed

    def give_back(self, keys: Iterable[TimerKey]) -> None:
        """End a claim."""
        self._claimed.difference_update(keys)
