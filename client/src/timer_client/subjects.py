"""The names of subjects and streams, all derived from one prefix."""

import re
from dataclasses import dataclass
from typing import Final

from timer_client import wire

UNKNOWN_TENANT: Final = "_"
SERVICE_NAME: Final = "timer"
"""What the request API is called among NATS micro services."""
PREFIX_RULE: Final = "tokens of letters, digits, _ and -, separated by dots"

_PREFIX: Final = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")


def is_prefix(text: str) -> bool:
    """Return whether `text` can begin the names of subjects."""
    return _PREFIX.fullmatch(text) is not None


class Subjects:
    """The names of everything that service and clients publish to or listen on."""

    def __init__(self, prefix: str) -> None:
        self.commands_prefix = f"{prefix}.commands."
        self.all_commands = f"{prefix}.commands.>"
        self.all_events = f"{prefix}.events.>"
        self.all_dead_letters = f"{prefix}.deadletter.>"
        self.prefix = prefix

    def command(self, tenant_id: str, command_type: str) -> str:
        """Return where a tenant publishes a command."""
        return f"{self.commands_prefix}{tenant_id}.{command_type}"

    def event(self, tenant_id: str, event_type: str = wire.DUE_TIME_REACHED) -> str:
        """Return where a tenant's events appear."""
        return f"{self.prefix}.events.{tenant_id}.{event_type}"

    def events_of(self, tenant_id: str) -> str:
        """Return where a tenant's events of every type appear."""
        return f"{self.prefix}.events.{tenant_id}.*"

    def dead_letter(self, tenant_id: str | None) -> str:
        """Return where the dead letters of a tenant go."""
        return f"{self.prefix}.deadletter.{tenant_id or UNKNOWN_TENANT}"

    def api(self, tenant_id: str, endpoint: str) -> str:
        """Return where a tenant's requests to an endpoint of the API go."""
        return f"{self.prefix}.api.{tenant_id}.{endpoint}"

    @property
    def status(self) -> str:
        """Where an operator asks how the service is."""
        return f"{self.prefix}.status"

    @property
    def clock_accept(self) -> str:
        """Where an operator confirms a leap of the wall clock."""
        return f"{self.prefix}.clock.accept"

    def virtual_clock(self, endpoint: str) -> str:
        """Return where a virtual clock is asked, `now` or `advance`."""
        return f"{self.prefix}.clock.{endpoint}"

    def tenant_of(self, command_subject: str) -> str | None:
        """Return the tenant that a command subject names, if it names one."""
        tenant, dot, _ = command_subject.removeprefix(self.commands_prefix).partition(".")
        # A lone last token may be a type whose tenant was left out.
        known = wire.is_tenant_id(tenant) and (dot or tenant not in wire.COMMAND_TYPES)
        return tenant if known else None


@dataclass(frozen=True, slots=True)
class StreamNames:
    """What the streams are called."""

    commands: str
    events: str
    dead_letters: str

    @classmethod
    def of(cls, prefix: str) -> "StreamNames":
        """Derive the names from the subject prefix: `timer` gives TIMER_COMMANDS and so on."""
        stem = prefix.upper().replace(".", "_")
        return cls(f"{stem}_COMMANDS", f"{stem}_EVENTS", f"{stem}_DEADLETTER")
