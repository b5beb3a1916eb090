"""Move the time of a service that runs on a virtual clock, as `timer-service dev --clock virtual` does."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from nats.errors import Error as NatsError
from nats.errors import NoRespondersError

from timer_client import due as times
from timer_client import wire
from timer_client.connection import Answer, BrokerClient, as_model, read_answer
from timer_client.errors import ServiceAway

ADVANCE_TIMEOUT_S: Final = 120.0
"""More than the service waits at one moment before it says who has not finished."""
NO_VIRTUAL_CLOCK: Final = (
    "no timer-service with a virtual clock answers on prefix {prefix!r}: "
    "start one with `timer-service dev --clock virtual`"
)


@dataclass(frozen=True, slots=True)
class Advanced:
    """Where time stands, and how many events were published on the way."""

    now: datetime
    published: int


class ClockClient(BrokerClient):
    """Ask what time it is for the service, and let it pass."""

    async def now(self) -> datetime:
        """Return the time of the service."""
        return (await self._to_clock("now", wire.EmptyRequest(), wire.VirtualTimeAnswer)).now

    async def advance(self, span: timedelta) -> Advanced:
        """Let this much time pass, from due time to due time."""
        # The first answer says where that leads: from there on it is a moment, which can be asked for again.
        return await self._walk(wire.AdvanceRequest.model_construct(by_ms=times.span_ms("span", span)))

    async def advance_to(self, moment: datetime) -> Advanced:
        """Let time pass until a moment."""
        return await self._walk(wire.AdvanceRequest.model_construct(to=times.moment("moment", moment)))

    async def advance_to_next(self) -> Advanced:
        """Let time pass until the next timer is due; it stays where nothing is scheduled."""
        return await self._walk(wire.AdvanceRequest.model_construct(next=True))

    async def _walk(self, request: wire.AdvanceRequest) -> Advanced:
        published, arrived = 0, False
        while not arrived:
            answer = await self._to_clock("advance", request, wire.AdvanceAnswer)
            published, arrived = published + answer.published, answer.arrived
            request = wire.AdvanceRequest.model_construct(to=answer.to)
        return Advanced(answer.now, published)

    async def _to_clock(self, endpoint: str, request: wire.Model, model: type[Answer]) -> Answer:
        subject, before = self._subjects.virtual_clock(endpoint), self._connection.last_error
        try:
            message = await self._connection.request(
                subject, wire.write_model(request), timeout=ADVANCE_TIMEOUT_S
            )
        except NoRespondersError as error:
            raise ServiceAway(NO_VIRTUAL_CLOCK.format(prefix=self._subjects.prefix)) from error
        except NatsError as error:
            raise self._explain(error, subject, before) from error
        return as_model(model, read_answer(message))
