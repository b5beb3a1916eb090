"""Show the settings."""

import argparse
import json

from timer_service.cli.arguments import Commands, add_json_argument
from timer_service.cli.exits import EXIT_OK
from timer_service.config import load_settings


def add_commands(commands: Commands) -> None:
    """Add `config`."""
    parser = commands.add_parser("config", help="print the effective settings, secrets masked")
    add_json_argument(parser)
    parser.set_defaults(handler=config)


def config(options: argparse.Namespace) -> int:
    """Print the effective settings."""
    shown = load_settings().shown()
    if options.json:
        print(json.dumps(shown))
    else:
        width = max(map(len, shown))
        print("\n".join(f"{name:<{width}}  {value}" for name, value in shown.items()))
    return EXIT_OK
