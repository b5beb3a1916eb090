"""The `timer-service` command: one module per group of commands."""

from timer_service.cli.main import main

__all__ = ["main"]
