"""The `timer-service` command: one module a group of commands."""

from timer_service.cli.main import main

__all__ = ["main"]
