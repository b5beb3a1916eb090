"""What every sender of callbacks promises: a result for each request, and never an error."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

import pytest

from tests.support.callbacks import request_to, sending
from tests.support.receiver import receiving
from timer_service.domain.delivery import Answered, CallbackRequest, CallResult
from timer_service.ports.callback_sender import CallbackSender
from timer_service.testing import ScriptedSender


@dataclass
class Road:
    """A sender and the receiver at its other end."""

    sender: CallbackSender
    url: str
    answer: Callable[[int], None]
    """Let the receiver answer with this status."""
    hang: Callable[[], None]
    """Let the receiver answer nothing."""
    received: Callable[[], list[tuple[str, int]]]
    """The id and the number of every attempt that came."""


@asynccontextmanager
async def _scripted() -> AsyncIterator[Road]:
    status = [200]
    sender = ScriptedSender(lambda _: Answered(status[0]))

    yield Road(
        sender,
        "https://example.com/hook",
        answer=lambda code: status.__setitem__(0, code),
        hang=sender.hang,
        received=lambda: [(str(each.id), each.attempt) for each in sender.sent],
    )


@asynccontextmanager
async def _http() -> AsyncIterator[Road]:
    async with receiving() as receiver, sending() as sender:

        def answer(status: int) -> None:
            receiver.answer = f"HTTP/1.1 {status} X\r\ncontent-length: 0\r\n\r\n".encode()

        async def nothing(*_: object) -> bool:
            await asyncio.Event().wait()
            return False

        yield Road(
            sender,
            receiver.url(),
            answer,
            hang=lambda: setattr(receiver, "answer", nothing),
            received=lambda: [
                (each.headers["webhook-id"], int(each.headers["timer-attempt"])) for each in receiver.requests
            ],
        )


ROADS: dict[str, Callable[[], AbstractAsyncContextManager[Road]]] = {"scripted": _scripted, "http": _http}


@pytest.fixture(params=list(ROADS))
async def road(request: pytest.FixtureRequest) -> AsyncIterator[Road]:
    async with ROADS[request.param]() as opened:
        yield opened


async def test_an_answer_is_a_result_whatever_its_status(road: Road) -> None:
    results: list[CallResult] = []
    for status in (200, 204, 301, 404, 410, 429, 500, 503):
        road.answer(status)
        results.append(await road.sender.send(request_to(road.url)))

    assert results == [Answered(status) for status in (200, 204, 301, 404, 410, 429, 500, 503)]


async def test_every_attempt_goes_out_under_the_id_of_the_firing(road: Road) -> None:
    attempts = [request_to(road.url, attempt=number) for number in (1, 2, 3)]
    for each in attempts:
        await road.sender.send(each)

    assert road.received() == [(str(each.id), each.attempt) for each in attempts]


async def test_many_are_sent_at_once(road: Road) -> None:
    sent = [request_to(road.url, attempt=number) for number in range(1, 51)]

    assert await asyncio.gather(*map(road.sender.send, sent)) == [Answered(200)] * 50
    assert sorted(road.received()) == sorted((str(each.id), each.attempt) for each in sent)


async def test_a_request_that_is_given_up_is_not_swallowed(road: Road) -> None:
    road.hang()
    sending_one = asyncio.create_task(_send(road.sender, request_to(road.url)))
    while not road.received():
        await asyncio.sleep(0.001)

    sending_one.cancel()

    with pytest.raises(asyncio.CancelledError):
        await sending_one


async def _send(sender: CallbackSender, request: CallbackRequest) -> CallResult:
    return await sender.send(request)
