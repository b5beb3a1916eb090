"""What is said if the port of the REST API is taken."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from timer_service.adapters.http.listening import listen
from timer_service.config import load_settings
from timer_service.domain.errors import CriticalError
from timer_service.wiring.rest_api import RestParts, rest_api


def complaint(folder: Path, **settings: Any) -> str:
    parts = cast("RestParts", SimpleNamespace(listener=None))
    with listen("127.0.0.1", 0, remedy="") as taken:
        port = taken.getsockname()[1]
        loaded = load_settings(db_path=folder / "timers.db", api_port=port, **settings)
        with pytest.raises(CriticalError) as raised:
            rest_api(loaded, parts)
    return str(raised.value).rpartition(": ")[2]


def test_a_port_that_is_taken_can_be_changed_or_disabled(tmp_path: Path) -> None:
    said = complaint(tmp_path)

    assert said == "set TIMER_API_HOST and TIMER_API_PORT, or TIMER_API_PORT=0 to disable it"


def test_without_a_broker_the_only_way_in_is_not_to_be_disabled(tmp_path: Path) -> None:
    said = complaint(tmp_path, broker_url="none")

    assert said == "set TIMER_API_HOST or TIMER_API_PORT to another one"
