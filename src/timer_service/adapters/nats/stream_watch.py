"""Says what is wrong with the streams, once, and notices when somebody changes them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Final

import structlog
from nats.js.api import StreamConfig

from timer_service.adapters.nats.stream_rules import Finding

LOOK_INTERVAL_S: Final = 30.0
_OF_NO_CONCERN: Final = frozenset({"description", "metadata", "placement", "template_owner"})

log = structlog.get_logger(__name__)


class StreamWatch:
    """What is known of the streams' configuration."""

    def __init__(self) -> None:
        self._known: dict[str, StreamConfig] = {}
        self._told: set[str] = set()
        self._findings: Sequence[Finding] = ()

    @property
    def problem(self) -> str | None:
        """What of the configuration can lose data now."""
        return "; ".join(finding.detail for finding in self._findings if finding.loses_data) or None

    def look(self, configs: Mapping[str, StreamConfig], findings: Sequence[Finding]) -> None:
        """Compare what there is with what was there; say what is new."""
        for name, config in configs.items():
            changes = list(_changes(self._known.get(name, config), config))
            if changes:
                log.warning("stream.changed", stream=name, detail=", ".join(changes))
            self._known[name] = config
        for finding in findings:
            if finding.detail not in self._told:
                log.warning("stream.unsafe", detail=finding.detail)
        # Only what still holds: what is mended and comes back is said again.
        self._told = {finding.detail for finding in findings}
        self._findings = findings


def _changes(before: StreamConfig, now: StreamConfig) -> Iterator[str]:
    for field in fields(StreamConfig):
        old, new = getattr(before, field.name), getattr(now, field.name)
        if old != new and field.name not in _OF_NO_CONCERN:
            yield f"{field.name} was {_shown(old)} and is {_shown(new)}"


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(getattr(value, "value", value))
