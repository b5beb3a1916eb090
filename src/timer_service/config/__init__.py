"""Every setting, from the environment or a `.env` file."""

from timer_service.config.checks import env_name, read_groups, read_networks
from timer_service.config.durations import parse_duration
from timer_service.config.loading import load_settings, unknown_variables
from timer_service.config.nats import nats_connect_options
from timer_service.config.settings import Settings

__all__ = [
    "Settings",
    "env_name",
    "load_settings",
    "nats_connect_options",
    "parse_duration",
    "read_groups",
    "read_networks",
    "unknown_variables",
]
