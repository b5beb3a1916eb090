"""The durable consumer on the broker: found, created where it is missing, and checked."""

import logging
import re
from dataclasses import dataclass
from typing import Final

from nats.js.api import AckPolicy, ConsumerConfig
from nats.js.client import JetStreamContext
from nats.js.errors import NotFoundError

from timer_client.errors import ConsumerConflict
from timer_client.subjects import Subjects

LEASE_S: Final = 30.0
"""After so long without a sign of life a firing is delivered to another worker."""
MAX_ACK_PENDING: Final = 10_000
"""Firings that all workers of a consumer hold together, and those that wait for their next try."""
NAME_RULE: Final = "1 to 64 of A-Z a-z 0-9 _ -"
NO_STREAM: Final = 10059

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_log = logging.getLogger("timer_client")


@dataclass(frozen=True, slots=True)
class Durable:
    """Which durable consumer is wanted."""

    name: str
    stream: str
    subjects: Subjects
    tenant: str
    ack_wait_s: float | None
    with_expired: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or _NAME.fullmatch(self.name) is None:
            raise ValueError(f"name of a consumer must be {NAME_RULE} (got {self.name!r})")

    @property
    def durable_name(self) -> str:
        """Return its name on the stream, which all tenants share: permissions name it, too."""
        return f"{self.tenant}-{self.name}"

    @property
    def filter_subject(self) -> str:
        """Return what it reads."""
        return self.subjects.events_of(self.tenant) if self.with_expired else self.subjects.event(self.tenant)

    async def bind(self, jetstream: JetStreamContext) -> float:
        """Find the consumer or create it; return how many seconds it waits for a sign of life."""
        try:
            config = (await jetstream.consumer_info(self.stream, self.durable_name)).config
        except NotFoundError as error:
            if error.err_code == NO_STREAM:
                raise
            config = ConsumerConfig(
                durable_name=self.durable_name,
                ack_policy=AckPolicy.EXPLICIT,
                ack_wait=self.ack_wait_s or LEASE_S,
                max_deliver=-1,
                max_ack_pending=MAX_ACK_PENDING,
                filter_subject=self.filter_subject,
            )
            await self._write(jetstream, config)
        else:
            self._check(config)
            wanted = self._changed(config)
            if wanted != config:
                await self._write(jetstream, wanted)
                config = wanted
        return config.ack_wait or LEASE_S

    async def _write(self, jetstream: JetStreamContext, config: ConsumerConfig) -> None:
        # With its name and one filter, both are part of the subject, which permissions can name.
        await jetstream.add_consumer(self.stream, config.evolve(name=self.durable_name))

    def _changed(self, config: ConsumerConfig) -> ConsumerConfig:
        """Return the configuration with what the caller asks for; all else is the operator's."""
        if self.ack_wait_s is not None and config.ack_wait != self.ack_wait_s:
            config = config.evolve(ack_wait=self.ack_wait_s)
        if self.with_expired and config.filter_subject == self.subjects.event(self.tenant):
            config = config.evolve(filter_subject=self.filter_subject)
        return config

    def _check(self, config: ConsumerConfig) -> None:
        """Raise ConsumerConflict for a consumer that serves another purpose."""
        ours = f"{self.subjects.prefix}.events.{self.tenant}."
        filters = [*(config.filter_subjects or []), config.filter_subject or ""]
        foreign = [subject for subject in filters if subject and not subject.startswith(ours)]
        if foreign or not any(filters):
            raise self._conflict(f"it reads {', '.join(foreign) or 'every subject'}")
        if config.deliver_subject is not None:
            raise self._conflict("it is a push consumer")
        if config.ack_policy != AckPolicy.EXPLICIT:
            raise self._conflict("its messages are not acknowledged one by one")
        if config.max_deliver is not None and config.max_deliver > 0:
            _log.warning(
                "consumer %s gives up on a firing after %d deliveries", self.name, config.max_deliver
            )

    def _conflict(self, why: str) -> ConsumerConflict:
        return ConsumerConflict(
            f"{self.stream} has a consumer {self.durable_name!r} already, and {why}: choose another name"
        )
