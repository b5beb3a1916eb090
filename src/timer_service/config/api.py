"""The settings of the REST API."""

from datetime import timedelta

from pydantic_settings import BaseSettings

from timer_service.config import checks
from timer_service.config.durations import parse_duration
from timer_service.config.fields import setting


class ApiSettings(BaseSettings):
    """Where the REST API is served, and to whom."""

    api_host: str = setting("127.0.0.1", "Address for the REST API", "a host name or address")
    api_port: int = setting(
        0, "Port for the REST API; 0 disables it", "a port from 0 to 65535", ge=0, le=65_535
    )
    api_key: checks.ApiKeyText | None = setting(
        None,
        "A key of the REST API for TIMER_API_TENANT, besides those of `timer-service keys`",
        "at least 32 printable characters without spaces",
    )
    api_tenant: str = setting(
        "default",
        "The tenant of TIMER_API_KEY",
        "1 to 64 of A-Z a-z 0-9 _ -",
        pattern=r"^[A-Za-z0-9_-]{1,64}$",
    )
    api_min_lead: checks.Lead = setting(
        "0",
        "Minimum lead time of `execute_at` in the compact dialect; 0 allows any time in the future",
        "a duration from 1ms to 1h such as 5s, or 0",
    )
    max_pending: int = setting(
        0,
        "How many pending timers a tenant may have before the REST API refuses new ones; 0 sets no limit",
        "a whole number from 0 to 1000000000",
        ge=0,
        le=1_000_000_000,
    )

    @property
    def api_min_lead_span(self) -> timedelta:
        """How far ahead a due time of the compact dialect must be; zero if any in the future will do."""
        return timedelta() if self.api_min_lead == "0" else parse_duration(self.api_min_lead)
