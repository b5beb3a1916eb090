"""Headers of callers: what is allowed, sealed, shown."""

import pytest

from tests.support.callbacks import VAULT
from tests.support.timers import ACME, GLOBEX, call
from timer_service.adapters.callback_headers import (
    HeaderVault,
    read_headers,
    secret_values,
    secrets_named,
    with_secrets,
)
from timer_service.adapters.sealing import NotOpened, SecretKeys
from timer_service.domain.messages import TimerKey

TIMER = (ACME, call("order-1"))
GIVEN = (("Authorization", "Bearer t0ken"), ("Accept", "text/plain"), ("X-Vendor", "k3y"))


def test_headers_come_back_as_they_were_given() -> None:
    assert read_headers(dict(GIVEN)) == GIVEN
    assert VAULT.opened(TIMER, VAULT.sealed(TIMER, GIVEN)) == GIVEN


def test_all_but_harmless_headers_are_sealed_for_their_timer_and_name() -> None:
    stored = VAULT.sealed(TIMER, GIVEN)

    assert stored[1] == ("Accept", "text/plain")
    assert "t0ken" not in repr(stored)
    assert "k3y" not in repr(stored)
    for other in [(ACME, call("order-2")), (GLOBEX, call("order-1"))]:
        with pytest.raises(NotOpened):
            VAULT.opened(other, stored)
    with pytest.raises(NotOpened):
        VAULT.opened(TIMER, (("X-Other", stored[0][1]),))


def test_secret_values_are_shown_as_fingerprints() -> None:
    shown = VAULT.shown(TIMER, VAULT.sealed(TIMER, GIVEN))

    assert shown["Accept"] == "text/plain"
    assert shown["Authorization"].startswith("***** (")
    assert shown["Authorization"] != shown["X-Vendor"]
    assert shown == VAULT.shown(TIMER, VAULT.sealed(TIMER, GIVEN))
    assert HeaderVault(SecretKeys([bytes(32)])).shown(TIMER, VAULT.sealed(TIMER, GIVEN))["X-Vendor"] == (
        "***** (sealed with a key that is missing)"
    )


def test_a_fingerprint_is_equal_for_equal_values_of_a_tenant_and_for_nobody_without_the_key() -> None:
    def shown(keys: SecretKeys, timer: TimerKey, value: str) -> str:
        vault = HeaderVault(keys)
        return vault.shown(timer, vault.sealed(timer, (("Authorization", value),)))["Authorization"]

    ours, theirs = SecretKeys([bytes(range(32))]), SecretKeys([bytes(32)])
    mask = shown(ours, TIMER, "secret")

    assert mask == shown(ours, (ACME, call("order-2")), "secret")
    assert mask != shown(ours, TIMER, "secreT")
    assert mask != shown(ours, (GLOBEX, call("order-1")), "secret")
    assert mask != shown(theirs, TIMER, "secret")  # A reader who guesses has nothing to compare with.


def test_a_masked_value_that_is_sent_back_is_refused() -> None:
    shown = VAULT.shown(TIMER, VAULT.sealed(TIMER, GIVEN))

    with pytest.raises(ValueError, match="'Authorization' has a masked value"):
        read_headers(shown)


@pytest.mark.parametrize(
    "name",
    [
        *["webhook-id", "Webhook-Signature", "timer-id", "Host", "content-length", "Transfer-Encoding", "TE"],
        *[
            "connection",
            "upgrade",
            "expect",
            "proxy-authorization",
            "user-agent",
            "traceparent",
            "Idempotency-Key",
        ],
    ],
)
def test_reserved_headers_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"'{name}' is set by the service"):
        read_headers({name: "x"})


@pytest.mark.parametrize("name", ["", "a b", "a:b", "a\r\nb", "ä", "x" * 257])
def test_what_is_not_a_header_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is not a header name"):
        read_headers({name: "x"})


@pytest.mark.parametrize("value", ["a\r\nX: y", "a\nb", "a\x00b", " a", "a ", "ä", "\ud800"])
def test_a_value_that_would_break_out_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match="'x' must have a value of printable ASCII"):
        read_headers({"x": value})


def test_too_many_too_large_or_repeated_headers_are_refused() -> None:
    with pytest.raises(ValueError, match="at most 20"):
        read_headers({f"x-{n}": "" for n in range(21)})
    with pytest.raises(ValueError, match="must be at most 8192 bytes"):
        read_headers({"x": "a" * 8192})
    with pytest.raises(ValueError, match="are case-insensitive"):
        read_headers({"x-a": "1", "X-A": "2"})


def test_a_mask_of_what_cannot_be_opened_is_refused_too() -> None:
    stored = HeaderVault(SecretKeys([bytes(range(32))])).sealed(TIMER, (("Authorization", "Bearer t"),))
    shown = HeaderVault(SecretKeys([bytes(32)])).shown(TIMER, stored)

    with pytest.raises(ValueError, match="masked"):
        read_headers(shown)


def test_references_to_secrets_are_found_and_filled_in() -> None:
    headers = (("Authorization", "Bearer ${secret:token}"), ("X-Both", "${secret:a.b}-${secret:token}"))

    assert set(secrets_named(headers)) == {"token", "a.b"}
    assert with_secrets(headers, {"token": "T", "a.b": "${secret:token}"}) == (
        ("Authorization", "Bearer T"),
        ("X-Both", "${secret:token}-T"),
    )


def test_a_secret_in_a_header_that_is_shown_is_one_of_the_secrets_that_were_sent() -> None:
    given = (("Authorization", "Bearer t"), ("Accept", "text/plain"), ("Prefer", "token=${secret:shop}"))
    sent = {name.lower(): value for name, value in with_secrets(given, {"shop": "s3cret"})}

    assert secret_values(VAULT.sealed(TIMER, given), sent) == ["Bearer t", "token=s3cret"]


@pytest.mark.parametrize("value", ["${secret:}", "${secret:a b}", "${secret:a", "${secret:" + "a" * 65 + "}"])
def test_a_reference_that_cannot_be_read_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match="reference"):
        read_headers({"x": value})


def test_headers_are_rewrapped_only_where_they_need_to_be() -> None:
    old, new = bytes(32), bytes(range(32))
    before = HeaderVault(SecretKeys([old])).sealed(TIMER, GIVEN)
    both = HeaderVault(SecretKeys([new, old]))

    after = both.rewrapped(TIMER, before)

    assert after is not None
    assert HeaderVault(SecretKeys([new])).opened(TIMER, after) == GIVEN
    assert both.rewrapped(TIMER, after) is None
