"""What the PostgreSQL store is built from: tests give their own driver and clock."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

import asyncpg


class Driver(Protocol):
    """Connects to a database, as asyncpg does."""

    @property
    def create_pool(self) -> Callable[..., Any]:
        """Return a pool, to be awaited, which connects when it is first used."""

    @property
    def connect(self) -> Callable[..., Any]:
        """Return a connection of its own, to be awaited."""


@dataclass(frozen=True, slots=True)
class PostgresMeans:
    """The driver, and seconds of a clock that never leaps."""

    driver: Driver = asyncpg
    elapsed_s: Callable[[], float] = time.monotonic


REAL_MEANS: Final = PostgresMeans()
