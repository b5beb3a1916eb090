"""Durable timers: ScheduleTimer in, DueTimeReached out; or REST in, a callback out."""

import sys

__version__ = "0.1.0"

_IMPORTER = "nats.aio.transport"


class _NotInPassing:
    """Keeps nats-py from loading an HTTP client for WebSockets, which takes as long as half of our start.

    Code that needs the client imports it as usual; `config/nats.py` hands it to nats-py for ws:// addresses.
    """

    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        """Find nothing, and for nats-py not even what is there."""
        if (
            name == "aiohttp"
            and _IMPORTER in sys.modules
            and not hasattr(sys.modules[_IMPORTER], "Transport")
        ):
            raise ModuleNotFoundError(name)


sys.meta_path.insert(0, _NotInPassing)
