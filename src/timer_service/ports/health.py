"""The state of the service, for health checks and operators."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Health:
    """What is wrong, in words for a person; nothing if all is well."""

    stuck: str | None
    """Why the worker counts as stuck: only a restart helps."""
    problems: dict[str, str]
    """Part to what is wrong with it: the service waits for it to pass."""
    warnings: dict[str, str] = field(default_factory=dict)
    """Part to what a person should look at although commands are accepted and timers fire."""

    @property
    def trouble(self) -> tuple[str, ...]:
        """The parts that a person should look at."""
        worker = () if self.stuck is None else ("worker",)
        return (*worker, *self.problems, *self.warnings)


@dataclass(frozen=True, slots=True)
class Recent:
    """How busy and how late the service was in the last minute; lateness is None if nothing fired."""

    commands_per_s: float
    fired_per_s: float
    lateness_p50_s: float | None
    lateness_p99_s: float | None
    peak_per_s: int = 0
    """The most timers that were fired in one second since the start."""


@dataclass(frozen=True, slots=True)
class LatenessMinute:
    """How late the timers of one minute were."""

    minutes_ago: int
    counts: tuple[int, ...]
    """By bucket; the last one is for all that were later than every bound."""


@dataclass(frozen=True, slots=True)
class LatenessHistory:
    """How late timers were, minute by minute, as far as this instance remembers."""

    bounds_s: tuple[float, ...]
    """The upper bound of each bucket but the last."""
    minutes: tuple[LatenessMinute, ...]
    """Oldest first; a minute in which nothing fired is missing."""
