"""For tests of programs that use timers: timers in memory, and what a test says about them.

The fixture `timer_service` of the pytest plugin runs the real service; see docs/testing.md.
"""

from timer_client.testing.assertions import TimerAssertions
from timer_client.testing.crashing import Rehearsal, crash_everywhere
from timer_client.testing.fake import FakeTimers
from timer_client.testing.watching import FlowMistake

__all__ = ["FakeTimers", "FlowMistake", "Rehearsal", "TimerAssertions", "crash_everywhere"]
