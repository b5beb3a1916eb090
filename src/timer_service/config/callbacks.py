"""The settings of callbacks."""

from pydantic_settings import BaseSettings

from timer_service.config import checks
from timer_service.config.fields import A_FILE, setting


class CallbackSettings(BaseSettings):
    """Where callbacks may go, and what keeps their secrets."""

    callback_allow: checks.AllowedRanges | None = setting(
        None,
        "Addresses that callbacks may go to although they are not public: ranges, addresses, addresses with "
        "a port. Link-local and metadata addresses must be listed one by one, the service's own with "
        "their port",
        "a list such as 10.0.0.0/8,127.0.0.1:9000,[::1]:9000, separated by commas",
    )
    callback_proxy: checks.ProxyUrl | None = setting(
        None,
        "An HTTP proxy that all callbacks go through; it then decides which addresses names resolve to",
        "http://host:port, without user name and password",
    )
    callback_proxy_login: checks.LoginText | None = setting(
        None,
        "User name and password for TIMER_CALLBACK_PROXY, sent as basic authentication",
        "user:password, printable ASCII",
    )
    callback_max_body: int = setting(
        65_536,
        "Largest body of a callback, in bytes; a request to the REST API may have twice as many",
        "a whole number from 1024 to 1048576",
        ge=1_024,
        le=1_048_576,
    )
    callback_keep_answers: bool = setting(
        default=False,
        description="Keep the first 1 KiB of what receivers answer to callbacks that they refuse, and "
        "show it with the attempts",
        allowed="true or false",
    )
    callback_tls_ca: checks.CertificatesFile | None = setting(
        None, "CA certificates that callbacks trust besides the system's", f"{A_FILE}, with PEM certificates"
    )
    metrics_origins: int = setting(
        0,
        "How many receivers of callbacks get counters of their own; the others share one",
        "a whole number from 0 to 1000",
        ge=0,
        le=1_000,
    )
    secret_keys: checks.SecretKeyList | None = setting(
        None,
        "Keys that seal the secrets of callbacks: the first seals, all open. On SQLite a file beside the "
        "database takes their place",
        "keys of `timer-service secrets new-key`, separated by commas",
    )
