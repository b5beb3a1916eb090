"""A few kills of the client's workers on PostgreSQL; `make consumer-kills` has many, and SQLite."""

from tests.support.broker import NatsServer
from tests.support.clients import PREFIX, start_service
from tests.support.postgres import fresh_schema
from tests.torture.consumers import Outcome, kill_workers


async def test_every_firing_has_its_effect_exactly_once_while_workers_are_killed(
    shared_broker: NatsServer,
) -> None:
    start_service(shared_broker)
    async with fresh_schema() as url:
        outcome = await kill_workers(shared_broker, PREFIX, url, kills=2, seed=2)

    assert (outcome.kills, outcome.lost, outcome.doubled) == (2, 0, 0)
    assert outcome.scheduled


def test_the_count_finds_what_was_lost_and_what_was_done_twice() -> None:
    outcome = Outcome(scheduled={"a", "b"})
    outcome.done.update(["b", "b", "b"])

    assert (outcome.lost, outcome.doubled) == (1, 1)
