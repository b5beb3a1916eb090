"""For tests of programs that use timers: timers in memory, and what a test says about them."""

from timer_client.testing.assertions import TimerAssertions

__all__ = ["TimerAssertions"]
