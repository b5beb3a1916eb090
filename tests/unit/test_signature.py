"""Signatures, checked by others' programs."""

import base64
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from tests.support.callbacks import request_to
from timer_service.adapters.webhook.message import build_message
from timer_service.adapters.webhook.signature import (
    SigningKey,
    new_key,
    read_verifier,
    signature_headers,
    signed_content,
)
from timer_service.domain.callback import Signing

ID = "01890a5d-ac96-774b-bcce-b302099a8057"
URL = "https://shop.example.com/hooks/orders"
BODY = '{"total": 12.50, "name": "Zoë"}'


def test_an_hmac_signature_is_that_of_the_standard_webhooks_package() -> None:
    key = new_key(Signing.HMAC)
    now = datetime.now(UTC)
    headers = signature_headers([key], ID, now, BODY.encode())
    package = Webhook(key.private_text)

    package.verify(BODY, headers)
    assert headers["webhook-signature"] == package.sign(ID, now, BODY)
    with pytest.raises(WebhookVerificationError):
        package.verify(BODY.replace("12", "13"), headers)
    with pytest.raises(WebhookVerificationError):
        Webhook(new_key(Signing.HMAC).private_text).verify(BODY, headers)


def test_a_later_attempt_has_the_same_id_and_bytes_and_is_signed_for_its_own_time() -> None:
    key = new_key(Signing.HMAC)
    first = request_to(URL)
    later = replace(first, sent_at=first.sent_at + timedelta(hours=45), attempt=10)

    before, after = [build_message(request, URL, (), [key]) for request in (first, later)]

    assert after.body == before.body
    assert after.headers["webhook-id"] == before.headers["webhook-id"]
    assert after.headers["webhook-timestamp"] == str(int(later.sent_at.timestamp()))
    # A receiver refuses what was signed minutes ago: an old signature would fail every late attempt.
    assert after.headers["webhook-signature"] == Webhook(key.private_text).sign(
        after.headers["webhook-id"], later.sent_at, after.body.decode()
    )


def test_an_ed25519_signature_is_valid_for_another_library() -> None:
    key = new_key(Signing.ED25519)
    headers = signature_headers([key], ID, datetime.fromtimestamp(1_700_000_000, UTC), BODY.encode())
    assert key.public_text is not None
    public = Ed25519PublicKey.from_public_bytes(base64.b64decode(key.public_text.removeprefix("whpk_")))
    version, _, text = headers["webhook-signature"].partition(",")
    signature, content = base64.b64decode(text), f"{ID}.1700000000.{BODY}".encode()

    assert version == "v1a"
    public.verify(signature, content)
    for at in range(len(content)):
        changed = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
        with pytest.raises(InvalidSignature):
            public.verify(signature, changed)


def test_the_example_of_standard_webhooks_gives_its_signature() -> None:
    key = SigningKey(Signing.HMAC, base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"))

    signature = key.sign(signed_content("msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}'))

    assert key.private_text == "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    assert signature == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_a_private_ed25519_key_holds_seed_and_public_key() -> None:
    key = SigningKey(Signing.ED25519, bytes(range(32)))
    assert key.public_text is not None
    private = base64.b64decode(key.private_text.removeprefix("whsk_"))

    assert private == key.secret + base64.b64decode(key.public_text.removeprefix("whpk_"))
    assert len(private) == 64


@pytest.mark.parametrize("kind", list(Signing))
def test_every_key_that_signs_is_enough_for_a_receiver(kind: Signing) -> None:
    old, new = new_key(kind), new_key(kind)
    headers = signature_headers([new, old], ID, datetime.fromtimestamp(1_700_000_000, UTC), b"body")
    content = signed_content(ID, 1_700_000_000, b"body")

    assert len(headers["webhook-signature"].split(" ")) == 2
    for key in (old, new):
        verifier = read_verifier(key.public_text or key.private_text)
        assert verifier.verifies(headers["webhook-signature"], content)
        assert not verifier.verifies(headers["webhook-signature"], content + b"!")
        assert not verifier.verifies("v1,%%% v1a,aGk= v2,x nonsense", content)
    assert not read_verifier(new_key(kind).public_text or new_key(kind).private_text).verifies(
        headers["webhook-signature"], content
    )


@pytest.mark.parametrize(
    "text", ["", "whsec_", "whsec_c2hvcnQ=", "whpk_c2hvcnQ=", "whsk_x", "MfKQ9r8GKYqrTwjUPD8ILPZIo2La"]
)
def test_what_is_not_a_receivers_key_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        read_verifier(text)


def test_a_key_does_not_show_its_secret_by_accident() -> None:
    assert repr(SigningKey(Signing.HMAC, b"secret")) == "SigningKey(hmac)"
