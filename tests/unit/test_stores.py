"""What a person is told of a store that cannot be opened."""

import sys

import pytest

from timer_service.bootstrap import open_service
from timer_service.config import load_settings
from timer_service.domain.errors import InvalidConfiguration
from timer_service.wiring import stores


async def test_postgresql_without_its_driver_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    settings = load_settings(store_url="postgresql://localhost/timers", http_port=0)

    with pytest.raises(InvalidConfiguration) as caught:
        async with open_service(settings):
            pass

    assert str(caught.value) == (
        "TIMER_STORE_URL names a PostgreSQL database: install timer-service[postgres]"
    )


@pytest.mark.parametrize(("as_source", "option"), [(True, "--from"), (False, "--to")])
def test_a_copy_names_the_option_that_is_no_address(as_source: bool, option: str) -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        stores.open_archive("timers.db", as_source=as_source)

    assert str(caught.value) == (
        f"{option} must be sqlite:///path or postgresql://user:password@host:port/database"
    )
