"""Read the settings, and say what is wrong with them: a value that is not allowed, a misspelt name."""

import difflib
import os
from typing import Any

from dotenv import dotenv_values
from pydantic import ValidationError

from timer_service.addresses import MASK
from timer_service.config.checks import ENV_PREFIX, env_name
from timer_service.config.settings import Settings, shown_value
from timer_service.domain.errors import InvalidConfiguration


def load_settings(**overrides: Any) -> Settings:
    """Read the settings, or raise InvalidConfiguration that names every wrong value."""
    try:
        return Settings(**overrides)
    except UnicodeDecodeError as error:
        raise InvalidConfiguration(f".env must be a text file in UTF-8: {error}") from error
    except ValidationError as error:
        raise InvalidConfiguration("; ".join(_explain(problem) for problem in error.errors())) from error


def unknown_variables() -> list[str]:
    """Return a hint for each TIMER_ variable in the environment or `.env` that is not a setting."""
    known = [env_name(name) for name in Settings.model_fields]
    hints = []
    for name in sorted({*os.environ, *dotenv_values(".env")}):
        if name.upper().startswith(ENV_PREFIX) and name.upper() not in known:
            close = difflib.get_close_matches(name.upper(), known, n=1)
            hints.append(f"{name} is not a setting" + (f"; did you mean {close[0]}?" if close else ""))
    return hints


def _explain(problem: Any) -> str:
    if not problem["loc"]:
        return str(problem["msg"]).removeprefix("Value error, ")
    field = str(problem["loc"][0])
    name = field.lower().removeprefix(ENV_PREFIX.lower())
    extra = Settings.model_fields[name].json_schema_extra
    allowed = extra["allowed"] if isinstance(extra, dict) else "another value"
    return f"{env_name(name)}={_quoted(name, problem['input'])}: must be {allowed}"


def _quoted(name: str, value: object) -> str:
    if "SecretStr" in str(Settings.model_fields[name].annotation):
        return MASK
    return repr(shown_value(name, value) if name == "broker_url" else value)
