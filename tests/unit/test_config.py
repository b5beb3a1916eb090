"""Settings: a wrong value is named with what is allowed, and no secret is ever shown."""

import os
import ssl
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path

import nkeys  # type: ignore[import-untyped]
import pytest

from timer_service.config import (
    Settings,
    env_name,
    load_settings,
    nats_connect_options,
    parse_duration,
    read_groups,
    read_networks,
    unknown_variables,
)
from timer_service.domain.errors import InvalidConfiguration


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Start without any setting, in an empty folder."""
    for name in list(os.environ):
        if name.upper().startswith("TIMER_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def load(monkeypatch: pytest.MonkeyPatch, **variables: str) -> Settings:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return load_settings()


def complaint(monkeypatch: pytest.MonkeyPatch, **variables: str) -> str:
    with pytest.raises(InvalidConfiguration) as caught:
        load(monkeypatch, **variables)
    return str(caught.value)


# What holds without a setting


def test_every_setting_has_a_default_or_is_unset() -> None:
    assert load_settings().shown() == {
        "TIMER_API_HOST": "127.0.0.1",
        "TIMER_API_PORT": "0",
        "TIMER_API_KEY": "",
        "TIMER_API_TENANT": "default",
        "TIMER_API_MIN_LEAD": "0",
        "TIMER_MAX_PENDING": "0",
        "TIMER_PAGE_HOST": "127.0.0.1",
        "TIMER_PAGE_PORT": "0",
        "TIMER_PAGE_URL": "",
        "TIMER_PAGE_KEY": "",
        "TIMER_PAGE_SECRET": "",
        "TIMER_PAGE_TRUSTED_PROXIES": "",
        "TIMER_PAGE_GROUPS": "",
        "TIMER_PAGE_TITLE": "timer-service",
        "TIMER_PAGE_COLOUR": "teal",
        "TIMER_CALLBACK_ALLOW": "",
        "TIMER_CALLBACK_KEEP_ANSWERS": "false",
        "TIMER_CALLBACK_MAX_BODY": "65536",
        "TIMER_CALLBACK_PROXY": "",
        "TIMER_CALLBACK_PROXY_LOGIN": "",
        "TIMER_CALLBACK_TLS_CA": "",
        "TIMER_SECRET_KEYS": "",
        "TIMER_POLLING_INTERVAL": "5000",
        "TIMER_BATCH_SIZE": "2000",
        "TIMER_PRECISE_WAKEUP": "true",
        "TIMER_CATCH_UP": "30s",
        "TIMER_MAX_CLOCK_STEP": "1h",
        "TIMER_DB_PATH": "event_service.db",
        "TIMER_ALLOW_NEW_STORE": "false",
        "TIMER_STORE_URL": "",
        "TIMER_STORE_STATEMENT_CACHE": "100",
        "TIMER_BROKER_URL": "nats://localhost:4222",
        "TIMER_BROKER_USER": "",
        "TIMER_BROKER_PASSWORD": "",
        "TIMER_BROKER_TOKEN": "",
        "TIMER_BROKER_CREDS": "",
        "TIMER_BROKER_NKEY": "",
        "TIMER_BROKER_INBOX_PREFIX": "_INBOX",
        "TIMER_BROKER_TLS_CA": "",
        "TIMER_BROKER_TLS_CERT": "",
        "TIMER_BROKER_TLS_KEY": "",
        "TIMER_JETSTREAM_DOMAIN": "",
        "TIMER_SUBJECT_PREFIX": "timer",
        "TIMER_STREAM_REPLICAS": "1",
        "TIMER_ACK_WAIT": "10000",
        "TIMER_REQUEST_RATE": "200",
        "TIMER_REQUEST_BURST": "500",
        "TIMER_RETENTION": "30d",
        "TIMER_HTTP_HOST": "127.0.0.1",
        "TIMER_HTTP_PORT": "8080",
        "TIMER_METRICS_TENANTS": "0",
        "TIMER_METRICS_ORIGINS": "0",
        "TIMER_LOG_LEVEL": "info",
        "TIMER_LOG_FORMAT": "auto",
    }


def test_every_setting_says_what_is_allowed() -> None:
    unsaid = [
        name
        for name, field in Settings.model_fields.items()
        if not isinstance(field.json_schema_extra, dict) or not field.json_schema_extra["allowed"]
    ]

    assert unsaid == []


def test_the_environment_sets_every_kind_of_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load(
        monkeypatch,
        TIMER_POLLING_INTERVAL="10",
        TIMER_BATCH_SIZE="10000",
        TIMER_PRECISE_WAKEUP="false",
        TIMER_DB_PATH="data/timers.db",
        TIMER_BROKER_URL="nats://a:4222, tls://b ",
        TIMER_JETSTREAM_DOMAIN="hub-1",
        TIMER_SUBJECT_PREFIX="eu.timer",
        TIMER_LOG_LEVEL="error",
        TIMER_LOG_FORMAT="console",
    )

    assert settings == Settings(
        polling_interval=10,
        batch_size=10_000,
        precise_wakeup=False,
        db_path=Path("data/timers.db"),
        broker_url="nats://a:4222,tls://b",
        jetstream_domain="hub-1",
        subject_prefix="eu.timer",
        log_level="error",
        log_format="console",
    )


def test_a_variable_is_known_in_any_case(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load(monkeypatch, timer_polling_interval="250").polling_interval == 250


def test_an_empty_variable_is_as_good_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load(monkeypatch, TIMER_POLLING_INTERVAL="", TIMER_BROKER_TOKEN="", TIMER_DB_PATH="")

    assert settings == Settings()


def test_a_dotenv_file_is_read(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("# ours\nTIMER_POLLING_INTERVAL=250\nOTHER_SERVICE=1\n")

    assert load_settings().polling_interval == 250


def test_the_environment_wins_over_the_dotenv_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("TIMER_POLLING_INTERVAL=250\nTIMER_BATCH_SIZE=7\n")

    settings = load(monkeypatch, TIMER_POLLING_INTERVAL="500")

    assert (settings.polling_interval, settings.batch_size) == (500, 7)


def test_an_argument_wins_over_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIMER_BROKER_URL", "nats://a")

    assert load_settings(broker_url="nats://b").broker_url == "nats://b"


@pytest.mark.parametrize(
    "url",
    ["nats://a", "tls://a:4443", "ws://a", "wss://a:443", "nats://user:pass@a:4222", "nats://[::1]:4222"],
)
def test_every_kind_of_server_is_accepted(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    assert load(monkeypatch, TIMER_BROKER_URL=url).broker_url == url


# Wrong values

SERVERS = "none, or one or more of nats://host:port, tls://host:port, ws://… or wss://…, separated by commas"
POLLING = "a duration from 10ms to 1h such as 5s, or a whole number of milliseconds"
ACK_WAIT = "a duration from 1s to 1h such as 10s, or a whole number of milliseconds"
PAGE_URL = "an http:// or https:// URL such as https://timers.example.com/ops, without query"
PROXIES = "a list of addresses and ranges such as 10.0.0.7,10.1.0.0/16, separated by commas"
GROUPS = (
    "a list such as ops=admin,support=viewer:acme+globex of viewer, operator and admin, separated by commas"
)
READABLE = "a file that this user may read"
WRONG = [
    ("TIMER_POLLING_INTERVAL", "9ms", POLLING),
    ("TIMER_POLLING_INTERVAL", "61m", POLLING),
    ("TIMER_POLLING_INTERVAL", "10.5ms", POLLING),
    ("TIMER_POLLING_INTERVAL", "5 s", POLLING),
    ("TIMER_POLLING_INTERVAL", "often", POLLING),
    ("TIMER_POLLING_INTERVAL", "9", POLLING),
    ("TIMER_POLLING_INTERVAL", "3600001", POLLING),
    ("TIMER_POLLING_INTERVAL", "1.5", POLLING),
    ("TIMER_POLLING_INTERVAL", "-1", POLLING),
    ("TIMER_BATCH_SIZE", "0", "a whole number from 1 to 10000"),
    ("TIMER_BATCH_SIZE", "10001", "a whole number from 1 to 10000"),
    ("TIMER_PRECISE_WAKEUP", "maybe", "true or false"),
    ("TIMER_BROKER_URL", "localhost:4222", SERVERS),
    ("TIMER_BROKER_URL", "http://localhost", SERVERS),
    ("TIMER_BROKER_URL", "nats://a,,nats://b", SERVERS),
    ("TIMER_BROKER_URL", "nats://a,b", SERVERS),
    ("TIMER_BROKER_URL", "ws://", SERVERS),
    ("TIMER_BROKER_URL", "nats://", SERVERS),
    ("TIMER_BROKER_URL", "nats://:4222", SERVERS),
    ("TIMER_BROKER_URL", "nats://host:port", SERVERS),
    ("TIMER_BROKER_URL", "nats://host:99999", SERVERS),
    ("TIMER_BROKER_URL", "nats://a,ws://b", SERVERS),
    ("TIMER_CATCH_UP", "99ms", "a duration from 100ms to 1h such as 30s, or 0"),
    ("TIMER_CATCH_UP", "61m", "a duration from 100ms to 1h such as 30s, or 0"),
    ("TIMER_API_MIN_LEAD", "61m", "a duration from 1ms to 1h such as 5s, or 0"),
    ("TIMER_MAX_CLOCK_STEP", "999ms", "a duration from 1s to 36500d such as 1h, or off"),
    ("TIMER_MAX_CLOCK_STEP", "36501d", "a duration from 1s to 36500d such as 1h, or off"),
    ("TIMER_RETENTION", "59s", "a duration from 1m to 36500d such as 30d or 12h, or off"),
    ("TIMER_RETENTION", "36501d", "a duration from 1m to 36500d such as 30d or 12h, or off"),
    ("TIMER_BROKER_CREDS", "/no/such/file", f"{READABLE}, with a JWT and a seed"),
    ("TIMER_BROKER_NKEY", "/no/such/file", f"{READABLE}, with an NKey seed"),
    ("TIMER_BROKER_NKEY", "/", f"{READABLE}, with an NKey seed"),
    ("TIMER_BROKER_TLS_CA", "/no/such/file", f"{READABLE}, with PEM certificates"),
    ("TIMER_BROKER_TLS_CERT", "/no/such/file", READABLE),
    ("TIMER_BROKER_TLS_KEY", "/no/such/file", READABLE),
    ("TIMER_JETSTREAM_DOMAIN", "a.b", "letters, digits, _ and -"),
    ("TIMER_JETSTREAM_DOMAIN", "a\n", "letters, digits, _ and -"),
    ("TIMER_SUBJECT_PREFIX", "a..b", "tokens of letters, digits, _ and -, separated by dots"),
    ("TIMER_SUBJECT_PREFIX", "a.>", "tokens of letters, digits, _ and -, separated by dots"),
    ("TIMER_SUBJECT_PREFIX", "a b", "tokens of letters, digits, _ and -, separated by dots"),
    ("TIMER_SUBJECT_PREFIX", ".a", "tokens of letters, digits, _ and -, separated by dots"),
    ("TIMER_SUBJECT_PREFIX", "a\n", "tokens of letters, digits, _ and -, separated by dots"),
    ("TIMER_STREAM_REPLICAS", "0", "a whole number from 1 to 5"),
    ("TIMER_STREAM_REPLICAS", "6", "a whole number from 1 to 5"),
    ("TIMER_ACK_WAIT", "999", ACK_WAIT),
    ("TIMER_ACK_WAIT", "3600001", ACK_WAIT),
    ("TIMER_ACK_WAIT", "999ms", ACK_WAIT),
    ("TIMER_PAGE_URL", "timers.example.com", PAGE_URL),
    ("TIMER_PAGE_URL", "ftp://timers.example.com", PAGE_URL),
    ("TIMER_PAGE_URL", "https://timers.example.com:0", PAGE_URL),
    ("TIMER_PAGE_URL", "https://timers.example.com/?a=b", PAGE_URL),
    ("TIMER_PAGE_URL", "https://user@timers.example.com", PAGE_URL),
    ("TIMER_PAGE_TRUSTED_PROXIES", "10.0.0.300", PROXIES),
    ("TIMER_PAGE_TRUSTED_PROXIES", "10.0.0.7/8", PROXIES),
    ("TIMER_PAGE_GROUPS", "ops", GROUPS),
    ("TIMER_PAGE_GROUPS", "ops=owner", GROUPS),
    ("TIMER_PAGE_GROUPS", "=admin", GROUPS),
    ("TIMER_PAGE_GROUPS", "support=viewer:acme+", GROUPS),
    ("TIMER_CALLBACK_PROXY", "https://proxy:3128", "http://host:port, without user name and password"),
    ("TIMER_LOG_LEVEL", "loud", "one of debug, info, warning, error"),
    ("TIMER_LOG_FORMAT", "xml", "one of auto, json, console"),
]


@pytest.mark.parametrize(("name", "value", "allowed"), WRONG, ids=[f"{n}={v!r}" for n, v, _ in WRONG])
def test_a_wrong_value_is_named_with_what_is_allowed(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, allowed: str
) -> None:
    assert complaint(monkeypatch, **{name: value}) == f"{name}={value!r}: must be {allowed}"


SECRET_WRONG = [
    ("TIMER_API_KEY", "too short", "at least 32 printable characters without spaces"),
    ("TIMER_PAGE_KEY", "with spaces " * 4, "at least 32 printable characters without spaces"),
    ("TIMER_PAGE_SECRET", "ä" * 32, "at least 32 printable characters without spaces"),
    ("TIMER_CALLBACK_PROXY_LOGIN", "nobody", "user:password, printable ASCII"),
]


@pytest.mark.parametrize(("name", "value", "allowed"), SECRET_WRONG)
def test_a_wrong_secret_is_named_and_not_shown(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, allowed: str
) -> None:
    assert complaint(monkeypatch, **{name: value}) == f"{name}=*****: must be {allowed}"


def test_groups_of_the_page_have_a_role_and_tenants_or_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = " ops=admin, support=viewer:acme+globex"
    settings = load(
        monkeypatch,
        TIMER_PAGE_GROUPS=groups,
        TIMER_PAGE_TRUSTED_PROXIES="10.0.0.7, 10.1.0.0/16",
        TIMER_PAGE_URL="https://timers.example.com/ops",
    )

    assert settings.page_groups is not None
    assert read_groups(settings.page_groups) == [
        ("ops", "admin", []),
        ("support", "viewer", ["acme", "globex"]),
    ]
    assert settings.page_trusted_proxies is not None
    assert [str(each) for each in read_networks(settings.page_trusted_proxies)] == [
        "10.0.0.7/32",
        "10.1.0.0/16",
    ]


def test_without_a_broker_there_must_be_another_way_in(monkeypatch: pytest.MonkeyPatch) -> None:
    assert complaint(monkeypatch, TIMER_BROKER_URL="none") == (
        "TIMER_BROKER_URL=none: TIMER_API_PORT must be set, or there is no way in"
    )


@pytest.mark.parametrize("present", ["BEGIN NATS USER JWT", "BEGIN USER NKEY SEED"])
def test_half_of_the_credentials_are_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, present: str
) -> None:
    (tmp_path / "half.creds").write_text(present)

    assert complaint(monkeypatch, TIMER_BROKER_CREDS="half.creds") == (
        f"TIMER_BROKER_CREDS='half.creds': must be {READABLE}, with a JWT and a seed"
    )


@pytest.mark.parametrize(("value", "seconds"), [("0", 0.0), ("100ms", 0.1), ("1h", 3600.0)])
def test_due_timers_wait_for_commands_as_long_as_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, value: str, seconds: float
) -> None:
    assert load(monkeypatch, TIMER_CATCH_UP=value).catch_up_span == timedelta(seconds=seconds)


@pytest.mark.parametrize(("value", "seconds"), [("0", 0.0), ("5s", 5.0), ("1h", 3600.0)])
def test_a_due_time_of_the_compact_dialect_is_as_far_ahead_as_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, value: str, seconds: float
) -> None:
    assert load(monkeypatch, TIMER_API_MIN_LEAD=value).api_min_lead_span == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("value", "milliseconds"),
    [("5000", 5000), ("10", 10), ("5s", 5000), ("250ms", 250), ("1h", 3_600_000), ("1m1.5s", 61_500)],
)
def test_an_interval_is_a_duration_or_a_bare_number_of_milliseconds(
    monkeypatch: pytest.MonkeyPatch, value: str, milliseconds: int
) -> None:
    assert load(monkeypatch, TIMER_POLLING_INTERVAL=value).polling_interval == milliseconds


def test_the_wait_for_an_acknowledgement_is_a_duration_or_a_bare_number_of_milliseconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert load(monkeypatch, TIMER_ACK_WAIT="2s") == load(monkeypatch, TIMER_ACK_WAIT="2000")


def test_every_wrong_value_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert complaint(monkeypatch, TIMER_BATCH_SIZE="many", TIMER_LOG_LEVEL="loud") == (
        "TIMER_BATCH_SIZE='many': must be a whole number from 1 to 10000; "
        "TIMER_LOG_LEVEL='loud': must be one of debug, info, warning, error"
    )


def test_a_wrong_value_in_the_dotenv_file_is_named_too(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("TIMER_BATCH_SIZE=many\n")

    with pytest.raises(InvalidConfiguration) as caught:
        load_settings()

    assert str(caught.value) == "TIMER_BATCH_SIZE='many': must be a whole number from 1 to 10000"


def test_a_dotenv_file_that_is_no_text_is_a_wrong_configuration(tmp_path: Path) -> None:
    (tmp_path / ".env").write_bytes(b"TIMER_BATCH_SIZE=\xff\n")

    with pytest.raises(InvalidConfiguration, match=r"\.env"):
        load_settings()


@pytest.mark.parametrize(
    ("variables", "text"),
    [
        ({"TIMER_BROKER_USER": "u"}, "TIMER_BROKER_USER and TIMER_BROKER_PASSWORD must be set together"),
        ({"TIMER_BROKER_PASSWORD": "p"}, "TIMER_BROKER_USER and TIMER_BROKER_PASSWORD must be set together"),
        (
            {"TIMER_BROKER_USER": "u", "TIMER_BROKER_PASSWORD": "p", "TIMER_BROKER_TOKEN": "t"},
            "only one of TIMER_BROKER_USER, TIMER_BROKER_TOKEN may be set",
        ),
        (
            {"TIMER_BROKER_CREDS": "a.file", "TIMER_BROKER_TOKEN": "t"},
            "only one of TIMER_BROKER_TOKEN, TIMER_BROKER_CREDS may be set",
        ),
        (
            {"TIMER_BROKER_TLS_CERT": "a.file"},
            "TIMER_BROKER_TLS_CERT and TIMER_BROKER_TLS_KEY must be set together",
        ),
        (
            {"TIMER_BROKER_TLS_KEY": "a.file"},
            "TIMER_BROKER_TLS_CERT and TIMER_BROKER_TLS_KEY must be set together",
        ),
    ],
)
def test_settings_that_do_not_go_together_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variables: dict[str, str], text: str
) -> None:
    (tmp_path / "a.file").write_text("BEGIN NATS USER JWT and BEGIN USER NKEY SEED")
    (tmp_path / "seed.file").write_bytes(nkeys.encode_seed(bytes(32), nkeys.PREFIX_BYTE_USER))

    assert complaint(monkeypatch, **variables) == text


# Secrets

SECRET = "hunter2"


def test_secrets_are_masked_where_settings_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load(
        monkeypatch,
        TIMER_BROKER_URL=f"nats://user:{SECRET}@a:4222,nats://b,nats://{SECRET}@c",
        TIMER_BROKER_USER="service",
        TIMER_BROKER_PASSWORD=SECRET,
    )

    shown = settings.shown()

    assert shown["TIMER_BROKER_URL"] == "nats://*****@a:4222,nats://b,nats://*****@c"
    assert (shown["TIMER_BROKER_USER"], shown["TIMER_BROKER_PASSWORD"]) == ("service", "*****")
    assert SECRET not in str(shown)


def test_a_token_is_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load(monkeypatch, TIMER_BROKER_TOKEN=SECRET)

    assert settings.shown()["TIMER_BROKER_TOKEN"] == "*****"
    assert SECRET not in repr(settings)


@pytest.mark.parametrize(
    "variables",
    [
        {"TIMER_BROKER_URL": f"http://user:{SECRET}@host"},
        {"TIMER_BROKER_URL": f"nats://user:{SECRET}@host,wrong"},
        {"TIMER_BROKER_PASSWORD": SECRET},
        {"TIMER_BROKER_USER": "u", "TIMER_BROKER_PASSWORD": SECRET, "TIMER_BROKER_TOKEN": SECRET},
    ],
)
def test_no_complaint_shows_a_secret(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    text = complaint(monkeypatch, **variables)

    assert SECRET not in text
    assert "TIMER_BROKER_" in text


def test_a_secret_of_the_wrong_kind_is_not_shown() -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        load_settings(broker_token=[SECRET])

    assert str(caught.value) == "TIMER_BROKER_TOKEN=*****: must be a string"


# The connection


def test_servers_alone_need_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load(monkeypatch, TIMER_BROKER_URL="nats://a,nats://b")

    assert nats_connect_options(settings) == {"servers": ["nats://a", "nats://b"], "inbox_prefix": "_INBOX"}


@pytest.mark.parametrize(
    ("variables", "options"),
    [
        (
            {"TIMER_BROKER_USER": "u", "TIMER_BROKER_PASSWORD": SECRET},
            {"user": "u", "password": SECRET},
        ),
        ({"TIMER_BROKER_TOKEN": SECRET}, {"token": SECRET}),
        ({"TIMER_BROKER_CREDS": "a.file"}, {"user_credentials": "a.file"}),
        ({"TIMER_BROKER_NKEY": "seed.file"}, {"nkeys_seed": "seed.file"}),
    ],
)
def test_each_way_to_prove_who_we_are_reaches_the_connection(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variables: dict[str, str], options: dict[str, str]
) -> None:
    (tmp_path / "a.file").write_text("BEGIN NATS USER JWT and BEGIN USER NKEY SEED")
    (tmp_path / "seed.file").write_bytes(nkeys.encode_seed(bytes(32), nkeys.PREFIX_BYTE_USER))

    settings = load(monkeypatch, **variables)

    assert nats_connect_options(settings) == {
        "servers": ["nats://localhost:4222"],
        "inbox_prefix": "_INBOX",
        **options,
    }


# Made for this test alone; it opens nothing.
CERTIFICATE = """\
-----BEGIN CERTIFICATE-----
MIIBkjCCATegAwIBAgIUbNwFGwQ0wO/OgbxBE6b+0oE4J/kwCgYIKoZIzj0EAwIw
HTEbMBkGA1UEAwwSdGltZXItc2VydmljZS10ZXN0MCAXDTI2MTExNjA3NTAxNFoY
DzIxMjYxMDIzMDc1MDE0WjAdMRswGQYDVQQDDBJ0aW1lci1zZXJ2aWNlLXRlc3Qw
WTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAATUqXIKPrhhGV7I/FaANU1HvsQ4pdsg
zGMIgwPB+aq8heCTUZ/7lWOhQRYdEdIMAFngInFWfznquZN6dcaakjHJo1MwUTAd
BgNVHQ4EFgQUQkDo8NY9IfRAG8NYxtrNXGA6AbIwHwYDVR0jBBgwFoAUQkDo8NY9
IfRAG8NYxtrNXGA6AbIwDwYDVR0TAQH/BAUwAwEB/zAKBggqhkjOPQQDAgNJADBG
AiEAqO4VG49amXMNli1DX1PIj+ICaAgdvOsilMUVi7hz5lACIQCrY0gOvPtZdEC5
sWsFBHN2qagVPaeJWfvNqopMBWoOdw==
-----END CERTIFICATE-----
"""
KEY = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgxdat7aDLYrqNc87u
MWixmQdea94Rg0sAU1Gke1Jv+4ShRANCAATUqXIKPrhhGV7I/FaANU1HvsQ4pdsg
zGMIgwPB+aq8heCTUZ/7lWOhQRYdEdIMAFngInFWfznquZN6dcaakjHJ
-----END PRIVATE KEY-----
"""


def test_a_ca_of_ones_own_replaces_the_systems(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text(CERTIFICATE)

    context = nats_connect_options(load(monkeypatch, TIMER_BROKER_TLS_CA="ca.pem"))["tls"]

    assert isinstance(context, ssl.SSLContext)
    assert context.cert_store_stats()["x509"] == 1
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)


def test_a_client_certificate_is_taken_with_its_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "cert.pem").write_text(CERTIFICATE)
    (tmp_path / "key.pem").write_text(KEY)

    options = nats_connect_options(
        load(monkeypatch, TIMER_BROKER_TLS_CERT="cert.pem", TIMER_BROKER_TLS_KEY="key.pem")
    )

    assert isinstance(options["tls"], ssl.SSLContext)


def test_a_ca_that_is_none_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "a.file").write_text("not a certificate")

    with pytest.raises(
        InvalidConfiguration, match=r"TIMER_BROKER_TLS_CA='a\.file': must be .* PEM certificates"
    ):
        load(monkeypatch, TIMER_BROKER_TLS_CA="a.file")


def test_a_certificate_and_key_that_are_none_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "a.file").write_text("not a certificate")
    settings = load(monkeypatch, TIMER_BROKER_TLS_CERT="a.file", TIMER_BROKER_TLS_KEY="a.file")

    with pytest.raises(InvalidConfiguration) as caught:
        nats_connect_options(settings)

    assert str(caught.value).startswith(
        "TIMER_BROKER_TLS_CA, _CERT and _KEY must be PEM files that belong together: "
    )


# Misspelt variables


def test_a_misspelt_variable_is_answered_with_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIMER_POLING_INTERVAL", "1")
    monkeypatch.setenv("TIMER_ZZZZZZ", "1")
    monkeypatch.setenv("TIMERS", "1")

    assert unknown_variables() == [
        "TIMER_POLING_INTERVAL is not a setting; did you mean TIMER_POLLING_INTERVAL?",
        "TIMER_ZZZZZZ is not a setting",
    ]


def test_known_variables_bring_no_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in Settings.model_fields:
        monkeypatch.setenv(env_name(name), "1")
    monkeypatch.setenv("timer_batch_size", "1")

    assert unknown_variables() == []


def test_a_long_text_is_refused_as_a_duration_without_a_search() -> None:
    with pytest.raises(ValueError, match="is too long a duration"):
        parse_duration("9" * 1_000_000)


# Where the timers are


@pytest.mark.parametrize(
    ("url", "path"),
    [("sqlite:///timers.db", "timers.db"), ("sqlite:////var/lib/timers.db", "/var/lib/timers.db")],
)
def test_the_address_of_a_file_takes_the_place_of_its_path(
    monkeypatch: pytest.MonkeyPatch, url: str, path: str
) -> None:
    settings = load(monkeypatch, TIMER_STORE_URL=url, TIMER_DB_PATH="other.db")

    assert (settings.sqlite_path, settings.postgres_url) == (Path(path), None)
    assert settings.store_name == path


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://timer:hidden@db-1:5432/timers", "postgresql://*****@db-1:5432/timers"),
        ("postgres://db-1/timers?user=timer&password=hidden", "postgres://db-1/timers"),
    ],
)
def test_the_address_of_a_database_is_shown_without_its_password(
    monkeypatch: pytest.MonkeyPatch, url: str, shown: str
) -> None:
    settings = load(monkeypatch, TIMER_STORE_URL=url)

    assert settings.postgres_url == url
    assert settings.store_name == shown
    assert settings.shown()["TIMER_STORE_URL"] == shown
    assert "hidden" not in repr(settings)


@pytest.mark.parametrize(
    "url", ["timers.db", "sqlite:///", "sqlite://timers.db", "mysql://u:secret@db/timers", "postgresql://"]
)
def test_what_is_no_address_of_a_store_is_refused_without_showing_it(
    monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    assert complaint(monkeypatch, TIMER_STORE_URL=url) == (
        "TIMER_STORE_URL=*****: must be sqlite:///path or postgresql://user:password@host:port/database, "
        "in a password / as %2F, ? as %3F, # as %23"
    )


def test_a_retention_that_a_lost_acknowledgement_can_outlive_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(InvalidConfiguration) as refused:
        load(monkeypatch, TIMER_RETENTION="1m", TIMER_ACK_WAIT="3600000")

    assert str(refused.value) == (
        "TIMER_RETENTION=1m is too short for TIMER_ACK_WAIT=3600000: a command whose acknowledgement is lost "
        "would revive a deleted timer; it must be off or at least 36120s (10 times TIMER_ACK_WAIT and the "
        "broker's duplicate window of 2m)"
    )


@pytest.mark.parametrize(
    ("retention", "ack_wait", "allowed"),
    [("220s", "10000", True), ("219s", "10000", False), ("1m", "1000", False), ("off", "3600000", True)],
)
def test_the_shortest_retention_is_ten_times_the_wait_for_an_acknowledgement_and_the_duplicate_window(
    monkeypatch: pytest.MonkeyPatch, retention: str, ack_wait: str, allowed: bool
) -> None:
    with nullcontext() if allowed else pytest.raises(InvalidConfiguration):
        load(monkeypatch, TIMER_RETENTION=retention, TIMER_ACK_WAIT=ack_wait)


# Without a broker


def test_a_service_without_a_broker_asks_for_nothing_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load(monkeypatch, TIMER_BROKER_URL="none", TIMER_API_PORT="3000")

    assert not settings.has_broker
    with pytest.raises(InvalidConfiguration, match="there is no broker to talk to"):
        nats_connect_options(settings)


def test_a_service_without_a_broker_refuses_what_says_how_to_reach_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert "TIMER_BROKER_TOKEN must not be set" in complaint(
        monkeypatch, TIMER_BROKER_URL="none", TIMER_BROKER_TOKEN="secret", TIMER_API_PORT="3000"
    )
