"""The compose files of a service without a broker, as far as they can be checked without Docker."""

import json
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.documents import ROOT, read
from tests.support.process import run_cli
from timer_service.config import Settings, env_name, parse_duration
from timer_service.secret_keys import new_secret_key
from timer_service.service.run import SHUTDOWN_GRACE_S

FILES = ("deploy/compose.rest.yaml", "deploy/compose.rest-postgres.yaml")


def service_of(path: str) -> dict[str, Any]:
    return dict(yaml.safe_load(read(path))["services"]["timer-service"])


def filled_in(value: str) -> str:
    """Return a value as it is with the variables that the reader sets."""
    given = {
        "TIMER_API_KEY": "k" * 32,
        "TIMER_SECRET_KEYS": new_secret_key(),
        "POSTGRES_PASSWORD": "secret",
    }
    return re.sub(r"\$\{(\w+):\?[^}]*\}", lambda found: given[found[1]], value)


@pytest.mark.parametrize("path", FILES)
def test_every_variable_is_a_setting_and_its_value_allowed(path: str, tmp_path: Path) -> None:
    environment = {name: filled_in(value) for name, value in service_of(path)["environment"].items()}
    settings: dict[str, Any] = {
        name.removeprefix("TIMER_").lower(): each for name, each in environment.items()
    }

    done = run_cli("config", "--json", cwd=tmp_path, **settings)

    assert environment.keys() <= {env_name(name) for name in Settings.model_fields}
    assert (done.returncode, done.stderr) == (0, "")
    shown = json.loads(done.stdout)
    assert (shown["TIMER_BROKER_URL"], shown["TIMER_API_PORT"]) == ("none", "3000")
    assert shown["TIMER_API_KEY"] == "*****"


@pytest.mark.parametrize("path", FILES)
def test_no_secret_stands_in_the_file_or_can_be_left_out(path: str) -> None:
    text = read(path)

    assert set(re.findall(r"\$\{(\w+)", text)) == set(re.findall(r"\$\{(\w+):\?", text))
    secrets = [name for name in service_of(path)["environment"] if name.endswith(("KEY", "KEYS"))]
    assert all(service_of(path)["environment"][name].startswith("${") for name in secrets)


@pytest.mark.parametrize("path", FILES)
def test_the_service_has_no_more_than_it_needs_and_time_to_finish(path: str) -> None:
    service = service_of(path)

    assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    assert parse_duration(service["stop_grace_period"]) > timedelta(seconds=SHUTDOWN_GRACE_S)
    assert ((ROOT / path).parent / service["build"]["context"]).resolve() == ROOT


def test_on_postgresql_the_service_waits_for_its_database_which_keeps_its_data() -> None:
    document = yaml.safe_load(read(FILES[1]))

    assert document["services"]["timer-service"]["depends_on"] == {
        "postgres": {"condition": "service_healthy"}
    }
    assert document["services"]["postgres"]["volumes"] == ["postgres-data:/var/lib/postgresql"]
    assert list(document["volumes"]) == ["postgres-data"]
