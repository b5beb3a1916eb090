"""What `timer-service listen` says about a signature."""

from datetime import timedelta

import pytest

from tests.support.timers import at
from timer_service.adapters.webhook.signature import new_key, read_verifier, signature_headers
from timer_service.cli.listening import TOLERANCE_S, TrialReceiver
from timer_service.domain.callback import Signing

KEY = new_key(Signing.HMAC)
BODY = b"{}"


def verdict(headers: dict[str, str]) -> str:
    keys = [read_verifier(KEY.private_text)]
    return TrialReceiver(keys, show=lambda _: None, now=lambda: at(0)).verdict(headers, BODY)


@pytest.mark.parametrize(
    ("ahead_s", "said"),
    [
        (-TOLERANCE_S - 1, "too old"),
        (-TOLERANCE_S, "valid"),
        (TOLERANCE_S, "valid"),
        (86_400, "86400 s ahead of this machine's clock"),
    ],
)
def test_a_signature_is_valid_near_its_time_only(ahead_s: int, said: str) -> None:
    headers = signature_headers([KEY], "1", at(0) + timedelta(seconds=ahead_s), BODY)

    assert verdict(headers) == said


@pytest.mark.parametrize("timestamp", ["", "soon", "\xb2", "9" * 5_000])
def test_a_signature_over_a_time_that_is_none_is_not_valid(timestamp: str) -> None:
    signature = KEY.sign(f"1.{timestamp}.".encode() + BODY)
    headers = {"webhook-id": "1", "webhook-timestamp": timestamp, "webhook-signature": signature}

    assert verdict(headers) == "INVALID"
