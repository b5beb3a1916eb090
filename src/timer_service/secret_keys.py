"""The keys that seal secrets at rest: how they are written, made, and kept in a file."""

import base64
import binascii
import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Final

from timer_service.domain.errors import CriticalError

KEY_BYTES: Final = 32


def read_secret_keys(text: str) -> list[bytes]:
    """Read keys of 32 bytes in base64, separated by commas. Raises ValueError."""
    keys = [_read_key(part.strip()) for part in text.split(",") if part.strip()]
    if not keys:
        raise ValueError("no key")
    return keys


def new_secret_key() -> str:
    """Return a new key as it is written in TIMER_SECRET_KEYS."""
    return base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode("ascii")


def key_file(path: Path, *, make: bool = True) -> list[bytes]:
    """Return the keys in a file that only we may read. Raises CriticalError.

    Where there is none, make it, with one new key; if that is not to be, there are no keys.
    """
    if not make and not path.exists():
        return []
    try:
        with suppress(FileExistsError):
            _write_key_file(path)
        if path.stat().st_mode & 0o077:
            raise CriticalError(f"{path} is readable by others: chmod 600 it, or set TIMER_SECRET_KEYS")
        return read_secret_keys(path.read_text("ascii").replace("\n", ","))
    except (OSError, ValueError) as error:
        raise CriticalError(
            f"{path} holds no keys ({error}): restore it, or set TIMER_SECRET_KEYS"
        ) from error


def _write_key_file(path: Path) -> None:
    """Make the file whole or not at all: half a key would open nothing."""
    if path.exists():
        return
    draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    try:
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w") as file:  # noqa: PTH123
            file.write(new_secret_key() + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.link(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def _read_key(text: str) -> bytes:
    try:
        key = base64.b64decode(text.replace("-", "+").replace("_", "/"), validate=True)
    except binascii.Error as error:
        raise ValueError("not base64") from error
    if len(key) != KEY_BYTES:
        raise ValueError(f"not {KEY_BYTES} bytes")
    return key
