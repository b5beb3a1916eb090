"""The table of commands and states, from outside the process."""

from tests.support.messages import in_seconds, iso
from tests.support.world import World


async def test_a_first_schedule_inserts_generation_1_and_fires_once(world: World) -> None:
    world.service().start_ready()
    due = in_seconds(0.5)

    await world.schedule("acme", "order-1", due, correlationId="request-7")
    events = await world.wait_for_events(1)
    row = await world.wait_for_row("acme", "order-1", state="Reached")

    assert [event["payload"]["serviceCallId"] for event in events] == ["order-1"]
    assert events[0]["payload"]["dueAt"] == iso(due) == row["due_at"]
    assert events[0]["payload"]["generation"] == row["generation"] == 1
    assert events[0]["correlationId"] == row["correlation_id"] == "request-7"
