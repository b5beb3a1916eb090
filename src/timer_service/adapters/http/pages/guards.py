"""Checks that every request must pass, and headers that every answer carries."""

from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Final
from urllib.parse import urlsplit

from timer_service.adapters.http.pages.visit import PageError

LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src {style}; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


def headers_with(style: str) -> Mapping[str, str]:
    """Return what every answer carries; this text, to the letter, is the only style that counts on a page."""
    digest = b64encode(sha256(style.encode()).digest()).decode()
    return {name: value.replace("{style}", f"'sha256-{digest}'") for name, value in _HEADERS.items()}


def opener_headers(headers: Mapping[str, str]) -> Mapping[str, str]:
    """Return what parts a page from the window that opened it, where that may be another site's.

    For that a browser starts another process, which takes longer than painting the page. A visitor who types
    the address or follows one of our links need not wait for it: no other site sent them.
    """
    comes_from_us = headers.get("sec-fetch-site") in {"none", "same-origin"}
    return {} if comes_from_us else {"cross-origin-opener-policy": "same-origin"}


@dataclass(frozen=True, slots=True)
class Place:
    """Where the page is reached: by which names, and under which origin."""

    host: str
    """The address that it listens on."""
    port: int
    public_url: str = ""
    """Where people reach it, if not by that address: through a proxy, or by a name."""

    @property
    def is_local(self) -> bool:
        """Whether nobody beyond this machine can reach it; a public address says that somebody can."""
        return self.host in LOOPBACK_NAMES and not self.public_url

    @property
    def is_secure(self) -> bool:
        """Whether people reach it over https."""
        return self.public_url.startswith("https:")

    @property
    def names(self) -> frozenset[str]:
        """The hosts that a request may name."""
        public = urlsplit(self.public_url).hostname
        return LOOPBACK_NAMES | {self.host.lower()} | ({public} if public else set())

    def check_host(self, headers: Mapping[str, str]) -> None:
        """Refuse a host that is not ours: a foreign name that leads here is an attack by DNS."""
        try:
            name = urlsplit(f"//{headers.get('host', '')}").hostname
        except ValueError:
            name = None
        if name not in self.names:
            raise PageError(421, "The page is not served under this host name: TIMER_PAGE_URL names others.")

    def check_origin(self, headers: Mapping[str, str]) -> None:
        """Refuse a change that another site asks for."""
        site = headers.get("sec-fetch-site")
        if site is not None:
            if site == "same-origin":
                return
            raise PageError(403, f"The form was sent from another site (Sec-Fetch-Site: {site[:20]}).")
        # Plain http off localhost, or a proxy in between, leaves the header out.
        if headers.get("origin") not in self._origins(headers.get("host", "")):
            raise PageError(
                403,
                "The request names neither Sec-Fetch-Site: same-origin nor the page's own Origin. "
                "A script may send its key as Authorization: Bearer instead.",
            )

    def _origins(self, host: str) -> frozenset[str]:
        public = urlsplit(self.public_url)
        ours = f"http://{host}"
        return frozenset({ours, f"{public.scheme}://{public.netloc}"} if self.public_url else {ours})
