"""A clock, a store, a broker and a receiver for tests: no machine, no disk, no network.

They keep the promises of the ports that they stand in for (the same suites run against them and the real
adapters), so that a test may build workflows or a whole `Service` from them::

    clock = ManualClock()
    store = MemoryTimerStore()
    bus = MemoryEventBus(clock, Subjects("timer"))
    bus.send(subject, body)  # what a caller would publish
    clock.advance(10)  # tasks that have slept for ten seconds wake
    bus.events  # what the service has published, by message id

`virtual` and `kit` have the whole service on a virtual clock, over a real broker. `timer-service dev` uses
them where it is asked to, a real start never does.
"""

from timer_service.testing.api_keys import MemoryApiKeys
from timer_service.testing.bus import MemoryEventBus
from timer_service.testing.clock import START, ManualClock
from timer_service.testing.receiver import ScriptedSender
from timer_service.testing.store import MemoryTimerStore

__all__ = ["START", "ManualClock", "MemoryApiKeys", "MemoryEventBus", "MemoryTimerStore", "ScriptedSender"]
