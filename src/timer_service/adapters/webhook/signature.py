"""Signatures by the rules of Standard Webhooks: HMAC-SHA256 (v1) and ed25519 (v1a)."""

import base64
import hmac
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from hashlib import sha256
from typing import Final

from timer_service.domain.callback import Signing

HMAC_PREFIX: Final = "whsec_"
PRIVATE_PREFIX: Final = "whsk_"
PUBLIC_PREFIX: Final = "whpk_"
HMAC_BYTES: Final = 32
SEED_BYTES: Final = 32
MIN_HMAC_BYTES: Final = 24
MAX_HMAC_BYTES: Final = 64
TOLERANCE_S: Final = 300
"""How old or early a receiver takes a signature, as Standard Webhooks advises."""


@dataclass(frozen=True, slots=True)
class SigningKey:
    """One key of a tenant; its secret is never shown by accident."""

    kind: Signing
    secret: bytes
    """The bytes of the HMAC key, or the seed of the ed25519 key."""

    def __repr__(self) -> str:
        return f"SigningKey({self.kind})"

    @property
    def private_text(self) -> str:
        """The key as a signer needs it: whsec_… or whsk_… (seed and public key)."""
        if self.kind is Signing.HMAC:
            return HMAC_PREFIX + _base64(self.secret)
        return PRIVATE_PREFIX + _base64(self.secret + _ed25519(self.secret)[0])

    @property
    def public_text(self) -> str | None:
        """The key as a receiver needs it; an HMAC key has no public half."""
        return None if self.kind is Signing.HMAC else PUBLIC_PREFIX + _base64(_ed25519(self.secret)[0])

    def sign(self, content: bytes) -> str:
        """Return one signature as it stands in the header."""
        if self.kind is Signing.HMAC:
            return "v1," + _base64(hmac.digest(self.secret, content, sha256))
        from nacl.bindings import crypto_sign  # noqa: PLC0415

        return "v1a," + _base64(crypto_sign(content, _ed25519(self.secret)[1])[:64])


def new_key(kind: Signing) -> SigningKey:
    """Make a random key."""
    return SigningKey(kind, secrets.token_bytes(HMAC_BYTES if kind is Signing.HMAC else SEED_BYTES))


def signed_content(message_id: str, timestamp_s: int, body: bytes) -> bytes:
    """Return the bytes that are signed; the id holds no dot."""
    return f"{message_id}.{timestamp_s}.".encode() + body


def signature_headers(
    keys: Iterable[SigningKey], message_id: str, sent_at: datetime, body: bytes
) -> dict[str, str]:
    """Return the three headers of Standard Webhooks for this attempt, with a signature by each key."""
    timestamp_s = int(sent_at.timestamp())
    content = signed_content(message_id, timestamp_s, body)
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp_s),
        "webhook-signature": " ".join(key.sign(content) for key in keys),
    }


def read_verifier(text: str) -> "Verifier":
    """Read the key of a receiver: whsec_… or whpk_…. Raises ValueError."""
    for prefix in (HMAC_PREFIX, PUBLIC_PREFIX):
        if text.startswith(prefix):
            key = base64.b64decode(text.removeprefix(prefix), validate=True)
            fits = MIN_HMAC_BYTES <= len(key) <= MAX_HMAC_BYTES if prefix == HMAC_PREFIX else len(key) == 32
            if fits:
                return Verifier(prefix, key)
    raise ValueError("must be whsec_… (HMAC) or whpk_… (ed25519), as `timer-service signing-keys` shows it")


@dataclass(frozen=True, slots=True)
class Verifier:
    """The key by which a receiver checks signatures."""

    prefix: str
    key: bytes

    def verifies(self, header: str, content: bytes) -> bool:
        """Return whether one of the signatures in the header is by this key and over these bytes."""
        wanted = "v1" if self.prefix == HMAC_PREFIX else "v1a"
        found = [part.partition(",") for part in header.split(" ")]
        return any(version == wanted and self._is_valid(text, content) for version, _, text in found)

    def _is_valid(self, text: str, content: bytes) -> bool:
        try:
            signature = base64.b64decode(text, validate=True)
        except ValueError:
            return False
        if self.prefix == HMAC_PREFIX:
            return hmac.compare_digest(signature, hmac.digest(self.key, content, sha256))
        from nacl.bindings import crypto_sign_open  # noqa: PLC0415
        from nacl.exceptions import CryptoError  # noqa: PLC0415

        try:
            crypto_sign_open(signature + content, self.key)
        except (CryptoError, ValueError):
            return False
        return len(signature) == 64


@lru_cache(maxsize=4_096)
def _ed25519(seed: bytes) -> tuple[bytes, bytes]:
    """Return the public key and the secret key of libsodium; to derive them costs as much as to sign."""
    from nacl.bindings import crypto_sign_seed_keypair  # noqa: PLC0415

    public, secret = crypto_sign_seed_keypair(seed)
    return bytes(public), bytes(secret)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
