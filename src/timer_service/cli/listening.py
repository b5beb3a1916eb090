"""A receiver to try callbacks out with: it prints each one, checks its signature, and fails on request."""

import argparse
import asyncio
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from timer_service.adapters.system import local_now
from timer_service.cli.arguments import Commands, add_json_argument, count, duration, port, tenant
from timer_service.cli.exits import EXIT_OK, EXIT_USAGE, CommandFailed
from timer_service.cli.output import say
from timer_service.domain.callback import Signing
from timer_service.domain.messages import TenantId
from timer_service.printable import printable, printable_json

if TYPE_CHECKING:
    from aiohttp import web

    from timer_service.adapters.webhook.signature import Verifier

DEFAULT_PORT: Final = 9000
MAX_BODY_BYTES: Final = 2 * 1024 * 1024
MAX_SHOWN_CHARS: Final = 200
MAX_REMEMBERED: Final = 10_000
TOLERANCE_S: Final = 300


def add_commands(commands: Commands) -> None:
    """Add `listen`."""
    parser = commands.add_parser("listen", help="receive callbacks, to try them out")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    parser.add_argument("--port", type=port, default=DEFAULT_PORT, help="port to listen on (%(default)s)")
    parser.add_argument(
        "--key",
        action="append",
        default=[],
        help="check signatures with this key: whpk_… or whsec_…; may be repeated",
    )
    parser.add_argument(
        "--tenant", type=tenant, help="check signatures with the keys of this tenant, in the configured store"
    )
    parser.add_argument("--status", type=int, default=200, help="answer with this status (%(default)s)")
    parser.add_argument("--slow", type=duration, metavar="DURATION", help="answer only after this long")
    parser.add_argument(
        "--fail-first",
        type=count,
        default=0,
        metavar="N",
        help="answer 503 to the first N attempts of each callback",
    )
    add_json_argument(parser)
    parser.set_defaults(handler=listen)


def listen(options: argparse.Namespace) -> int:
    """Receive callbacks until Ctrl-C."""
    from timer_service.adapters.webhook.signature import read_verifier  # noqa: PLC0415 - as elsewhere

    if not 200 <= options.status <= 599:
        raise CommandFailed(EXIT_USAGE, f"--status must be from 200 to 599 (got {options.status})")
    try:
        keys = [read_verifier(text) for text in options.key]
    except ValueError as error:
        raise CommandFailed(EXIT_USAGE, f"--key {error}") from error
    asyncio.run(_listen(options, keys))
    return EXIT_OK


async def _listen(options: argparse.Namespace, keys: "list[Verifier]") -> None:
    from aiohttp import web  # noqa: PLC0415 - no other command has to wait for it

    if options.tenant:
        keys += await _keys_of(options.tenant)
    receiver = TrialReceiver(
        keys,
        status=options.status,
        delay=options.slow or timedelta(),
        fail_first=options.fail_first,
        show=lambda facts: say(printable_json(facts) if options.json else _line(facts)),
    )
    app = web.Application(client_max_size=MAX_BODY_BYTES)
    app.router.add_route("*", "/{path:.*}", receiver.receive)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, options.host, options.port).start()
        except OSError as error:
            text = f"cannot listen on {options.host}:{options.port}: {error.strerror}; use another --port"
            raise CommandFailed(EXIT_USAGE, text) from error
        if not options.json:
            checked = (
                f"checked by {len(keys)} key{'s' * (len(keys) != 1)}"
                if keys
                else "not checked: give --key or --tenant"
            )
            say(f"listening on http://{options.host}:{options.port}/, signatures {checked}; Ctrl-C stops it")
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()


async def _keys_of(tenant: str) -> "list[Verifier]":
    from timer_service.adapters.webhook.signature import read_verifier  # noqa: PLC0415
    from timer_service.cli.secrets import open_keyring  # noqa: PLC0415

    async with open_keyring() as ring:
        # The first key is made now: otherwise the first callback would make one, which is not known here.
        found = await ring.secrets_for(TenantId(tenant), Signing.ED25519)
    return [read_verifier(kept.key.public_text or kept.key.private_text) for kept in found.signing]


@dataclass
class TrialReceiver:
    """Answers as it is told, and says what it got."""

    keys: "Sequence[Verifier]"
    show: Callable[[dict[str, object]], None]
    status: int = 200
    delay: timedelta = field(default_factory=timedelta)
    fail_first: int = 0
    now: Callable[[], datetime] = local_now
    seen: Counter[str] = field(default_factory=Counter)

    async def receive(self, request: "web.Request") -> "web.Response":
        """Answer one request."""
        from aiohttp import web  # noqa: PLC0415

        body = await request.read()
        callback_id = request.headers.get("webhook-id", "")
        if len(self.seen) >= MAX_REMEMBERED:
            self.seen.clear()
        self.seen[callback_id] += 1
        status = 503 if self.seen[callback_id] <= self.fail_first else self.status
        self.show(self._facts(request, body, callback_id, status))
        await asyncio.sleep(self.delay.total_seconds())
        return web.Response(status=status)

    def _facts(self, request: "web.Request", body: bytes, callback_id: str, status: int) -> dict[str, object]:
        headers = request.headers
        return {
            "request": f"{request.method} {request.path_qs}",
            "id": callback_id,
            "timerId": headers.get("timer-id"),
            "attempt": headers.get("timer-attempt"),
            "latenessMs": headers.get("timer-lateness-ms"),
            "signature": self.verdict(headers, body),
            "seenBefore": self.seen[callback_id] > 1,
            "answered": status,
            "body": body.decode("utf-8", "replace"),
        }

    def verdict(self, headers: Mapping[str, str], body: bytes) -> str:
        """Say whether a signature is valid."""
        signature, timestamp = headers.get("webhook-signature", ""), headers.get("webhook-timestamp", "")
        if not signature:
            return "missing"
        if not self.keys:
            return "not checked"
        content = f"{headers.get('webhook-id', '')}.{timestamp}.".encode() + body
        is_time = re.fullmatch("[0-9]{1,15}", timestamp)
        if not is_time or not any(key.verifies(signature, content) for key in self.keys):
            return "INVALID"
        ahead_s = int(timestamp) - int(self.now().timestamp())
        if ahead_s > TOLERANCE_S:
            return f"{ahead_s} s ahead of this machine's clock"
        return "valid" if ahead_s >= -TOLERANCE_S else "too old"


def _line(facts: dict[str, object]) -> str:
    body = str(facts["body"])
    shown = body if len(body) <= MAX_SHOWN_CHARS else f"{body[:MAX_SHOWN_CHARS]}…"
    again = ", seen before" if facts["seenBefore"] else ""
    return printable(
        f"{facts['request']}  timer {facts['timerId']}, attempt {facts['attempt']}, "
        f"{facts['latenessMs']} ms late, signature {facts['signature']}{again}, "
        f"answered {facts['answered']}  {shown}"
    )
