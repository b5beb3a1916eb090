"""The values of the core: small, and the same from their making to their end."""

import dataclasses
import importlib
import inspect
import pkgutil
from collections.abc import Iterator

import timer_service.domain
import timer_service.ports
import timer_service.workflows

CHANGING = {"_Blocked", "_Queue", "_Tenant"}
"""They count and queue, and are no values."""


def test_every_value_of_the_core_has_slots_and_can_be_a_key() -> None:
    values = list(_dataclasses())

    assert len(values) > 50
    assert [each.__qualname__ for each in values if "__slots__" not in vars(each)] == []
    assert {each.__qualname__ for each in values if each.__hash__ is None} == CHANGING


def _dataclasses() -> Iterator[type]:
    for package in (timer_service.domain, timer_service.ports, timer_service.workflows):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            for _, found in inspect.getmembers(importlib.import_module(module.name), inspect.isclass):
                if dataclasses.is_dataclass(found) and found.__module__ == module.name:
                    yield found
