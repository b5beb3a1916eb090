"""Every setting, from the environment or a `.env` file."""

import difflib
import os
import re
import ssl
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

import nkeys  # type: ignore[import-untyped]
from dotenv import dotenv_values
from pydantic import AfterValidator, Field, SecretStr, ValidationError, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from timer_service.addresses import MASK, is_clear, masked
from timer_service.domain.errors import InvalidConfiguration

ENV_PREFIX = "TIMER_"
_SCHEMES = ("nats", "tls", "ws", "wss")
_STORES = ("sqlite", "postgresql", "postgres")
MAX_RETENTION_DAYS = 36_500
_ACK_WAITS_KEPT = 10
"""So many acknowledgements in a row may be lost before an ended timer is forgotten."""
_DUPLICATE_WINDOW = timedelta(minutes=2)
"""For so long the broker drops a message that is published again."""
_LONGEST_DURATION = 64
_DURATION_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)")
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_A_FILE = "a file that this user may read"


def _readable_file(path: Path) -> Path:
    if not path.is_file() or not os.access(path, os.R_OK):
        raise ValueError("no such file")
    return path


def _nkey_seed(path: Path) -> Path:
    try:
        nkeys.from_seed(bytearray(_readable_file(path).read_bytes().strip()))
    except Exception as error:  # nkeys raises what it likes
        raise ValueError("no seed") from error
    return path


def _credentials(path: Path) -> Path:
    text = _readable_file(path).read_bytes()
    if b"BEGIN NATS USER JWT" not in text or b"BEGIN USER NKEY SEED" not in text:
        raise ValueError("no credentials")
    return path


def _certificates(path: Path) -> Path:
    try:
        ssl.create_default_context(cafile=_readable_file(path))
    except OSError as error:  # An SSLError is one.
        raise ValueError("no certificates") from error
    return path


def _server_list(text: str) -> str:
    servers = [part.strip() for part in text.split(",")]
    for server in servers:
        url = urlsplit(server)
        # Reading the port raises ValueError where it is none.
        if url.scheme not in _SCHEMES or not url.hostname or url.port == 0 or not is_clear(server):
            raise ValueError("not a list of servers")
    if len({server.startswith("ws") for server in servers}) > 1:
        raise ValueError("not of one kind")
    return ",".join(servers)


def _store_url(url: SecretStr) -> SecretStr:
    scheme, _, rest = url.get_secret_value().partition("://")
    # A file has no host: the third slash ends its place, the path comes after it.
    if scheme not in _STORES or not rest or (scheme == "sqlite" and (rest[0] != "/" or rest == "/")):
        raise ValueError("not the address of a store")
    if scheme != "sqlite" and not is_clear(url.get_secret_value()):
        raise ValueError("not a clear address")
    return url


def _clock_step(text: str) -> str:
    if text != "off" and not timedelta(seconds=1) <= parse_duration(text) <= timedelta(
        days=MAX_RETENTION_DAYS
    ):
        raise ValueError("out of range")
    return text


def _catch_up(text: str) -> str:
    if text != "0" and not timedelta(milliseconds=100) <= parse_duration(text) <= timedelta(hours=1):
        raise ValueError("out of range")
    return text


def _retention(text: str) -> str:
    if text != "off" and not timedelta(minutes=1) <= parse_duration(text) <= timedelta(
        days=MAX_RETENTION_DAYS
    ):
        raise ValueError("out of range")
    return text


def parse_duration(text: str) -> timedelta:
    """Read a duration such as 10s, 1h30m or 500ms; raise ValueError otherwise."""
    if len(text) > _LONGEST_DURATION:  # The search below takes the square of the length.
        raise ValueError(f"is too long a duration (got {text[:_LONGEST_DURATION]!r}…)")
    parts = _DURATION_PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"must be a duration such as 10s, 1h30m or 500ms (got {text!r})")
    try:
        return timedelta(seconds=sum(float(number) * _SECONDS[unit] for number, unit in parts))
    except OverflowError as error:
        raise ValueError(f"is too long a duration (got {text!r})") from error


ReadableFile = Annotated[Path, AfterValidator(_readable_file)]


def _setting(default: Any, description: str, allowed: str, **constraints: Any) -> Any:
    """Describe a setting: `allowed` is what an error tells the user."""
    return Field(default, description=description, json_schema_extra={"allowed": allowed}, **constraints)


class Settings(BaseSettings):
    """The service's settings; each is the environment variable TIMER_<NAME>."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, env_file=".env", env_ignore_empty=True, extra="ignore", frozen=True
    )

    polling_interval: int = _setting(
        5_000,
        "How long the worker sleeps at the most, in milliseconds",
        "a whole number of milliseconds from 10 to 3600000",
        ge=10,
        le=3_600_000,
    )
    batch_size: int = _setting(
        2_000,
        "How many commands or timers are handled in one transaction at the most",
        "a whole number from 1 to 10000",
        ge=1,
        le=10_000,
    )
    precise_wakeup: bool = _setting(
        default=True,
        description="Wake when the next timer is due; if not, timers fire at the next poll",
        allowed="true or false",
    )
    catch_up: Annotated[str, AfterValidator(_catch_up)] = _setting(
        "30s",
        "Longest time that due timers wait for commands of their tenant that the broker already has; "
        "0 disables it",
        "a duration from 100ms to 1h such as 30s, or 0",
    )
    max_clock_step: Annotated[str, AfterValidator(_clock_step)] = _setting(
        "1h",
        "A leap of the wall clock that is larger is not followed until `timer-service clock accept`",
        f"a duration from 1s to {MAX_RETENTION_DAYS}d such as 1h, or off",
    )
    db_path: Path = _setting(
        Path("./event_service.db"), "The SQLite file that holds the timers", "the path of a file"
    )
    allow_new_store: bool = _setting(
        default=False,
        description="Begin with an empty SQLite file although commands were acknowledged before",
        allowed="true or false",
    )
    store_url: Annotated[SecretStr, AfterValidator(_store_url)] | None = _setting(
        None,
        "Where the timers are, in place of TIMER_DB_PATH: a SQLite file, or PostgreSQL for several instances",
        "sqlite:///path or postgresql://user:password@host:port/database, "
        "in a password / as %2F, ? as %3F, # as %23",
    )
    store_statement_cache: int = _setting(
        100,
        "Prepared statements that a PostgreSQL connection keeps; 0 behind a pooler that knows none",
        "a whole number from 0 to 1000",
        ge=0,
        le=1_000,
    )
    broker_url: Annotated[str, AfterValidator(_server_list)] = _setting(
        "nats://localhost:4222",
        "The NATS servers, separated by commas",
        "one or more of nats://host:port, tls://host:port, ws://… or wss://…, separated by commas",
    )
    broker_user: str | None = _setting(None, "User name", "a text; together with TIMER_BROKER_PASSWORD")
    broker_password: SecretStr | None = _setting(None, "Password", "a text; together with TIMER_BROKER_USER")
    broker_token: SecretStr | None = _setting(None, "Token", "a text")
    broker_creds: Annotated[Path, AfterValidator(_credentials)] | None = _setting(
        None, "Credentials file (JWT and seed)", f"{_A_FILE}, with a JWT and a seed"
    )
    broker_nkey: Annotated[Path, AfterValidator(_nkey_seed)] | None = _setting(
        None, "File with the NKey seed", f"{_A_FILE}, with an NKey seed"
    )
    broker_inbox_prefix: str = _setting(
        "_INBOX",
        "First tokens of the subjects on which answers come in; permissions may allow each user its own",
        "_INBOX, or _INBOX and further tokens of letters, digits, _ and -, such as _INBOX.service",
        pattern=r"^_INBOX[A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*$",
    )
    broker_tls_ca: Annotated[Path, AfterValidator(_certificates)] | None = _setting(
        None, "CA certificates to trust instead of the system's", f"{_A_FILE}, with PEM certificates"
    )
    broker_tls_cert: ReadableFile | None = _setting(None, "Client certificate", _A_FILE)
    broker_tls_key: ReadableFile | None = _setting(None, "Key of the client certificate", _A_FILE)
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
    ack_wait: int = _setting(
        10_000,
        "After how long the broker delivers an unacknowledged command again, in milliseconds",
        "a whole number of milliseconds from 1000 to 3600000",
        ge=1_000,
        le=3_600_000,
    )
    request_rate: int = _setting(
        200,
        "Requests to the API per second and tenant; more are answered with 429; 0 sets no limit",
        "a whole number from 0 to 1000000",
        ge=0,
        le=1_000_000,
    )
    request_burst: int = _setting(
        500,
        "Requests to the API that a tenant may send at once before the rate counts",
        "a whole number from 1 to 1000000",
        ge=1,
        le=1_000_000,
    )
    retention: Annotated[str, AfterValidator(_retention)] = _setting(
        "30d",
        "How long reached and cancelled timers are kept",
        f"a duration from 1m to {MAX_RETENTION_DAYS}d such as 30d or 12h, or off",
    )
    http_host: str = _setting("127.0.0.1", "Where health and metrics are served", "a host name or address")
    http_port: int = _setting(
        8080, "Port for health and metrics; 0 goes without", "a port from 0 to 65535", ge=0, le=65_535
    )
    metrics_tenants: int = _setting(
        0,
        "For how many tenants lateness is measured one by one; the rest counts as other",
        "a whole number from 0 to 1000",
        ge=0,
        le=1_000,
    )
    log_level: Literal["debug", "info", "warning", "error"] = _setting(
        "info", "What to log", "one of debug, info, warning, error"
    )
    log_format: Literal["auto", "json", "console"] = _setting(
        "auto", "How to log; auto is console on a terminal and JSON elsewhere", "one of auto, json, console"
    )

    @model_validator(mode="after")
    def _belong_together(self) -> Self:
        if (self.broker_user is None) != (self.broker_password is None):
            raise ValueError("TIMER_BROKER_USER and TIMER_BROKER_PASSWORD must be set together")
        if (self.broker_tls_cert is None) != (self.broker_tls_key is None):
            raise ValueError("TIMER_BROKER_TLS_CERT and TIMER_BROKER_TLS_KEY must be set together")
        ways = {
            "TIMER_BROKER_USER": self.broker_user,
            "TIMER_BROKER_TOKEN": self.broker_token,
            "TIMER_BROKER_CREDS": self.broker_creds,
            "TIMER_BROKER_NKEY": self.broker_nkey,
        }
        chosen = [name for name, value in ways.items() if value is not None]
        if len(chosen) > 1:
            raise ValueError(f"only one of {', '.join(chosen)} may be set")
        return self

    @model_validator(mode="after")
    def _redeliveries_find_their_timer(self) -> Self:
        shortest = _ACK_WAITS_KEPT * timedelta(milliseconds=self.ack_wait) + _DUPLICATE_WINDOW
        if self.retention_span is not None and self.retention_span < shortest:
            raise ValueError(
                f"TIMER_RETENTION={self.retention} is too short for TIMER_ACK_WAIT={self.ack_wait}: a "
                "command whose acknowledgement is lost would revive a deleted timer; it must be off "
                f"or at least {shortest.total_seconds():g}s ({_ACK_WAITS_KEPT} times TIMER_ACK_WAIT and "
                "the broker's duplicate window of 2m)"
            )
        return self

    @property
    def postgres_url(self) -> str | None:
        """The PostgreSQL database, where the store is one."""
        text = self.store_url.get_secret_value() if self.store_url else ""
        return text if text.startswith("postgres") else None

    @property
    def sqlite_path(self) -> Path:
        """The SQLite file, where the store is one."""
        text = self.store_url.get_secret_value() if self.store_url else ""
        return Path(text.removeprefix("sqlite:///")) if text.startswith("sqlite") else self.db_path

    @property
    def store_name(self) -> str:
        """Where the timers are, as a person may see it."""
        return str(self.sqlite_path) if self.postgres_url is None else _masked("store_url", self.store_url)

    @property
    def retention_span(self) -> timedelta | None:
        """How long ended timers are kept; None for ever."""
        return None if self.retention == "off" else parse_duration(self.retention)

    @property
    def catch_up_span(self) -> timedelta:
        """How long due timers wait for commands at most; zero where they do not wait."""
        return timedelta() if self.catch_up == "0" else parse_duration(self.catch_up)

    @property
    def max_clock_step_span(self) -> timedelta | None:
        """How far the wall clock may leap; None as far as it likes."""
        return None if self.max_clock_step == "off" else parse_duration(self.max_clock_step)

    def nats_connect_options(self) -> dict[str, Any]:
        """Return the arguments of `nats.connect` that these settings stand for."""
        options: dict[str, Any] = {
            "servers": self.broker_url.split(","),
            "inbox_prefix": self.broker_inbox_prefix,
        }
        if self.broker_user is not None and self.broker_password is not None:
            options |= {"user": self.broker_user, "password": self.broker_password.get_secret_value()}
        if self.broker_token is not None:
            options["token"] = self.broker_token.get_secret_value()
        if self.broker_creds is not None:
            options["user_credentials"] = str(self.broker_creds)
        if self.broker_nkey is not None:
            options["nkeys_seed"] = str(self.broker_nkey)
        if self.broker_tls_ca or self.broker_tls_cert:
            options["tls"] = self._tls_context()
        return options

    def _tls_context(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=self.broker_tls_ca)
            if self.broker_tls_cert and self.broker_tls_key:
                context.load_cert_chain(self.broker_tls_cert, self.broker_tls_key)
        except (ssl.SSLError, OSError) as error:
            raise InvalidConfiguration(
                f"TIMER_BROKER_TLS_CA, _CERT and _KEY must be PEM files that belong together: {error}"
            ) from error
        return context

    def shown(self) -> dict[str, str]:
        """Return every variable with its value as a person may see it, secrets masked."""
        return {env_name(name): _masked(name, getattr(self, name)) for name in type(self).model_fields}


def env_name(field: str) -> str:
    """Return the environment variable of a setting."""
    return (ENV_PREFIX + field).upper()


def load_settings(**overrides: Any) -> Settings:
    """Read the settings, or raise InvalidConfiguration that names every wrong value."""
    try:
        return Settings(**overrides)
    except UnicodeDecodeError as error:
        raise InvalidConfiguration(f".env must be a text file in UTF-8: {error}") from error
    except ValidationError as error:
        raise InvalidConfiguration("; ".join(_explain(problem) for problem in error.errors())) from error


def unknown_variables() -> list[str]:
    """Return a hint for each TIMER_ variable in the environment or `.env` that is no setting."""
    known = [env_name(name) for name in Settings.model_fields]
    hints = []
    for name in sorted({*os.environ, *dotenv_values(".env")}):
        if name.upper().startswith(ENV_PREFIX) and name.upper() not in known:
            close = difflib.get_close_matches(name.upper(), known, n=1)
            hints.append(f"{name} is not a setting" + (f"; did you mean {close[0]}?" if close else ""))
    return hints


def _explain(problem: Any) -> str:
    if not problem["loc"]:
        return str(problem["msg"]).removeprefix("Value error, ")
    field = str(problem["loc"][0])
    name = field.lower().removeprefix(ENV_PREFIX.lower())
    extra = Settings.model_fields[name].json_schema_extra
    allowed = extra["allowed"] if isinstance(extra, dict) else "another value"
    return f"{env_name(name)}={_told(name, problem['input'])}: must be {allowed}"


def _told(name: str, value: object) -> str:
    if "SecretStr" in str(Settings.model_fields[name].annotation):
        return MASK
    return repr(_masked(name, value) if name == "broker_url" else value)


def _masked(name: str, value: Any) -> str:
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
