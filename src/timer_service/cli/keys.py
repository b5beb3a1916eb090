"""Make, list and revoke keys of the REST API."""

import argparse
import asyncio
import secrets
import sys
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Final

from rich.table import Column, Table

from timer_client import wire
from timer_service.adapters.system import local_now
from timer_service.cli.arguments import Commands, add_json_argument, duration, tenant
from timer_service.cli.exits import EXIT_FAILED, EXIT_OK, EXIT_REFUSED, CommandFailed
from timer_service.cli.output import add_row, print_table, say, tell
from timer_service.config import load_settings
from timer_service.domain.api_keys import (
    ALL_SCOPES,
    ALL_TENANTS,
    ApiKey,
    Scope,
    digest_of,
    key_id_of,
    write_key,
)
from timer_service.domain.errors import TransientError
from timer_service.domain.messages import TenantId
from timer_service.ports.api_keys import ApiKeyStore
from timer_service.printable import printable_json

SECRET_BYTES: Final = 32
ID_BYTES: Final = 6
MAX_LIFETIME: Final = timedelta(days=36_525)


def add_commands(commands: Commands) -> None:
    """Add `keys`."""
    keys = commands.add_parser("keys", help="create, list and revoke keys of the REST API and the page")
    actions = keys.add_subparsers(title="actions", metavar="action", required=True)

    create = actions.add_parser("create", help="create a key and show it once")
    create.add_argument(
        "--tenant",
        required=True,
        type=_owner,
        help="whose timers it opens; '*' opens the page for all of them",
    )
    create.add_argument(
        "--scope",
        action="append",
        choices=[scope.value for scope in Scope],
        help="what it may do; may be repeated (read, write and replay)",
    )
    create.add_argument(
        "--expires-in", type=_lifetime, metavar="DURATION", help="valid for this long, such as 90d (forever)"
    )
    create.add_argument("--note", default="", help="what it is for")
    add_json_argument(create)
    create.set_defaults(handler=_handler(_create))

    listing = actions.add_parser("list", help="list keys, never the secrets")
    listing.add_argument("--tenant", help="only this tenant's keys")
    add_json_argument(listing)
    listing.set_defaults(handler=_handler(_list))

    revoke = actions.add_parser("revoke", help="revoke a key; the service refuses it within 5 s")
    revoke.add_argument("id", help="the key's id, between the underscores, or the whole key")
    add_json_argument(revoke)
    revoke.set_defaults(handler=_handler(_revoke))


def _lifetime(text: str) -> timedelta:
    read = duration(text)
    if not timedelta() < read <= MAX_LIFETIME:
        raise argparse.ArgumentTypeError(f"must be longer than 0 and at most 100 years (got {text!r})")
    return read


def _handler(
    action: Callable[[argparse.Namespace, ApiKeyStore], Awaitable[None]],
) -> Callable[[argparse.Namespace], int]:
    async def act(options: argparse.Namespace) -> None:
        # Here, because it takes time that no other command has to wait for.
        from timer_service.wiring.stores import open_api_keys  # noqa: PLC0415

        async with open_api_keys(load_settings()) as keys:
            await action(options, keys)

    def handle(options: argparse.Namespace) -> int:
        try:
            asyncio.run(act(options))
        except TransientError as error:
            raise CommandFailed(EXIT_FAILED, str(error)) from error
        return EXIT_OK

    return handle


def new_key(
    tenant_id: TenantId,
    scopes: frozenset[Scope] = ALL_SCOPES,
    expires_in: timedelta | None = None,
    note: str = "",
) -> tuple[str, ApiKey]:
    """Return a new key as its owner gets it, and as it is kept."""
    key_id, now = secrets.token_hex(ID_BYTES), local_now()
    text = write_key(key_id, secrets.token_urlsafe(SECRET_BYTES))
    expires_at = None if expires_in is None else now + expires_in
    return text, ApiKey(key_id, tenant_id, scopes, digest_of(text), now, expires_at, note=note)


def _owner(text: str) -> str:
    return text if text == ALL_TENANTS else tenant(text)


async def _create(options: argparse.Namespace, keys: ApiKeyStore) -> None:
    scopes = frozenset(map(Scope, options.scope or ("read", "write", "replay")))
    text, key = new_key(TenantId(options.tenant), scopes, options.expires_in, options.note)
    await keys.add(key)
    tell(options, text, facts(key, text))
    if not options.json:
        # Beside the output, which is the key and nothing else.
        print("It is shown only now: keep it where no one else can read it.", file=sys.stderr)


async def _list(options: argparse.Namespace, keys: ApiKeyStore) -> None:
    found = await keys.list_keys(None if options.tenant is None else TenantId(options.tenant))
    if options.json:
        say("\n".join(printable_json(facts(key)) for key in found))
        return
    if not found:
        say("no keys: `timer-service keys create` makes one")
        return
    table = Table(
        Column("id", min_width=ID_BYTES * 2),
        "tenant",
        "scopes",
        "created",
        "last used",
        "state",
        "note",
        box=None,
    )
    for key in found:
        created, state = wire.format_time(key.created_at), _state(key)
        used = wire.format_time(key.used_at) if key.used_at else "never"
        add_row(table, key.id, key.tenant_id, " ".join(sorted(key.scopes)), created, used, state, key.note)
    print_table(table)


async def _revoke(options: argparse.Namespace, keys: ApiKeyStore) -> None:
    # Of a whole key nothing but its id is repeated: it may well be one that was found in a log.
    key_id = key_id_of(options.id) or options.id
    key = await keys.revoke(key_id, local_now())
    if key is None:
        raise CommandFailed(EXIT_REFUSED, f"there is no key {key_id!r}")
    tell(options, f"{key.id} of tenant {key.tenant_id} is revoked", facts(key))


def facts(key: ApiKey, text: str | None = None) -> dict[str, Any]:
    """Return a key for a program; the key itself only when it is made."""
    return {
        **({} if text is None else {"key": text}),
        "id": key.id,
        "tenantId": key.tenant_id,
        "scopes": sorted(key.scopes),
        "createdAt": wire.format_time(key.created_at),
        "expiresAt": wire.format_time(key.expires_at) if key.expires_at else None,
        "usedAt": wire.format_time(key.used_at) if key.used_at else None,
        "state": _state(key),
        "note": key.note,
    }


def _state(key: ApiKey) -> str:
    if key.revoked_at is not None:
        return f"revoked {wire.format_time(key.revoked_at)}"
    if not key.is_valid(local_now()):
        return "expired"
    return "valid" if key.expires_at is None else f"valid until {wire.format_time(key.expires_at)}"
