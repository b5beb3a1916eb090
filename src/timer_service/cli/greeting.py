"""What `dev` prints at the start: where everything is, and what to try."""

import shlex
import shutil
import sys
from pathlib import Path

from timer_service import __version__
from timer_service.adapters.nats.embedded import USUAL_PORT, EmbeddedBroker
from timer_service.cli.dev_modes import DevMode
from timer_service.cli.listening import DEFAULT_PORT
from timer_service.config import Settings


def greet(broker: EmbeddedBroker, settings: Settings, data: Path, mode: DevMode) -> None:
    """Print it."""
    command = _command()
    server = "" if broker.port == USUAL_PORT else f" --server {broker.url}"
    print(
        f"timer-service {__version__} with a broker of its own; stop it with Ctrl-C\n"
        + _page(settings)
        + _api_place(settings)
        + f"  broker  {broker.url}{_unusual(broker)}\n"
        + _health(settings)
        + f"  data    {data}\n"
        f"{mode}"
        "Try in another terminal:\n"
        f"  {command} watch{server}\n"
        f"  {command} schedule --tenant acme --id order-42 --in 10s{server}\n"
        f"  {command} cancel --tenant acme --id order-42{server}" + _api(settings, data, mode, command),
        flush=True,
    )


def _unusual(broker: EmbeddedBroker) -> str:
    """Say what a reader of our examples would miss: on the usual port somebody else answers."""
    return "" if broker.port == USUAL_PORT else f" (not {USUAL_PORT}: change the examples' address)"


def _command() -> str:
    as_module = Path(sys.argv[0]).name == "__main__.py"
    here = f"{sys.executable} -m timer_service" if as_module else sys.argv[0]
    return "timer-service" if shutil.which("timer-service") else here


def _health(settings: Settings) -> str:
    if not settings.http_port:
        return ""
    return f"  health  http://{settings.http_host}:{settings.http_port}/readyz\n"


def _page(settings: Settings) -> str:
    if not settings.page_port:
        return ""
    return f"  page    http://{settings.page_host}:{settings.page_port}/ui/\n"


def _api_place(settings: Settings) -> str:
    if not settings.api_port:
        return ""
    return f"  api     http://{settings.api_host}:{settings.api_port}/v1\n"


def _api(settings: Settings, data: Path, mode: DevMode, command: str) -> str:
    if not settings.api_port or settings.api_key is None:
        return ""
    url = f"http://{settings.api_host}:{settings.api_port}/v1/timers"
    key = f"-H 'X-API-Key: {settings.api_key.get_secret_value()}'"
    create = f"-X PUT {key} -H 'Content-Type: application/json' -d"
    receiver = f"http://127.0.0.1:{DEFAULT_PORT}/"
    return (
        f"\nOr over HTTP, as the tenant {settings.api_tenant}:"
        f"\n  curl {url}/order-43 {create} '{{\"delayMs\":10000}}'"
        f"\n  curl {url}/order-43 {key}"
        "\nWith a callback, to a receiver that checks its signature:"
        f"\n  {_listen(settings, data, mode, command)}"
        f'\n  curl {url}/order-44 {create} \'{{"delayMs":10000,"callback":{{"url":"{receiver}"}}}}\''
    )


def _listen(settings: Settings, data: Path, mode: DevMode, command: str) -> str:
    """Return how to receive callbacks, with the keys of this service where they are in a file."""
    if mode.folder is None:
        return f"{command} listen"
    path = shlex.quote(str((data / "timers.db").resolve()))
    return f"TIMER_DB_PATH={path} {command} listen --tenant {settings.api_tenant}"
