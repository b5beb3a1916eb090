"""A timer that is created over HTTP calls its receiver: the process from outside, without a broker."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.callbacks import keyring_of
from tests.support.patience import PATIENCE_S
from tests.support.ports import free_port
from tests.support.process import TimerServiceProcess
from tests.support.receiver import OK, Received, Receiver, receiving
from timer_service.adapters.sealing import SecretKeys
from timer_service.adapters.sqlite.secrets import SqliteSecretStore, secrets_path
from timer_service.adapters.webhook.signature import read_verifier, signed_content
from timer_service.domain.messages import TenantId
from timer_service.secret_keys import key_file

API_KEY = "k" * 40
BODY = {"order": 42, "total": "12.50"}
SECRETS = ("s3cret-header", "s3cret-named")


class Site:
    """A service with callbacks, and a receiver that it may call."""

    def __init__(self, folder: Path, receiver: Receiver, api_port: int) -> None:
        self.folder = folder
        self.receiver = receiver
        self.url = f"http://127.0.0.1:{api_port}/v1/timers"
        self.service = TimerServiceProcess(
            folder,
            broker_url="none",
            db_path="timers.db",
            api_port=api_port,
            api_key=API_KEY,
            api_tenant="acme",
            callback_allow="127.0.0.1/32",
        )

    async def ask(self, method: str, path: str = "", **body: Any) -> tuple[int, Any]:
        """Ask the API."""
        headers = {"x-api-key": API_KEY}
        async with (
            aiohttp.ClientSession(headers=headers) as client,
            client.request(method, self.url + path, json=body or None) as response,
        ):
            return response.status, await response.json()

    async def create(self, name: str, due_in_s: float = 0.3, **callback: Any) -> None:
        due_at = datetime.now(UTC) + timedelta(seconds=due_in_s)
        asked = {"url": self.receiver.url(f"/{name}"), "body": BODY, **callback}
        status, answer = await self.ask("PUT", f"/{name}", dueAt=due_at.isoformat(), callback=asked)
        assert status == 201, answer

    async def received(self, count: int) -> list[Received]:
        """Wait for callbacks."""
        async with asyncio.timeout(PATIENCE_S):
            while len(self.receiver.requests) < count:
                await asyncio.sleep(0.01)
        return self.receiver.requests

    async def delivery(self, name: str, state: str) -> Any:
        """Wait until the delivery of a timer is in a state."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                _, answer = await self.ask("GET", f"/{name}")
                if answer["timer"].get("delivery", {}).get("state") == state:
                    return answer["timer"]
                await asyncio.sleep(0.02)


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with receiving() as receiver:
        site = Site(tmp_path, receiver, free_port())
        site.service.start()
        await asyncio.to_thread(site.service.wait_for_log, "service.started")
        try:
            yield site
        finally:
            await asyncio.to_thread(site.service.close)


async def test_a_callback_arrives_when_it_is_due_signed_and_complete(site: Site) -> None:
    keyring = keyring_of(SqliteSecretStore(secrets_path(site.folder / "timers.db")), _sealing(site.folder))
    await keyring.set_named(TenantId("acme"), "token", SECRETS[1])

    await site.create("order-1", headers={"X-Own": SECRETS[0], "Authorization": "Bearer ${secret:token}"})
    [received] = await site.received(1)
    shown = await site.delivery("order-1", "Delivered")

    due_at = datetime.fromisoformat(received.headers["timer-due-at"])
    assert int(received.headers["webhook-timestamp"]) >= int(due_at.timestamp())
    assert int(received.headers["timer-lateness-ms"]) >= 0
    assert json.loads(received.body) == BODY
    assert (received.headers["x-own"], received.headers["authorization"]) == (
        SECRETS[0],
        f"Bearer {SECRETS[1]}",
    )
    assert received.headers["webhook-id"] == shown["delivery"]["id"]
    assert await _is_signed(site.folder, received)
    assert not await _is_signed(site.folder, received, body=received.body + b" ")


async def test_a_failed_attempt_is_repeated_under_the_same_id(site: Site) -> None:
    async def fail_first(request: Received, writer: asyncio.StreamWriter) -> bool:
        first = len(site.receiver.requests) == 1
        writer.write(b"HTTP/1.1 500 X\r\ncontent-length: 0\r\n\r\n" if first else OK)
        await writer.drain()
        return True

    site.receiver.answer = fail_first
    await site.create("order-1", retry={"delaysMs": [1000]})

    await site.received(2)
    shown = await site.delivery("order-1", "Delivered")

    first, second = site.receiver.requests
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    assert [each.headers["timer-attempt"] for each in (first, second)] == ["1", "2"]
    assert first.body == second.body
    assert shown["delivery"]["attempts"] == 2


async def test_a_private_address_is_refused_and_no_secret_leaks(site: Site) -> None:
    site.receiver.answer = b"HTTP/1.1 410 Gone\r\ncontent-length: 0\r\n\r\n"
    status, problem = await site.ask(
        "PUT", "/literal", dueAt="2026-01-01T00:00:00Z", callback={"url": "http://169.254.169.254/latest"}
    )
    # Allowed is 127.0.0.1 alone; the name may have ::1, too, which is then not called.
    by_name = f"http://localhost:{site.receiver.port}/"
    await site.create("order-1", url=by_name, headers={"Authorization": SECRETS[0], "X-Vendor": SECRETS[0]})
    await site.received(1)

    shown = await site.delivery("order-1", "Failed")
    await asyncio.to_thread(site.service.terminate)

    files = b"".join(path.read_bytes() for path in site.folder.iterdir() if path.is_file())
    assert status == 400
    assert "169.254.169.254 (link-local" in json.dumps(problem)
    assert shown["delivery"]["status"] == 410
    assert SECRETS[0] not in json.dumps(shown)
    assert SECRETS[0] not in "".join(site.service.stderr)
    assert SECRETS[0].encode() not in files


def _sealing(folder: Path) -> SecretKeys:
    return SecretKeys(key_file(folder / "timers.db.secret-key"))


async def _is_signed(folder: Path, received: Received, body: bytes | None = None) -> bool:
    """Check a callback by the key that the service has made."""
    store = SqliteSecretStore(secrets_path(folder / "timers.db"))
    [kept] = (await keyring_of(store, _sealing(folder)).read(TenantId("acme"))).signing
    headers = received.headers
    timestamp_s = int(headers["webhook-timestamp"])
    content = signed_content(headers["webhook-id"], timestamp_s, received.body if body is None else body)
    return read_verifier(str(kept.key.public_text)).verifies(headers["webhook-signature"], content)
