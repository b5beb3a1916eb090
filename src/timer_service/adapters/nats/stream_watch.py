"""Says what is wrong with the streams, once, and notices when somebody changes them."""

from collections.abc import Iterator
from dataclasses import fields
from typing import Final

import structlog
from nats.js.api import StreamConfig

from timer_service.adapters.nats.streams import FoundStream

LOOK_INTERVAL_S: Final = 30.0
_OF_NO_CONCERN: Final = frozenset({"description", "metadata", "placement", "template_owner"})

log = structlog.get_logger(__name__)


class StreamWatch:
    """What is known of the streams' configuration."""

    def __init__(self) -> None:
        self._known: dict[str, FoundStream] = {}

    @property
    def problem(self) -> str | None:
        """What of the configuration can lose data now."""
        findings = (finding for stream in self._known.values() for finding in stream.findings)
        return "; ".join(finding.detail for finding in findings if finding.loses_data) or None

    def takes_batches(self, name: str) -> bool:
        """Return whether a stream confirms many messages at once; a server before 2.14 has none that does."""
        return name in self._known and bool(self._known[name].config.allow_batched)

    def look(self, found: FoundStream) -> None:
        """Compare a stream with what it was; say what is new."""
        before = self._known.get(found.name)
        changes = [] if before is None else list(_changes(before.config, found.config))
        if changes:
            log.warning("stream.changed", stream=found.name, detail=", ".join(changes))
        # Only what still holds is kept: what is corrected and comes back is logged again.
        for finding in found.findings:
            if before is None or finding not in before.findings:
                log.warning("stream.unsafe", detail=finding.detail)
        self._known[found.name] = found


def _changes(before: StreamConfig, now: StreamConfig) -> Iterator[str]:
    for field in fields(StreamConfig):
        old, new = getattr(before, field.name), getattr(now, field.name)
        if old != new and field.name not in _OF_NO_CONCERN:
            yield f"{field.name} was {_shown(old)} and is {_shown(new)}"


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(getattr(value, "value", value))
