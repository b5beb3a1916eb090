"""A caller that asks while the service stops is answered, refused, or told that nobody is there."""

import asyncio
import json
from collections import Counter

from nats.errors import NoRespondersError

from tests.support.messages import in_seconds, iso
from tests.support.patience import PATIENCE_S
from tests.support.world import World

CALLERS = 20


async def test_every_request_gets_an_answer_while_the_service_stops(world: World) -> None:
    service = world.service(request_rate=0)
    service.start_ready()
    told: Counter[str] = Counter()
    answered: set[str] = set()
    stopped = asyncio.Event()

    async def ask(caller: int) -> None:
        number = 0
        while not stopped.is_set() or told["gone"] == 0:
            number += 1
            name = f"{caller}-{number}"
            body = json.dumps({"serviceCallId": name, "dueAt": iso(in_seconds(3600))}).encode()
            try:
                answer = await world.client.request("timer.api.acme.schedule", body, timeout=PATIENCE_S)
            except NoRespondersError:
                told["gone"] += 1
                return
            code = (answer.headers or {}).get("Nats-Service-Error-Code", "ok")
            told[code] += 1
            if code == "ok":
                answered.add(name)

    callers = [asyncio.create_task(ask(caller)) for caller in range(CALLERS)]
    while told["ok"] < 3 * CALLERS:
        await asyncio.sleep(0)
    code = await asyncio.to_thread(service.terminate)
    stopped.set()
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*callers)

    assert code == 0
    assert set(told) <= {"ok", "503", "gone"}
    assert told["gone"] == CALLERS
    assert answered <= {row["service_call_id"] for row in world.rows()}
