"""A process that publishes each event at its due time and does nothing else: no store, no commands.

How late such a loop is, is the limit of what the timer service could reach on this machine.
"""

import asyncio
import json
import sys
import time

import nats
import uvloop

from bench.load import Load
from bench.messages import due_time_reached, uuid7


async def fire(load: Load) -> None:
    """Sleep until each timer is due and publish its event, pipelined."""
    client = await nats.connect(f"nats://127.0.0.1:{load.port}")
    jetstream = client.jetstream()
    subject = f"timer.events.{load.tenant}.DueTimeReached"
    for number in range(load.count):
        due_ms = load.due_ms(number)
        while (now_ms := time.time_ns() / 1_000_000) < due_ms:
            await asyncio.sleep((due_ms - now_ms) / 1000)
        message_id = uuid7(due_ms, number)
        body = due_time_reached(load.tenant, message_id, due_ms, int(now_ms), message_id)
        await jetstream.publish_async(subject, body, headers={"Nats-Msg-Id": message_id})
    await jetstream.publish_async_completed()
    await client.close()


if __name__ == "__main__":
    uvloop.run(fire(Load(**json.loads(sys.argv[1]))))
