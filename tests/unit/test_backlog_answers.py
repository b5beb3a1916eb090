"""What the broker may answer to the question for waiting commands, and what it must not be taken for."""

import json
from typing import Any

import pytest

from tests.support.nats_client import FakeClient
from timer_service.adapters.nats.backlog import BacklogQuestions
from timer_service.adapters.nats.options import NatsOptions
from timer_service.domain.errors import BusUnavailable
from timer_service.domain.messages import TenantId


def info(created: str = "2026-01-01T00:00:00Z", **subjects: int) -> dict[str, Any]:
    named = {f"timer.commands.{name}.ScheduleTimer": count for name, count in subjects.items()}
    state = {"messages": 9, "first_seq": 1, "last_seq": 9, "subjects": named}
    return {"created": created, "total": len(named), "state": state}


async def ask(*answers: dict[str, Any] | bytes, status: str | None = None) -> Any:
    async def react(client: FakeClient, inbox: str) -> None:
        headers = {} if status is None else {"Status": status}
        # At first it is asked only whether there is anything.
        at_first = inbox.endswith(".1")
        for index, answer in enumerate(answers[:1] if at_first else answers):
            body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            await client.answer(f"{inbox}.{index}", body, **headers)
            # What comes late, or twice, changes nothing.
            await client.answer(f"{inbox}.{index}", b"{}")
            await client.answer(f"{inbox.rpartition('.')[0]}.99.{index}", b"{}")

    fake = FakeClient(react)
    questions = BacklogQuestions(NatsOptions(connect={}))
    await questions.start(fake.client)
    return await questions.ask({}, 3)


async def test_the_answers_by_tenant_make_one_backlog() -> None:
    told = await ask(info(acme=2), info(globex=1))

    assert told.tenants == frozenset({TenantId("acme"), TenantId("globex")})
    assert (told.first_sequence, told.last_sequence, told.handled_sequence) == (1, 9, 3)


async def test_answers_of_two_streams_are_no_backlog() -> None:
    with pytest.raises(BusUnavailable, match="was recreated"):
        await ask(info(), info(created="2026-01-02T00:00:00Z"))


@pytest.mark.parametrize(
    ("answer", "status", "detail"),
    [
        ({"error": {"description": "stream not found"}}, None, "stream not found"),
        ({}, None, "not a stream's information"),
        (b"", "503", "JetStream does not answer"),
        (b"rubbish", None, "not JSON"),
        (b"[]", None, "another kind"),
    ],
)
async def test_an_answer_that_is_no_list_says_that_the_stream_does_not_answer(
    answer: dict[str, Any] | bytes, status: str | None, detail: str
) -> None:
    with pytest.raises(BusUnavailable, match=detail):
        await ask(answer, answer, status=status)
