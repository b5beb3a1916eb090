"""What has ended is kept for its time and then goes, a little at a time."""

import asyncio
import json
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta

import nats
import pytest
from nats.aio.msg import Msg

from tests.support.messages import in_seconds, iso, parse
from tests.support.process import TimerServiceProcess
from tests.support.world import World

_INSERT = """
WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < :count)
INSERT INTO timer_schedules
  (tenant_id, service_call_id, state, due_at, generation, registered_at, reached_at, cancelled_at,
   stream_created_us, stream_sequence)
SELECT 'old', printf('%s-%08d', :name, i), :state, :due, 1, :due,
  iif(:state = 'Reached', :due, NULL), iif(:state = 'Cancelled', :due, NULL), 1, i + 1 FROM n
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


@pytest.mark.alone
async def test_purging_300_000_rows_does_not_hold_up_firing(world: World) -> None:
    """The p99 lateness while purging is at most 50 ms above the one without."""
    service = prepared(world, retention="1h")
    fill(world, 300_000, "Reached", datetime.now(UTC) - timedelta(days=1))
    service.settings["TIMER_RETENTION"] = "off"
    service.restart().wait_for_log("broker.connected")
    calm = await _p99_lateness_ms(world, "calm")
    service.terminate()
    service.settings["TIMER_RETENTION"] = "1h"
    service.restart().wait_for_log("broker.connected")

    busy = await _p99_lateness_ms(world, "busy")
    left = len(world.rows("WHERE tenant_id = 'old'"))

    assert left < 300_000 - 5_000, "it purged while the timers fired"
    assert busy - calm < 50


async def _p99_lateness_ms(world: World, name: str, count: int = 400, seconds: float = 4.0) -> float:
    """Fire timers evenly over some seconds and return how late the slowest percent arrived."""
    latenesses: list[float] = []
    watcher = await nats.connect(world.broker.url)

    async def arrived(message: Msg) -> None:
        payload = json.loads(message.data)["payload"]
        latenesses.append((datetime.now(UTC) - parse(payload["dueAt"])).total_seconds() * 1000)

    await watcher.subscribe(f"{world.prefix}.events.{name}.DueTimeReached", cb=arrived)
    await watcher.flush()
    start = in_seconds(1.0)
    for number in range(count):
        await world.schedule(name, f"t-{number}", start + timedelta(seconds=number * seconds / count))

    async def all_there() -> bool:
        return len(latenesses) >= count

    await world.until(all_there, f"{count} events", seconds + 20)
    await watcher.close()
    await asyncio.sleep(0)
    return sorted(latenesses)[int(count * 0.99) - 1]
