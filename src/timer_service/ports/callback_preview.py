"""Callbacks shown before they are sent, as the ways in see them."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from timer_service.domain.delivery import Blocked, CallbackRequest, Unreachable


class Verdict(StrEnum):
    """Whether the receiver of a callback would be called."""

    ALLOWED = "allowed"
    DENIED = "denied"
    NOT_FOUND = "notFound"
    PROXY = "proxy"
    """A proxy decides, when it is asked."""


@dataclass(frozen=True, slots=True)
class Preview:
    """One attempt as it would go over the wire."""

    method: str
    url: str
    headers: Mapping[str, str]
    """Values that are secret are masked; the signature is not."""
    body: bytes
    verdict: Verdict
    detail: str | None = None
    """Which rule denies the address, or why the name was not found; never an address."""


class CallbackPreview(Protocol):
    """What a sender would do."""

    async def preview(self, request: CallbackRequest) -> Preview | Blocked | Unreachable:
        """Sign one request, look its receiver up and judge it; nothing is sent.

        Returns why if there is nothing to sign, as a sender does. Raises TransientError if the secrets
        cannot be read now.
        """
        ...
