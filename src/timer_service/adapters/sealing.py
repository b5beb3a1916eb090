"""Secrets at rest: sealed by the first key, opened by any, bound to where they belong."""

import hmac
import secrets
from collections.abc import Sequence
from hashlib import sha256
from typing import Final

NONCE_BYTES: Final = 24
KEY_ID_BYTES: Final = 4
_VERSION: Final = b"\x01"
_HEAD_BYTES: Final = len(_VERSION) + KEY_ID_BYTES


class NotOpened(Exception):
    """A sealed value that none of the keys opens: its key is missing, or it was moved or changed."""


class SecretKeys:
    """The keys of TIMER_SECRET_KEYS: the first seals, all open (XChaCha20-Poly1305).

    Without any, nothing opens; sealing needs at least one.
    """

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._first = keys[0] if keys else b""
        self._by_id = {_key_id(key): key for key in reversed(keys)}

    def seal(self, value: bytes, *place: str) -> bytes:
        """Seal a value for one place: a tenant, a timer, a name. It opens nowhere else."""
        from nacl.bindings import crypto_aead_xchacha20poly1305_ietf_encrypt as encrypt  # noqa: PLC0415

        nonce = secrets.token_bytes(NONCE_BYTES)
        return (
            _VERSION
            + _key_id(self._first)
            + nonce
            + bytes(encrypt(value, _associated(place), nonce, self._first))
        )

    def open(self, sealed: bytes, *place: str) -> bytes:
        """Open what was sealed for this place. Raises NotOpened."""
        # Here, because a service without callbacks needs none of it.
        from nacl.bindings import crypto_aead_xchacha20poly1305_ietf_decrypt as decrypt  # noqa: PLC0415
        from nacl.exceptions import CryptoError  # noqa: PLC0415

        key = self._by_id.get(sealed[len(_VERSION) : _HEAD_BYTES]) if sealed[:1] == _VERSION else None
        if key is None:
            raise NotOpened("sealed with a key that is not in TIMER_SECRET_KEYS")
        nonce, rest = sealed[_HEAD_BYTES : _HEAD_BYTES + NONCE_BYTES], sealed[_HEAD_BYTES + NONCE_BYTES :]
        try:
            return bytes(decrypt(rest, _associated(place), nonce, key))
        except (CryptoError, ValueError) as error:
            raise NotOpened("a sealed value was moved or changed") from error

    def fingerprint(self, value: bytes, *place: str) -> str:
        """Return digits that are equal for equal values at a place; without the key they tell nothing."""
        text = b"timer-service fingerprint\n" + _associated(place) + b"\n" + value
        return hmac.new(self._first, text, sha256).hexdigest()

    def is_newest(self, sealed: bytes) -> bool:
        """Return whether a value is sealed with the first key."""
        return sealed[:_HEAD_BYTES] == _VERSION + _key_id(self._first)


def _key_id(key: bytes) -> bytes:
    return sha256(b"timer-service key id\n" + key).digest()[:KEY_ID_BYTES]


def _associated(place: Sequence[str]) -> bytes:
    # No id and no name can hold a line break, so two places never give the same text.
    return "\n".join(place).encode("utf-8", "surrogatepass")
