"""The settings: names, defaults, meanings and what each may be."""

from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Literal, Self

from pydantic import SecretStr, model_validator
from pydantic_settings import SettingsConfigDict

from timer_service.addresses import MASK, masked
from timer_service.config import checks
from timer_service.config.api import ApiSettings
from timer_service.config.callbacks import CallbackSettings
from timer_service.config.checks import MAX_RETENTION_DAYS, env_name
from timer_service.config.durations import parse_duration
from timer_service.config.fields import A_FILE as _A_FILE
from timer_service.config.fields import setting as _setting
from timer_service.config.page import PageSettings

_OF_A_BROKER: Final = (
    "broker_user",
    "broker_password",
    "broker_token",
    "broker_creds",
    "broker_nkey",
    "broker_tls_ca",
    "broker_tls_cert",
    "broker_tls_key",
    "jetstream_domain",
)
"""What only says how to reach a broker."""


class Settings(ApiSettings, PageSettings, CallbackSettings):
    """The service's settings; each is the environment variable TIMER_<NAME>."""

    model_config = SettingsConfigDict(
        env_prefix=checks.ENV_PREFIX, env_file=".env", env_ignore_empty=True, extra="ignore", frozen=True
    )

    polling_interval: checks.PollingInterval = _setting(
        5_000,
        "Longest time between polls; a bare number counts milliseconds",
        "a duration from 10ms to 1h such as 5s, or a whole number of milliseconds",
    )
    batch_size: int = _setting(
        2_000,
        "Most commands or timers in one transaction",
        "a whole number from 1 to 10000",
        ge=1,
        le=10_000,
    )
    precise_wakeup: bool = _setting(
        default=True,
        description="Wake when the next timer is due; if false, timers fire at the next poll",
        allowed="true or false",
    )
    catch_up: checks.CatchUp = _setting(
        "30s",
        "Longest time that due timers wait for commands of their tenant that the broker already has; "
        "0 disables it",
        "a duration from 100ms to 1h such as 30s, or 0",
    )
    max_clock_step: checks.ClockStep = _setting(
        "1h",
        "A larger leap of the wall clock is not followed until `timer-service clock accept` confirms it",
        f"a duration from 1s to {MAX_RETENTION_DAYS}d such as 1h, or off",
    )
    db_path: Path = _setting(
        Path("./event_service.db"), "The SQLite file that holds the timers", "the path of a file"
    )
    allow_new_store: bool = _setting(
        default=False,
        description="Start with an empty SQLite file even though commands were acknowledged before",
        allowed="true or false",
    )
    store_url: checks.StoreUrl | None = _setting(
        None,
        "The store, instead of TIMER_DB_PATH: a SQLite file, or PostgreSQL for several instances",
        "sqlite:///path or postgresql://user:password@host:port/database, "
        "in a password / as %2F, ? as %3F, # as %23",
    )
    store_statement_cache: int = _setting(
        100,
        "Prepared statements kept per PostgreSQL connection; 0 behind a pooler that does not support them",
        "a whole number from 0 to 1000",
        ge=0,
        le=1_000,
    )
    broker_url: checks.ServerList = _setting(
        "nats://localhost:4222",
        "The NATS servers, separated by commas; `none` runs without a broker",
        "none, or one or more of nats://host:port, tls://host:port, ws://… or wss://…, separated by commas",
    )
    broker_user: str | None = _setting(None, "User name", "a string; together with TIMER_BROKER_PASSWORD")
    broker_password: SecretStr | None = _setting(
        None, "Password", "a string; together with TIMER_BROKER_USER"
    )
    broker_token: SecretStr | None = _setting(None, "Token", "a string")
    broker_creds: checks.CredentialsFile | None = _setting(
        None, "Credentials file (JWT and seed)", f"{_A_FILE}, with a JWT and a seed"
    )
    broker_nkey: checks.NkeySeedFile | None = _setting(
        None, "File with the NKey seed", f"{_A_FILE}, with an NKey seed"
    )
    broker_inbox_prefix: str = _setting(
        "_INBOX",
        "First tokens of the subjects on which answers arrive; permissions may give each user its own",
        "_INBOX, or _INBOX and further tokens of letters, digits, _ and -, such as _INBOX.service",
        pattern=r"^_INBOX[A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*$",
    )
    broker_tls_ca: checks.CertificatesFile | None = _setting(
        None, "CA certificates to trust instead of the system's", f"{_A_FILE}, with PEM certificates"
    )
    broker_tls_cert: checks.ReadableFile | None = _setting(None, "Client certificate", _A_FILE)
    broker_tls_key: checks.ReadableFile | None = _setting(None, "Key of the client certificate", _A_FILE)
    jetstream_domain: str | None = _setting(
        None, "JetStream domain", "letters, digits, _ and -", pattern=r"^[A-Za-z0-9_-]+$"
    )
    subject_prefix: str = _setting(
        "timer",
        "First token of every subject; the streams are named after it",
        "tokens of letters, digits, _ and -, separated by dots",
        pattern=r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$",
    )
    stream_replicas: int = _setting(
        1, "Replicas of the streams that the service creates", "a whole number from 1 to 5", ge=1, le=5
    )
    ack_wait: checks.AckWait = _setting(
        10_000,
        "How long the broker waits before it redelivers a command; a bare number counts milliseconds",
        "a duration from 1s to 1h such as 10s, or a whole number of milliseconds",
    )
    request_rate: int = _setting(
        200,
        "API requests per second and tenant; more are answered with 429; 0 sets no limit",
        "a whole number from 0 to 1000000",
        ge=0,
        le=1_000_000,
    )
    request_burst: int = _setting(
        500,
        "API requests that a tenant may send at once before the rate applies",
        "a whole number from 1 to 1000000",
        ge=1,
        le=1_000_000,
    )
    retention: checks.Retention = _setting(
        "30d",
        "How long reached, cancelled and expired timers are kept",
        f"a duration from 1m to {MAX_RETENTION_DAYS}d such as 30d or 12h, or off",
    )
    http_host: str = _setting("127.0.0.1", "Address for health and metrics", "a host name or address")
    http_port: int = _setting(
        8080, "Port for health and metrics; 0 disables them", "a port from 0 to 65535", ge=0, le=65_535
    )
    metrics_tenants: int = _setting(
        0,
        "How many tenants get a lateness histogram of their own; the others share one",
        "a whole number from 0 to 1000",
        ge=0,
        le=1_000,
    )
    log_level: Literal["debug", "info", "warning", "error"] = _setting(
        "info", "Minimum log level", "one of debug, info, warning, error"
    )
    log_format: Literal["auto", "json", "console"] = _setting(
        "auto", "Log format; auto is console on a terminal and JSON elsewhere", "one of auto, json, console"
    )

    @model_validator(mode="after")
    def _belong_together(self) -> Self:
        checks.check_set_together(self, "broker_user", "broker_password")
        checks.check_set_together(self, "broker_tls_cert", "broker_tls_key")
        checks.check_set_together(self, "page_trusted_proxies", "page_groups")
        checks.check_at_most_one(self, "broker_user", "broker_token", "broker_creds", "broker_nkey")
        checks.check_retention(self.retention, self.ack_wait)
        if not self.has_broker:
            checks.check_unset(self, *_OF_A_BROKER, because=f"{env_name('broker_url')}={checks.NO_BROKER}")
            if not self.api_port:
                raise ValueError("TIMER_BROKER_URL=none: TIMER_API_PORT must be set, or there is no way in")
        return self

    @property
    def has_broker(self) -> bool:
        """Whether there is a broker at all."""
        return self.broker_url != checks.NO_BROKER

    @property
    def postgres_url(self) -> str | None:
        """The PostgreSQL database, if the store is one."""
        text = self.store_url.get_secret_value() if self.store_url else ""
        return text if text.startswith("postgres") else None

    @property
    def sqlite_path(self) -> Path:
        """The SQLite file, if the store is one."""
        text = self.store_url.get_secret_value() if self.store_url else ""
        return Path(text.removeprefix("sqlite:///")) if text.startswith("sqlite") else self.db_path

    @property
    def store_name(self) -> str:
        """Where the timers are, as a person may see it."""
        return (
            str(self.sqlite_path) if self.postgres_url is None else shown_value("store_url", self.store_url)
        )

    @property
    def retention_span(self) -> timedelta | None:
        """How long ended timers are kept; None for forever."""
        return None if self.retention == "off" else parse_duration(self.retention)

    @property
    def catch_up_span(self) -> timedelta:
        """How long due timers wait for commands at most; zero if they do not wait."""
        return timedelta() if self.catch_up == "0" else parse_duration(self.catch_up)

    @property
    def max_clock_step_span(self) -> timedelta | None:
        """How far the wall clock may leap; None for any distance."""
        return None if self.max_clock_step == "off" else parse_duration(self.max_clock_step)

    def shown(self) -> dict[str, str]:
        """Return every variable with its value as a person may see it, secrets masked."""
        return {env_name(name): shown_value(name, getattr(self, name)) for name in type(self).model_fields}


def shown_value(name: str, value: Any) -> str:
    """Return a value as a person may see it."""
    if value is None:
        return ""
    if name == "store_url":
        url = value.get_secret_value()
        return url if url.startswith("sqlite:") else masked(url)
    if isinstance(value, SecretStr):
        return MASK
    # Without an @ there is nothing to hide, and a wrong address is shown as it is.
    if name == "broker_url" and "@" in str(value):
        return ",".join(masked(url.strip()) for url in str(value).split(","))
    return str(value).lower() if isinstance(value, bool) else str(value)
