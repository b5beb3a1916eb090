"""Secrets at rest."""

from pathlib import Path

import pytest

from timer_service.adapters.sealing import NotOpened, SecretKeys
from timer_service.domain.errors import CriticalError
from timer_service.secret_keys import key_file, new_secret_key, read_secret_keys

OLD, NEW = bytes(32), bytes(range(32))


def test_what_is_sealed_opens_at_its_place_and_nowhere_else() -> None:
    keys = SecretKeys([NEW])
    sealed = keys.seal(b"token", "acme", "order-1")

    assert keys.open(sealed, "acme", "order-1") == b"token"
    for place in [("acme", "order-2"), ("globex", "order-1"), ("acme",), ()]:
        with pytest.raises(NotOpened, match="moved or changed"):
            keys.open(sealed, *place)


def test_a_sealed_value_shows_nothing_and_never_looks_the_same_twice() -> None:
    keys = SecretKeys([NEW])

    assert b"token" not in keys.seal(b"token")
    assert keys.seal(b"token") != keys.seal(b"token")


def test_every_changed_byte_is_noticed() -> None:
    keys = SecretKeys([NEW])
    sealed = keys.seal(b"token", "acme")

    for at in range(len(sealed)):
        changed = bytearray(sealed)
        changed[at] ^= 1
        with pytest.raises(NotOpened):
            keys.open(bytes(changed), "acme")
    for size in range(len(sealed)):
        with pytest.raises(NotOpened):
            keys.open(sealed[:size], "acme")


def test_the_first_key_seals_and_all_open() -> None:
    before = SecretKeys([OLD]).seal(b"token", "acme")
    both = SecretKeys([NEW, OLD])

    assert both.open(before, "acme") == b"token"
    assert not both.is_newest(before)
    after = both.seal(b"token", "acme")
    assert both.is_newest(after)
    assert SecretKeys([NEW]).open(after, "acme") == b"token"
    with pytest.raises(NotOpened, match="TIMER_SECRET_KEYS"):
        SecretKeys([NEW]).open(before, "acme")


def test_keys_are_read_as_they_are_written() -> None:
    first, second = new_secret_key(), new_secret_key()

    assert len(read_secret_keys(f"{first}, {second}")) == 2
    assert first != second


@pytest.mark.parametrize("text", ["", ",", "short", "A" * 43, "*" * 44, "A" * 40])
def test_what_is_not_a_key_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"no key|not"):
        read_secret_keys(text)


def test_a_key_file_is_made_once_and_only_for_us(tmp_path: Path) -> None:
    path = tmp_path / "timers.db.key"

    made = key_file(path)

    assert key_file(path) == made
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_key_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "timers.db.key"
    key_file(path)
    path.chmod(0o644)

    with pytest.raises(CriticalError, match="chmod 600"):
        key_file(path)


def test_a_key_file_without_a_key_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "timers.db.key"
    path.touch(0o600)

    with pytest.raises(CriticalError, match=r"restore it, or set TIMER_SECRET_KEYS"):
        key_file(path)
