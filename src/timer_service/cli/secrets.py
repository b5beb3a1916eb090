"""The secrets of a tenant's callbacks: values that headers refer to, and the keys that sign."""

import argparse
import asyncio
import getpass
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, TypeVar

from timer_client.wire import format_time
from timer_service.cli.arguments import Commands, add_json_argument, duration, tenant
from timer_service.cli.exits import EXIT_OK, EXIT_REFUSED, EXIT_USAGE, CommandFailed
from timer_service.cli.output import say, tell
from timer_service.config import load_settings
from timer_service.domain.callback import Signing
from timer_service.domain.errors import CriticalError
from timer_service.domain.messages import TenantId
from timer_service.printable import printable_json
from timer_service.secret_keys import new_secret_key

if TYPE_CHECKING:
    from timer_service.adapters.webhook.keyring import KeptKey, Keyring

_KINDS: Final = [kind.value for kind in Signing]

T = TypeVar("T")


def add_commands(commands: Commands) -> None:
    """Add `secrets` and `signing-keys`."""
    _add_secrets(commands)
    _add_signing_keys(commands)


def _add_secrets(commands: Commands) -> None:
    group = commands.add_parser("secrets", help="manage values that callback headers use as ${secret:name}")
    actions = group.add_subparsers(title="actions", metavar="action", required=True)
    parser = actions.add_parser("set", help="set a secret; its value is read from stdin")
    _add_tenant(parser, "name")
    parser.set_defaults(handler=set_secret)
    parser = actions.add_parser("list", help="list a tenant's secrets, masked")
    _add_tenant(parser)
    parser.set_defaults(handler=list_secrets)
    parser = actions.add_parser("remove", help="remove a secret")
    _add_tenant(parser, "name")
    parser.set_defaults(handler=remove_secret)
    parser = actions.add_parser("new-key", help="print a new key for TIMER_SECRET_KEYS")
    parser.set_defaults(handler=new_key)
    parser = actions.add_parser("rewrap", help="seal all secrets with the first key of TIMER_SECRET_KEYS")
    add_json_argument(parser)
    parser.set_defaults(handler=rewrap)


def _add_signing_keys(commands: Commands) -> None:
    group = commands.add_parser("signing-keys", help="manage the keys that sign a tenant's callbacks")
    actions = group.add_subparsers(title="actions", metavar="action", required=True)
    parser = actions.add_parser("list", help="list the keys; for ed25519, only the public half")
    _add_tenant(parser)
    parser.add_argument("--secret", action="store_true", help="also show HMAC keys, which receivers need")
    parser.set_defaults(handler=list_keys)
    parser = actions.add_parser("rotate", help="sign with a new key, and for a while with the old one too")
    _add_tenant(parser)
    parser.add_argument("--kind", choices=_KINDS, default=_KINDS[0], help="ed25519 or hmac (%(default)s)")
    parser.add_argument(
        "--overlap",
        type=duration,
        metavar="DURATION",
        help="how long the old key still signs, up to 7d (24h)",
    )
    parser.set_defaults(handler=rotate)


def _add_tenant(parser: argparse.ArgumentParser, *names: str) -> None:
    for name in names:
        parser.add_argument(name, help=f"the secret's {name}")
    parser.add_argument("--tenant", required=True, type=tenant, help="the owner")
    add_json_argument(parser)


def set_secret(options: argparse.Namespace) -> int:
    """Set a secret; never from an argument, which every user of the machine could read."""
    value = getpass.getpass("value: ") if sys.stdin.isatty() else sys.stdin.readline().rstrip("\r\n")
    replaced = _with_keyring(lambda ring: ring.set_named(TenantId(options.tenant), options.name, value))
    text = f"{options.tenant}/{options.name} {'replaced' if replaced else 'set'}; callbacks use it within 5 s"
    tell(options, text, {"tenantId": options.tenant, "name": options.name, "replaced": replaced})
    return EXIT_OK


def list_secrets(options: argparse.Namespace) -> int:
    """List a tenant's secrets."""
    found = _with_keyring(lambda ring: ring.named(TenantId(options.tenant)), make=False)
    for name, value in found.items():
        tell(options, f"{name}  {value}", {"name": name, "value": value})
    if not found and not options.json:
        say("no secrets")
    return EXIT_OK


def remove_secret(options: argparse.Namespace) -> int:
    """Remove a secret."""
    if not _with_keyring(lambda ring: ring.remove_named(TenantId(options.tenant), options.name)):
        raise CommandFailed(EXIT_REFUSED, f"{options.tenant} has no secret named {options.name!r}")
    tell(options, f"{options.tenant}/{options.name} removed", {"removed": True})
    return EXIT_OK


def new_key(_: argparse.Namespace) -> int:
    """Print a new key."""
    say(new_secret_key())
    return EXIT_OK


def rewrap(options: argparse.Namespace) -> int:
    """Seal what is sealed with an older key by the newest."""
    count = _with_keyring(lambda ring: ring.rewrap(), make=False)
    tell(options, f"{count} secrets sealed with the first key", {"rewrapped": count})
    return EXIT_OK


def list_keys(options: argparse.Namespace) -> int:
    """List a tenant's signing keys."""
    found = _with_keyring(lambda ring: ring.read(TenantId(options.tenant)), make=False)
    for kept in found.signing:
        _tell_key(options, kept, show_secret=options.secret)
    if not found.signing and not options.json:
        say("no keys yet: the first callback makes one, and so does `timer-service signing-keys rotate`")
    return EXIT_OK


def rotate(options: argparse.Namespace) -> int:
    """Make a new key."""
    owner, kind = TenantId(options.tenant), Signing(options.kind)
    overlap = {} if options.overlap is None else {"overlap": options.overlap}
    kept = _with_keyring(lambda ring: ring.rotate(owner, kind, **overlap))
    _tell_key(options, kept, show_secret=True)
    return EXIT_OK


def _tell_key(options: argparse.Namespace, kept: "KeptKey", *, show_secret: bool) -> None:
    text = kept.key.public_text or (kept.key.private_text if show_secret else "*****")
    ends = format_time(kept.ends_at) if kept.ends_at else None
    facts = {"name": kept.name, "kind": kept.key.kind.value, "key": text, "endsAt": ends}
    if options.json:
        say(printable_json(facts))
    else:
        say(f"{kept.name}  {text}" + (f"  signs until {ends}" if ends else ""))


def _with_keyring(work: Callable[["Keyring"], Awaitable[T]], *, make: bool = True) -> T:
    async def run() -> T:
        async with open_keyring(make=make) as ring:
            return await work(ring)

    try:
        return asyncio.run(run())
    except ValueError as error:
        raise CommandFailed(EXIT_USAGE, str(error)) from error


@asynccontextmanager
async def open_keyring(*, make: bool = True) -> AsyncIterator["Keyring"]:
    """Open the secrets that the settings name, also while a service is at work.

    Without `make`, a missing file of keys is not created: a command that only reads has no need of one.
    """
    # Here, because they take time that no other command has to wait for.
    from timer_service.adapters.sealing import NotOpened  # noqa: PLC0415
    from timer_service.adapters.system import local_now  # noqa: PLC0415
    from timer_service.adapters.webhook.keyring import Keyring  # noqa: PLC0415
    from timer_service.wiring.senders import sealing_keys  # noqa: PLC0415
    from timer_service.wiring.stores import open_secrets  # noqa: PLC0415

    settings = load_settings()
    sealing = sealing_keys(settings, make=make)
    async with open_secrets(settings) as store:
        try:
            yield Keyring(store, sealing, local_now, time.monotonic)
        except NotOpened as error:
            raise CriticalError(f"{error}: add the key that sealed it to TIMER_SECRET_KEYS") from error
