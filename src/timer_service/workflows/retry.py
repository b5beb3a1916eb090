"""How a workflow asks for a step to be repeated until it works."""

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

T = TypeVar("T")


class Retry(Protocol):
    """Repeat a step that fails with TransientError; the caller decides how long to wait between."""

    async def __call__(self, step: Callable[[], Awaitable[T]]) -> T:
        """Return the result of the first try that works."""
        ...
