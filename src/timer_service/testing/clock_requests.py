"""The requests that move a virtual clock, as a NATS micro service of its own."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Final

import nats.micro
from nats.aio.client import Client
from nats.micro.request import Request

from timer_client import wire
from timer_client.subjects import Subjects
from timer_service import __version__
from timer_service.testing.walk import NotSettled, Walk

SERVICE_NAME: Final = "timer-clock"
MAX_WALK_S: Final = 2.0
"""Of real time in one request: who asked is told how far it came, and asks again."""
_HOW_FAR: Final = "exactly one of byMs, to and next: true says how far"


@asynccontextmanager
async def clock_requests(client: Client, prefix: str, walk: Walk) -> AsyncIterator[None]:
    """Answer `<prefix>.clock.now` and `<prefix>.clock.advance` over a connection."""
    subjects = Subjects(prefix)
    service = await nats.micro.add_service(
        client, name=SERVICE_NAME, version=__version__, description="A clock that stands until it is moved"
    )
    for name, answer in (("now", _now), ("advance", _advance)):
        await service.add_endpoint(
            name=name, subject=subjects.virtual_clock(name), handler=_answering(walk, answer)
        )
    # Twice, because nats-py may send the first ping ahead of the subscriptions.
    await client.flush()
    await client.flush()
    yield


def _answering(
    walk: Walk, answer: Callable[[Walk, bytes], Awaitable[wire.Model]]
) -> Callable[[Request], Awaitable[None]]:
    async def handle(request: Request) -> None:
        try:
            await request.respond(wire.write_model(await answer(walk, request.data)))
        except wire.WireError as refusal:
            await request.respond_error("400", refusal.detail)
        except ValueError as refusal:
            await request.respond_error("400", str(refusal))
        except NotSettled as failure:
            await request.respond_error("504", str(failure))

    return handle


async def _now(walk: Walk, _: bytes) -> wire.Model:
    return wire.VirtualTimeAnswer.model_construct(now=walk.now())


async def _advance(walk: Walk, body: bytes) -> wire.Model:
    request = wire.read_request(wire.AdvanceRequest, body)
    given = [value for value in (request.to, request.by_ms, request.next) if value is not None]
    if len(given) != 1:
        raise wire.WireError("invalid", _HOW_FAR)
    if request.next:
        walked = await walk.advance_to_next()
        return wire.AdvanceAnswer.model_construct(
            now=walked.now, to=walked.now, published=walked.published, arrived=True
        )
    to = request.to or _later(walk.now(), request.by_ms or 0)
    walked = await walk.advance_to(to, MAX_WALK_S)
    return wire.AdvanceAnswer.model_construct(
        now=walked.now, to=to, published=walked.published, arrived=walked.arrived
    )


def _later(now: datetime, by_ms: int) -> datetime:
    try:
        return now + timedelta(milliseconds=by_ms)
    except OverflowError:
        raise ValueError("byMs: must not go beyond the year 9999") from None
