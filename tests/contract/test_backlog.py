"""What every bus tells about the commands that wait; ports/command_source.py says it in words."""

import asyncio

import pytest

from tests.support import messages
from tests.support.lines import Line, until
from tests.support.patience import PATIENCE_S
from tests.support.timers import ACME, GLOBEX, at
from timer_service.domain.errors import BusUnavailable
from timer_service.domain.messages import TenantId
from timer_service.ports.command_source import Backlog, CommandBatch


async def send(line: Line, tenant: str, kind: str = "ScheduleTimer") -> int:
    envelope = (
        messages.schedule(tenant, "order-1", at(60))
        if kind == "ScheduleTimer"
        else messages.cancel(tenant, "order-1")
    )
    return await line.send(f"{line.prefix}.commands.{tenant}.{kind}", messages.encode(envelope))


async def receive(line: Line) -> CommandBatch:
    async with asyncio.timeout(PATIENCE_S):
        return await line.source.receive()


async def until_told(line: Line, tenants: set[TenantId]) -> Backlog:
    async def so() -> bool:
        return (await line.source.backlog({})).tenants == frozenset(tenants)

    await until(so, f"commands of {tenants} to wait")
    return await line.source.backlog({})


async def test_nobody_has_commands_waiting_at_first(line: Line) -> None:
    told = await line.source.backlog({})

    assert (told.tenants, told.last_sequence, told.handled_sequence) == (frozenset(), 0, 0)


async def test_a_command_waits_from_the_moment_at_which_it_is_stored(line: Line) -> None:
    first = await send(line, ACME)
    last = await send(line, GLOBEX, "CancelTimer")

    told = await line.source.backlog({})

    assert told.tenants == frozenset({ACME, GLOBEX})
    assert (told.first_sequence, told.last_sequence) == (first, last)


async def test_a_command_that_was_received_waits_until_it_is_acknowledged(line: Line) -> None:
    await send(line, ACME)
    batch = await receive(line)
    before = await line.source.backlog({})

    await batch.acknowledge()

    assert before.tenants == frozenset({ACME})
    after = await until_told(line, set())
    assert (after.last_sequence, after.handled_sequence) == (before.last_sequence, before.last_sequence)
    assert after.first_sequence > before.last_sequence


async def test_a_refused_message_waits_until_its_letter_is_written(line: Line) -> None:
    await line.send(f"{line.prefix}.commands.acme.ScheduleTimer", b"rubbish")
    batch = await receive(line)
    before = await line.source.backlog({})

    await batch.dead_letter()

    assert before.tenants == frozenset({ACME})
    await until_told(line, set())


@pytest.mark.parametrize("tail", ["acme.Explode", "acme.ScheduleTimer.more", "acme", "acme.x.y.z"])
async def test_a_message_that_can_only_be_refused_is_no_command_of_its_tenant(line: Line, tail: str) -> None:
    await line.send(f"{line.prefix}.commands.{tail}", b"rubbish")

    assert (await line.source.backlog({})).tenants == frozenset()


async def test_a_tenant_is_asked_about_by_name(line: Line) -> None:
    first = await send(line, ACME)
    await send(line, GLOBEX)
    second = await send(line, ACME, "CancelTimer")

    asked = {
        name: (await line.source.backlog(beyond)).oldest
        for name, beyond in {
            "from the start": {ACME: 0},
            "beyond the first": {ACME: first},
            "beyond all": {ACME: second},
            "somebody else": {TenantId("initech"): 0},
        }.items()
    }

    assert asked == {
        "from the start": {ACME: first},
        "beyond the first": {ACME: second},
        "beyond all": {ACME: None},
        "somebody else": {TenantId("initech"): None},
    }


async def test_questions_at_the_same_time_get_their_own_answers(line: Line) -> None:
    first, second = await send(line, ACME), await send(line, GLOBEX)

    answers = await asyncio.gather(
        *(line.source.backlog({tenant: 0}) for tenant in (ACME, GLOBEX) for _ in range(10))
    )

    assert [answer.oldest for answer in answers] == [{ACME: first}] * 10 + [{GLOBEX: second}] * 10


async def test_a_stream_that_was_made_anew_has_another_name(line: Line) -> None:
    await send(line, ACME)
    before = await line.source.backlog({})

    await line.recreate_commands()

    after = await line.source.backlog({})
    assert before.stream != after.stream
    assert (after.tenants, after.last_sequence) == (frozenset(), 0)


async def test_asking_without_a_broker_says_so(line: Line) -> None:
    await line.cut()

    async def refused() -> bool:
        try:
            await line.source.backlog({})
        except BusUnavailable:
            return True
        return False

    await until(refused, "the bus to notice")
