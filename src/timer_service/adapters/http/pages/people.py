"""Who visits: by the session of a login, by a key, or by what a trusted proxy says."""

import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from http.cookies import CookieError, SimpleCookie
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import Final

from timer_service.adapters.http.auth import Doorkeeper, TooManyTries, Tries
from timer_service.adapters.http.pages.visit import SCOPES_OF, PageError, Role, User
from timer_service.domain.api_keys import ALL_SCOPES, ALL_TENANTS, digest_of, key_id_of
from timer_service.domain.messages import EPOCH, TenantId, epoch_ms

SESSION: Final = timedelta(hours=12)
IDLE: Final = timedelta(hours=1)
RENEW: Final = timedelta(minutes=5)
"""A session that was used longer ago than this is written again."""
LOGINS_PER_MINUTE: Final = 5
PAGE_KEY: Final = "TIMER_PAGE_KEY"
API_KEY: Final = "TIMER_API_KEY"
"""Keys of the settings, which have no ids of their own."""

ANYBODY: Final = User("local", ALL_SCOPES, None)
"""Any visitor of a page that only this machine can reach."""


_OF_PROXIES: Final = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")
"""A proxy that sends one of these has let somebody in from elsewhere."""


@dataclass(frozen=True, slots=True)
class Group:
    """What members of a group of the proxy may do."""

    role: Role
    tenants: frozenset[TenantId] | None


@dataclass(frozen=True, slots=True)
class Proxies:
    """Whose headers are believed, and what the groups in them mean."""

    networks: Sequence[IPv4Network | IPv6Network] = ()
    groups: Mapping[str, Group] = field(default_factory=dict)

    def user(self, headers: Mapping[str, str], peer: str) -> User | None:
        """Return whom a trusted proxy names; compared with the peer of the connection, with no header."""
        name = headers.get("x-forwarded-user", "").strip()
        if not name or not self._trusts(peer):
            return None
        given = [group.strip() for group in headers.get("x-forwarded-groups", "").split(",")]
        # Whole names only: a pattern lets in whom nobody thought of.
        found = [self.groups[group] for group in given if group in self.groups]
        if not found:
            return None
        best = max(found, key=lambda group: list(Role).index(group.role))
        # One group decides: rights of one are not stretched over the tenants of another.
        return User(name[:255], SCOPES_OF[best.role], best.tenants)

    def client(self, headers: Mapping[str, str], peer: str) -> str:
        """Return from where a request came: whom the nearest trusted proxy names, or else the peer."""
        named = [each.strip() for each in headers.get("x-forwarded-for", "").split(",")]
        # From the right: entries further left were written by the client itself.
        while self._trusts(peer) and named and named[-1]:
            peer = named.pop()
        return peer

    def _trusts(self, peer: str) -> bool:
        try:
            address = ip_address(peer)
        except ValueError:
            return False
        return any(address in network for network in self.networks)


class People:
    """Knows who visits."""

    def __init__(
        self,
        keys: Doorkeeper,
        *,
        now: Callable[[], datetime],
        elapsed_s: Callable[[], float],
        secret: bytes,
        cookie: str,
        secure: bool,
        is_open: bool,
        page_key: str | None = None,
        proxies: Proxies | None = None,
    ) -> None:
        self._keys = keys
        self._now = now
        self._elapsed_s = elapsed_s
        self._secret = secret
        self.cookie = f"__Secure-{cookie}" if secure else cookie
        self._secure = secure
        self.is_open = is_open
        self._page_key = None if page_key is None else digest_of(page_key)
        self._proxies = proxies or Proxies()
        self._tries = Tries(LOGINS_PER_MINUTE, elapsed_s)

    async def user(self, headers: Mapping[str, str], peer: str) -> tuple[User | None, str | None]:
        """Return who it is, if they are known, and a cookie to be set."""
        proxied = self._proxies.user(headers, peer)
        if proxied is not None:
            return proxied, None
        key = bearer_in(headers)
        if key is not None:
            # Before the cookie: a key is sent on purpose.
            return await self._by_bearer(key, self._proxies.client(headers, peer)), None
        known, cookie = await self._by_session(headers)
        is_local = self.is_open and not any(name in headers for name in _OF_PROXIES)
        return known or (ANYBODY if is_local else None), cookie

    async def log_in(self, text: str, headers: Mapping[str, str], peer: str) -> str:
        """Return the cookie of a new session, or raise PageError."""
        client = self._proxies.client(headers, peer)
        try:
            self._tries.count(client)
        except TooManyTries as error:
            raise _wait("Five tries per minute", error) from error
        found = await self._by_key(text, client)
        if found is None:
            raise PageError(401, "This key is not valid: it is misspelt, revoked or has expired.")
        now = self._now()
        session = _Session(found.key_id, _signed(found.digest.hex(), self._secret).hex(), now, now)
        return self._written(session.text(self._secret), SESSION)

    def log_out(self) -> str:
        """Return the cookie that ends a session."""
        return self._written("", timedelta())

    async def _by_bearer(self, key: str, client: str) -> User | None:
        """Return whose key a script sends; wrong ones count as in the REST API."""
        known = await self._by_key(key, client)
        if known is not None:
            return known.user
        try:
            self._keys.count_wrong(client)
        except TooManyTries as error:
            raise _wait("Too many wrong keys", error) from error
        return None

    async def _by_key(self, text: str, client: str) -> "_Known | None":
        """Return whose key a text is; each is compared in constant time."""
        digest = digest_of(text)
        for key_id in (PAGE_KEY, API_KEY, key_id_of(text)):
            known = None if key_id is None else await self._known(key_id, client)
            if known is not None and hmac.compare_digest(known.digest, digest):
                await self._keys.note_use(known.key_id)
                return known
        return None

    async def _by_session(self, headers: Mapping[str, str]) -> tuple[User | None, str | None]:
        try:
            jar = SimpleCookie(headers.get("cookie", ""))
        except CookieError:
            return None, None
        session = _read(jar[self.cookie].value, self._secret) if self.cookie in jar else None
        now = self._now()
        if session is None or not session.is_alive(now):
            return None, None
        # Looked up again each time: to revoke a key ends its sessions.
        known = await self._known(session.key_id)
        if known is None or session.of_key != _signed(known.digest.hex(), self._secret).hex():
            return None, None
        renewed = replace(session, used_at=now).text(self._secret) if now - session.used_at > RENEW else None
        return known.user, None if renewed is None else self._written(renewed, SESSION)

    async def _known(self, key_id: str, client: str | None = None) -> "_Known | None":
        """Return a key by its id, one that somebody sends in their turn."""
        if key_id == PAGE_KEY:
            digest = self._page_key
            return None if digest is None else _Known(key_id, digest, User(key_id, ALL_SCOPES, None))
        if key_id == API_KEY:
            digest, caller = self._keys.single, self._keys.single_caller
            user = User(key_id, caller.scopes, frozenset({caller.tenant_id}))
            return None if digest is None else _Known(key_id, digest, user)
        keys = self._keys
        key = await (keys.valid_key(key_id) if client is None else keys.key_from(client, key_id))
        if key is None:
            return None
        tenants = None if key.tenant_id == ALL_TENANTS else frozenset({key.tenant_id})
        return _Known(key_id, key.digest, User(key.note or key_id, key.scopes, tenants))

    def _written(self, value: str, lasts: timedelta) -> str:
        # No path: the browser takes that of the page, also behind a prefix which we do not know.
        secure = "; Secure" if self._secure else ""
        age = int(lasts.total_seconds())
        return f"{self.cookie}={value}; Max-Age={age}; HttpOnly; SameSite=Strict{secure}"


def _wait(why: str, error: TooManyTries) -> PageError:
    headers = {"retry-after": str(round(error.wait_s + 0.5))}
    return PageError(429, f"{why}: wait {error.wait_s:.0f} s.", headers)


def bearer_in(headers: Mapping[str, str]) -> str | None:
    """Return the key of a script: no browser sends one by itself, as it does with a password."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else None


@dataclass(frozen=True, slots=True)
class _Known:
    """A key that opens, and for whom."""

    key_id: str
    digest: bytes
    user: User


@dataclass(frozen=True, slots=True)
class _Session:
    key_id: str
    of_key: str
    """Says which key it was, without telling anything of it."""
    began_at: datetime
    used_at: datetime

    def is_alive(self, now: datetime) -> bool:
        return now < self.began_at + SESSION and now < self.used_at + IDLE

    def text(self, secret: bytes) -> str:
        moments = (str(epoch_ms(moment)) for moment in (self.began_at, self.used_at))
        content = ".".join((self.key_id, self.of_key, *moments))
        return f"{_base64(content.encode())}.{_base64(_signed(content, secret))}"


def _read(text: str, secret: bytes) -> _Session | None:
    content, _, signature = text.partition(".")
    try:
        plain = urlsafe_b64decode(content + "==").decode()
        given = urlsafe_b64decode(signature + "==")
    except ValueError:
        return None
    if not hmac.compare_digest(_signed(plain, secret), given):
        return None
    key_id, of_key, *moments = plain.split(".")
    began_at, used_at = (EPOCH + timedelta(milliseconds=int(moment)) for moment in moments)
    return _Session(key_id, of_key, began_at, used_at)


def _signed(content: str, secret: bytes) -> bytes:
    return hmac.digest(secret, content.encode(), "sha256")


def _base64(content: bytes) -> str:
    return urlsafe_b64encode(content).decode().rstrip("=")
