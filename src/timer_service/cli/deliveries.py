"""Look at callbacks and send them again, through the REST API of a running service."""

import argparse
import http.client
import json
import sys
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any, Final

from rich.table import Table

from timer_client import wire
from timer_service.cli.arguments import Commands, add_json_argument, count
from timer_service.cli.exits import EXIT_FAILED, EXIT_OK, EXIT_REFUSED, EXIT_USAGE, CommandFailed
from timer_service.cli.output import add_row, as_block, print_table, say, tell
from timer_service.config import load_settings
from timer_service.printable import printable_json

ANSWER_TIMEOUT_S: Final = 10.0
RETRIED_AT_ONCE: Final = 1_000
STATES: Final = ("waiting", "delivered", "failed", "abandoned")
_SERVER_ERROR: Final = 500


def add_commands(commands: Commands) -> None:
    """Add `deliveries`."""
    group = commands.add_parser("deliveries", help="inspect callbacks, and send them again")
    actions = group.add_subparsers(title="actions", metavar="action", required=True)

    listing = actions.add_parser("list", help="list the deliveries of a tenant, oldest first")
    listing.add_argument("--state", choices=STATES, help="only deliveries in this state")
    listing.add_argument("--limit", type=count, default=100, help="at most this many (%(default)s)")
    _add_api(listing)
    listing.set_defaults(handler=list_deliveries)

    show = actions.add_parser("show", help="show the delivery of a timer and its failed attempts")
    show.add_argument("id", help="the timer's id")
    _add_api(show)
    show.set_defaults(handler=show_delivery)

    retry = actions.add_parser("retry", help="send failed callbacks again, under the same ids")
    retry.add_argument("id", nargs="?", help="the timer's id (all failed callbacks)")
    _add_api(retry)
    retry.set_defaults(handler=retry_deliveries)


def _add_api(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", help="the REST API, instead of TIMER_API_HOST and TIMER_API_PORT")
    parser.add_argument("--key-file", help="a file with the tenant's API key, instead of TIMER_API_KEY")
    add_json_argument(parser)


def list_deliveries(options: argparse.Namespace) -> int:
    """List deliveries."""
    found, has_more = _listed(options)
    if has_more:
        print(f"the first {options.limit}; see more with --limit", file=sys.stderr)
    if options.json:
        for each in found:
            say(printable_json(each))
        return EXIT_OK
    table = Table("id", "state", "attempts", "receiver", "due", "error", box=None)
    for each in found:
        last = each.get("error") or ""
        row = (
            each["serviceCallId"],
            each["state"],
            str(each["attempts"]),
            each["origin"],
            each["dueAt"],
            last,
        )
        add_row(table, *row)
    print_table(table) if found else say("no deliveries")
    return EXIT_OK


def _listed(options: argparse.Namespace) -> tuple[list[dict[str, Any]], bool]:
    """Return as many deliveries as were asked for, page by page, and whether there are more."""
    found: list[dict[str, Any]] = []
    place: dict[str, str] | None = {}
    while place is not None and len(found) < options.limit:
        query = {"limit": min(options.limit - len(found), wire.MAX_PAGE), **place}
        query |= {"state": options.state} if options.state else {}
        answer = _ask(options, "GET", f"/v1/deliveries?{urllib.parse.urlencode(query)}")
        found += answer["deliveries"]
        place = {"cursor": answer["cursor"]} if "cursor" in answer else None
    return found, place is not None


def show_delivery(options: argparse.Namespace) -> int:
    """Show one delivery."""
    name = urllib.parse.quote(options.id, safe="")
    found = _ask(options, "GET", f"/v1/timers/{name}/attempts")
    if options.json:
        say(printable_json(found))
        return EXIT_OK
    say(as_block(found.get("delivery") or {"state": "not fired yet"}))
    for each in found["attempts"]:
        say(as_block(each))
    return EXIT_OK


def retry_deliveries(options: argparse.Namespace) -> int:
    """Send again one callback, or all that have failed."""
    if options.id is not None:
        name = urllib.parse.quote(options.id, safe="")
        answer = _ask(options, "POST", f"/v1/timers/{name}/retry")
        delivery = answer["delivery"]
        tell(options, f"{options.id} {_what_was_done(delivery, answer['retried'])}", delivery)
        return EXIT_OK
    total = 0
    place: dict[str, str] | None = {}
    while place is not None:
        answer = _ask(options, "POST", "/v1/deliveries:retry", {"limit": RETRIED_AT_ONCE, **place})
        total += answer["retried"]
        # On from there: what has failed again meanwhile would be found again, without an end.
        place = {"cursor": answer["cursor"]} if answer["more"] else None
    text = "1 callback is sent again" if total == 1 else f"{total} callbacks are sent again"
    tell(options, text, {"retried": total})
    return EXIT_OK


def _what_was_done(delivery: dict[str, Any], retried: int) -> str:
    at = delivery.get("nextAttemptAt")
    if retried:
        return f"is sent again at {at}" if at else "is sent again"
    if delivery["state"] == "Delivered":
        return "was delivered, so it is not sent again"
    if at:  # Which may be hours ahead.
        return f"is waiting for its next attempt at {at}: nothing was changed"
    return "has just been changed by somebody else, so it is not sent again"


def _ask(options: argparse.Namespace, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
    """Make one request and return its answer; whatever goes wrong ends the command with one line."""
    url, key = _api(options)
    request = urllib.request.Request(  # noqa: S310 - the operator names it
        url + path,
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"X-API-Key": key, "content-type": "application/json"},
    )
    try:
        with _opener(options).open(request, timeout=ANSWER_TIMEOUT_S) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        code = EXIT_FAILED if error.code >= _SERVER_ERROR else EXIT_REFUSED
        raise CommandFailed(code, _detail(error)) from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise CommandFailed(EXIT_FAILED, f"the REST API at {url} does not answer: {_cause(error)}") from error


def _cause(error: Exception) -> str:
    """Return what went wrong in words, without the names of Python's errors around it."""
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    return (isinstance(reason, OSError) and reason.strerror) or str(reason)


def _opener(options: argparse.Namespace) -> urllib.request.OpenerDirector:
    """Return what opens addresses: our own without a proxy of the environment, which would get the key."""
    return urllib.request.build_opener(*([] if options.url else [urllib.request.ProxyHandler({})]))


def _api(options: argparse.Namespace) -> tuple[str, str]:
    settings = load_settings()
    host = f"[{settings.api_host}]" if ":" in settings.api_host else settings.api_host
    url = options.url or (f"http://{host}:{settings.api_port}" if settings.api_port else None)
    if url is None:
        raise CommandFailed(EXIT_USAGE, "no REST API is configured: set TIMER_API_PORT, or use --url")
    if not url.startswith(("http://", "https://")):
        raise CommandFailed(EXIT_USAGE, f"--url must begin with http:// or https:// (got {url!r})")
    if options.key_file is not None:
        try:
            return url.rstrip("/"), Path(options.key_file).read_text("utf-8").strip()
        except (OSError, ValueError) as error:
            raise CommandFailed(EXIT_USAGE, f"--key-file cannot be read: {error}") from error
    if settings.api_key is None:
        raise CommandFailed(EXIT_USAGE, "no API key is configured: set TIMER_API_KEY, or use --key-file")
    return url.rstrip("/"), settings.api_key.get_secret_value()


def _detail(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(error)["detail"])
    except (ValueError, KeyError, TypeError, OSError):
        return f"the REST API answered {error.code}"
