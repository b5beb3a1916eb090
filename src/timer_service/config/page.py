"""The settings of the page."""

from typing import Literal

from pydantic_settings import BaseSettings

from timer_service.config import checks
from timer_service.config.fields import setting


class PageSettings(BaseSettings):
    """Where the page is served, to whom, and how it looks."""

    page_host: str = setting("127.0.0.1", "Address for the page", "a host name or address")
    page_port: int = setting(0, "Port for the page; 0 disables it", "a port from 0 to 65535", ge=0, le=65_535)
    page_url: checks.PageUrl | None = setting(
        None,
        "Where people reach the page, if it is behind a proxy or has a name. "
        "If set, a key is always required",
        "an http:// or https:// URL such as https://timers.example.com/ops, without query",
    )
    page_key: checks.ApiKeyText | None = setting(
        None,
        "A key that opens the page for all tenants as admin, besides those of `timer-service keys`",
        "at least 32 printable characters without spaces",
    )
    page_secret: checks.ApiKeyText | None = setting(
        None,
        "Signs the sessions of the page; the same for all instances. Without it a restart ends them",
        "at least 32 printable characters without spaces",
    )
    page_trusted_proxies: checks.Networks | None = setting(
        None,
        "Addresses of proxies whose X-Forwarded-User and X-Forwarded-Groups are trusted",
        "a list of addresses and ranges such as 10.0.0.7,10.1.0.0/16, separated by commas",
    )
    page_groups: checks.GroupList | None = setting(
        None,
        "What members of these groups may do; together with TIMER_PAGE_TRUSTED_PROXIES",
        "a list such as ops=admin,support=viewer:acme+globex of viewer, operator and admin, "
        "separated by commas",
    )
    page_title: str = setting(
        "timer-service", "Title of the page, such as the name of the environment", "a short text"
    )
    page_colour: Literal["teal", "blue", "red", "amber", "violet", "grey"] = setting(
        "teal",
        "Colour of the page's header, to tell environments apart",
        "one of teal, blue, red, amber, violet, grey",
    )
