"""The wall clock of the simulated machine: it drifts, and somebody steps it."""

from tests.simulation.loop import VirtualLoop

START_MS = 1_772_000_000_000
"""In February 2026."""
_DUST = 1e-6
"""Sums of seconds miss a whole millisecond by less than this."""


class WallClock:
    """What the machine takes for the time of day, in milliseconds since 1970."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._offset_ms = 0.0
        self._rate = 1.0
        self._since = 0.0
        self.back_steps: list[tuple[float, int]] = []
        """When the clock was set back, and what it showed just before."""
        self.stepped_at = -1e9

    def now_ms(self) -> int:
        return int(self._exact_ms() + _DUST)

    def boot_ms(self) -> int:
        """Return the time since the machine started; nobody can set it."""
        return int(self._loop.time() * 1000 + _DUST)

    def true_ms(self) -> int:
        """Return the time of day of a clock that nobody touches."""
        return int(START_MS + self._loop.time() * 1000 + _DUST)

    def step(self, milliseconds: float) -> None:
        shown = self.now_ms()
        if milliseconds < 0:
            self.back_steps.append((self._loop.time(), shown))
        self._offset_ms += milliseconds
        self.stepped_at = self._loop.time()

    def drift(self, rate: float) -> None:
        """Let it run fast or slow from now on."""
        exact = self._exact_ms()
        self._rate = rate
        self._since = self._loop.time()
        self._offset_ms = exact - START_MS - self._since * 1000

    def mend(self) -> None:
        """Set it right."""
        self.drift(1.0)
        wrong = self.now_ms() - self.true_ms()
        if wrong:
            self.step(-wrong)
        self._offset_ms = 0.0

    def shown_since(self, moment: float) -> int:
        """Return the latest time of day that it has shown since a moment."""
        before_steps = [shown for at, shown in self.back_steps if at >= moment]
        return max([self.now_ms(), *before_steps])

    def _exact_ms(self) -> float:
        elapsed = self._loop.time()
        return START_MS + self._offset_ms + elapsed * 1000 + (elapsed - self._since) * (self._rate - 1) * 1000
