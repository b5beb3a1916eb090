"""No part of a password is ever shown, however it was written."""

import pytest

from timer_service.addresses import is_clear, masked, without_credentials
from timer_service.config import load_settings
from timer_service.domain.errors import InvalidConfiguration

PARTS = ("s3cr", "et9")
"""The password of every unclear address below is made of these, around a character that stands as it is."""


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://timer:secret@db-1:5432/timers", "postgresql://*****@db-1:5432/timers"),
        ("postgresql://timer:se%2Fc%3Fr%23et@db-1/timers", "postgresql://*****@db-1/timers"),
        ("postgresql://timer:se@cret@db-1/timers", "postgresql://*****@db-1/timers"),
        ("postgresql://timer:secret@db-1:5432,db-2/timers?target_session_attrs=read-write",
         "postgresql://*****@db-1:5432,db-2/timers"),
        ("postgresql://timer:secret@[::1]:5432/timers", "postgresql://*****@[::1]:5432/timers"),
        ("postgresql:///timers?host=/var/run/postgresql", "postgresql:///timers"),
        ("postgresql://timer@%2Fvar%2Frun/timers", "postgresql://*****@%2Fvar%2Frun/timers"),
        ("postgres://db-1/timers?user=timer&password=secret", "postgres://db-1/timers"),
        ("nats://localhost:4222", "nats://localhost:4222"),
        ("tls://secret@one:4222", "tls://*****@one:4222"),
        ("wss://user:secret@host/path", "wss://*****@host/path"),
    ],
)  # fmt: skip
def test_a_clear_address_is_shown_without_its_credentials(url: str, shown: str) -> None:
    assert is_clear(url)
    assert masked(url) == shown
    assert without_credentials(url) == shown.replace("*****@", "")


UNCLEAR = ("/", "?", "#", "/?", "#@", "?@", "/@", " ", "?x=", "://")


def unclear(character: str) -> list[str]:
    """Return addresses in whose password this stands as it is."""
    return [
        f"{scheme}://{before}{PARTS[0]}{character}{PARTS[1]}{after}"
        for scheme in ("postgresql", "nats")
        for before in ("timer:", "timer:12", "")
        for after in ("@db-1:5432/timers", "@db-1", "@db-1/timers?sslmode=require", "@db-1/x@y")
    ]


@pytest.mark.parametrize("character", UNCLEAR)
def test_of_an_unclear_address_nothing_is_shown(character: str) -> None:
    for url in unclear(character):
        for text in (masked(url), without_credentials(url)):
            assert not any(part in text for part in PARTS)
        assert "12" not in masked(url)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://timer:s3cr?et9",
        "postgresql://timer:s3cr",
        "postgresql://db-1/timers?password=s3cr@et9",
        "postgresql://db-1/timers?password=s3cr#et9",
        "timer:s3cr@db-1/timers",
        "s3cr",
        "",
    ],
)
def test_what_may_be_half_a_password_is_not_shown(url: str) -> None:
    assert not is_clear(url)
    assert not any(part in masked(url) for part in PARTS)


@pytest.mark.parametrize(
    "urls", [*map(unclear, UNCLEAR), ["nats://timer:s3cr,et9@db-1"]], ids=[*UNCLEAR, "a comma"]
)
def test_an_unclear_address_is_refused_with_what_to_do_and_without_the_password(urls: list[str]) -> None:
    for url in urls:
        setting = "TIMER_STORE_URL" if url.startswith("postgresql") else "TIMER_BROKER_URL"

        with pytest.MonkeyPatch.context() as environment:
            environment.setenv(setting, url)
            with pytest.raises(InvalidConfiguration, match=setting) as caught:
                load_settings()

        assert not any(part in str(caught.value) for part in PARTS)
        assert "%3F" in str(caught.value) or setting == "TIMER_BROKER_URL"
