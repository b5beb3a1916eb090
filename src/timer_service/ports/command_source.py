"""Where commands come from, as the core sees it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from timer_service.domain.errors import RefusalReason
from timer_service.domain.messages import Command, Position, TenantId


@dataclass(frozen=True, slots=True)
class Refusal:
    """A message that was set aside, for the log."""

    reason: RefusalReason
    detail: str
    subject: str
    sequence: int


@dataclass(frozen=True, slots=True)
class Backlog:
    """Which commands wait at one moment: stored by the broker and not yet acknowledged by any instance."""

    stream: str
    """Names the stream; another name once it was made again, with sequences that mean something else."""
    first_sequence: int
    """Nothing older waits."""
    last_sequence: int
    """Nothing newer has been stored."""
    handled_sequence: int
    """The newest command that this instance has dealt with: what is older was delivered before."""
    tenants: frozenset[TenantId] | None
    """Who has commands waiting; None if they are too many to list."""
    oldest: Mapping[TenantId, int | None] = field(default_factory=dict)
    """Of tenants that were asked about: the sequence of the oldest command that waits; None without any."""

    def concerns(self, tenant_id: TenantId) -> bool:
        """Return whether a tenant may have commands waiting."""
        return self.tenants is None or tenant_id in self.tenants


NOTHING_WAITS: Final = Backlog(
    stream="", first_sequence=1, last_sequence=0, handled_sequence=0, tenants=frozenset()
)
"""The backlog where there is no broker to have one."""


class CommandBatch(Protocol):
    """Messages that came in together, in the order of the stream."""

    @property
    def commands(self) -> Sequence[Command]:
        """The valid commands."""
        ...

    @property
    def redelivered(self) -> int:
        """How many messages of the batch had been delivered before."""
        ...

    async def acknowledge(self) -> None:
        """Tell the broker that every command is kept; if that is lost, they are delivered again."""
        ...

    async def dead_letter(self) -> Sequence[Refusal]:
        """Write one letter for each message that is not a valid command, then terminate the message.

        Returns what is refused for the first time, without waiting for the letters. What cannot be written
        now is delivered again later, and holds up nothing else.
        """
        ...


class CommandBacklog(Protocol):
    """What firing needs of a command source."""

    async def backlog(self, beyond: Mapping[TenantId, int]) -> Backlog:
        """Do what CommandSource promises."""
        ...


class CommandSource(Protocol):
    """Commands in."""

    @property
    def problem(self) -> str | None:
        """Why no command can be received now; None if all is well."""
        ...

    async def last_position(self) -> Position:
        """Return the position of the newest command in the stream. Raises BusUnavailable."""
        ...

    async def last_seen_position(self) -> Position:
        """Return the newest position that was ever delivered or applied, without asking the broker.

        Commands that the broker has and we have not seen are newer. Raises TransientError.
        """
        ...

    async def backlog(self, beyond: Mapping[TenantId, int]) -> Backlog:
        """Ask the broker which commands wait at a moment between the call and the answer.

        Every command that was stored before the call either waits or has been applied. `beyond` names tenants
        to ask about one by one, each with the sequence up to which commands do not count. A tenant that is
        missing from the answer could not be asked about. Raises BusUnavailable.
        """
        ...

    async def receive(self) -> CommandBatch:
        """Wait for messages and return those at hand, at least one.

        Cancelling it loses nothing.
        """
        ...
