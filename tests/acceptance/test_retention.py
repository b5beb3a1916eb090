"""What has ended is kept for its time and then goes, a little at a time."""

import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta

from tests.support.messages import iso
from tests.support.process import TimerServiceProcess
from tests.support.sqlite import due_ms
from tests.support.world import World

_INSERT = f"""
WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < :count)
INSERT INTO timer_schedules
  (tenant_id, service_call_id, state, due_at, generation, registered_at, reached_at, cancelled_at,
   stream_created_us, stream_sequence, pending_due_ms)
SELECT 'old', printf('%s-%08d', :name, i), :state, :due, 1, :due,
  iif(:state = 'Reached', :due, NULL), iif(:state = 'Cancelled', :due, NULL), 1, i + 1,
  CASE :state WHEN 'Scheduled' THEN {due_ms(":due")} END FROM n
"""


def fill(world: World, count: int, state: str, due: datetime, name: str = "t") -> None:
    """Write rows straight into the file, while the service is stopped."""
    with closing(sqlite3.connect(world.db_path)) as link:
        link.execute(_INSERT, {"count": count, "state": state, "due": iso(due), "name": name})
        link.commit()


def prepared(world: World, **settings: object) -> TimerServiceProcess:
    """Return a stopped service whose database has its tables."""
    service = world.service(**settings).start_ready()
    service.terminate()
    return service


async def test_only_what_ended_longer_ago_than_the_retention_goes(world: World) -> None:
    service = prepared(world, retention="1h")
    now = datetime.now(UTC)
    fill(world, 3, "Reached", now - timedelta(hours=2), "reached-old")
    fill(world, 2, "Cancelled", now - timedelta(hours=2), "cancelled-old")
    fill(world, 1, "Reached", now - timedelta(minutes=5), "reached-new")
    fill(world, 1, "Scheduled", now + timedelta(hours=2), "scheduled")

    service.restart().wait_for_log("timers.purged")

    assert [row["service_call_id"] for row in world.rows()] == ["reached-new-00000000", "scheduled-00000000"]


async def test_retention_can_be_off(world: World) -> None:
    service = prepared(world, retention="off")
    fill(world, 5, "Reached", datetime(2001, 1, 1, tzinfo=UTC))

    service.restart().wait_for_log("broker.connected")
    await world.schedule("acme", "a", "2020-01-01T00:00:00Z")
    await world.wait_for_events(1)

    assert len(world.rows("WHERE tenant_id = 'old'")) == 5


async def test_timers_fire_while_100_000_rows_are_purged(world: World) -> None:
    """How little purging delays them is measured by `make bench`, part purge."""
    service = prepared(world, retention="1h")
    yesterday = datetime.now(UTC) - timedelta(days=1)
    fill(world, 100_000, "Reached", yesterday)
    fill(world, 10, "Scheduled", yesterday, "waiting")

    service.restart().wait_for_log("timers.purged")
    events = await world.wait_for_events(10)

    purged_at = service.events("timers.purged")[0]["timestamp"]
    assert [event for event in events if event["payload"]["reachedAt"] > purged_at] == []
    assert len(world.rows()) == 10
