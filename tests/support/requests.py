"""Ask the service's API as any NATS client does."""

import asyncio
import json
from typing import Any

from tests.support.patience import PATIENCE_S
from tests.support.world import World


async def ask(world: World, endpoint: str, tenant: str = "acme", **request: Any) -> dict[str, Any]:
    """Ask an endpoint; an error comes back as {"code": …, "error": …}."""
    return await ask_raw(world, f"{world.prefix}.api.{tenant}.{endpoint}", json.dumps(request).encode())


async def ask_until_answered(world: World, endpoint: str, **request: Any) -> dict[str, Any]:
    """Ask as the documents tell callers to: 503 means to ask again, also on a busy machine."""
    async with asyncio.timeout(PATIENCE_S):
        while (answer := await ask(world, endpoint, **request)).get("code") == "503":
            await asyncio.sleep(0.05)
    return answer


async def ask_raw(
    world: World, subject: str, body: bytes, headers: dict[str, str] | None = None
) -> dict[str, Any]:
    answer = await world.client.request(subject, body, timeout=PATIENCE_S, headers=headers)
    found = answer.headers or {}
    if "Nats-Service-Error" in found:
        return {"code": found["Nats-Service-Error-Code"], "error": found["Nats-Service-Error"]}
    result: dict[str, Any] = json.loads(answer.data)
    return result
