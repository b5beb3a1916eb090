"""A callback as it would be sent: signed, its receiver judged, and nothing sent."""

import base64
from collections.abc import Callable
from datetime import datetime
from typing import Any

from timer_client import wire
from timer_service.adapters.http import bodies
from timer_service.adapters.http.api import Answer, Request
from timer_service.adapters.http.builder import CommandBuilder
from timer_service.adapters.http.problems import invalid
from timer_service.adapters.http.timer_bodies import NewTimerBody
from timer_service.domain.attempts import delivery_ahead, earliest_attempts, next_request
from timer_service.domain.callback import Callback
from timer_service.domain.delivery import Blocked
from timer_service.ports.callback_preview import CallbackPreview, Preview


class DryRunHandlers:
    """Shows what a timer would send; the tenant is that of the key."""

    def __init__(
        self, builder: CommandBuilder, preview: CallbackPreview, now: Callable[[], datetime]
    ) -> None:
        self._builder = builder
        self._preview = preview
        self._now = now

    async def dry_run(self, request: Request) -> Answer:
        """Show the first attempt of a new timer, as it is sent the moment it is due."""
        body = bodies.read_body(NewTimerBody, request.body)
        name = self._builder.name_for(request, body)
        command = self._builder.whole(request, name, body, expected=frozenset())
        callback = command.callback
        if not isinstance(callback, Callback):
            raise invalid("is required: a dry run shows what is sent over HTTP", "/callback")
        delivery = delivery_ahead(command, callback, self._now())
        sent_at = delivery.opened_at
        preview = await self._preview.preview(
            next_request(delivery, callback, command.correlation_id, command.trace, sent_at)
        )
        if not isinstance(preview, Preview):
            field = "url" if isinstance(preview, Blocked) else "headers"
            raise invalid(preview.detail, f"/callback/{field}")
        content = {
            "sentAt": wire.format_time(sent_at),
            "request": _request(preview),
            "target": _target(preview),
            "attemptsAt": [wire.format_time(at) for at in earliest_attempts(delivery, callback.retry)],
        }
        return Answer(200, wire.write_json(content))


def _request(preview: Preview) -> dict[str, Any]:
    shown = {"method": preview.method, "url": preview.url, "headers": dict(preview.headers)}
    try:
        return shown | {"body": preview.body.decode()}
    except UnicodeDecodeError:
        return shown | {"bodyBase64": base64.b64encode(preview.body).decode()}


def _target(preview: Preview) -> dict[str, str]:
    verdict = {"verdict": preview.verdict.value}
    return verdict if preview.detail is None else verdict | {"detail": preview.detail}
