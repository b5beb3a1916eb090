"""Questions about callbacks: every caller gets an answer, and the service hears of fatal errors."""

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any, NoReturn, cast

import pytest

from tests.support.timers import ACME, call
from timer_service.deliveries import Deliveries
from timer_service.domain.errors import CriticalError, StoreFailed
from timer_service.ports.callback_list import CallbackList, CallbackQuery
from timer_service.ports.delivery_store import DeliveryQuery, DeliveryStore
from timer_service.testing import ManualClock


class _FailedStore:
    """A store whose disk has failed."""

    async def get(self, _: Any) -> NoReturn:
        raise StoreFailed("the disk is gone")

    list_deliveries = get
    page = get

    async def replay(self, _: DeliveryQuery, __: datetime) -> NoReturn:
        raise StoreFailed("the disk is gone")

    async def abandon(self, _: Any, __: datetime) -> NoReturn:
        raise StoreFailed("the disk is gone")


@pytest.mark.parametrize(
    "ask",
    [
        lambda deliveries: deliveries.record((ACME, call("order-1"))),
        lambda deliveries: deliveries.records([(ACME, call("order-1"))]),
        lambda deliveries: deliveries.list(DeliveryQuery(ACME)),
        lambda deliveries: deliveries.timers(CallbackQuery(ACME)),
        lambda deliveries: deliveries.retry(ACME, call("order-1")),
        lambda deliveries: deliveries.retry_all(DeliveryQuery(ACME)),
        lambda deliveries: deliveries.abandon(ACME, call("order-1")),
    ],
)
async def test_a_store_that_fails_under_a_request_about_callbacks_ends_the_service(
    ask: Callable[[Deliveries], Awaitable[object]],
) -> None:
    told: list[CriticalError] = []
    store = cast("DeliveryStore", _FailedStore())
    deliveries = Deliveries(
        *(store, cast("CallbackList", _FailedStore()), ManualClock()), lambda _: None, told.append
    )

    with pytest.raises(StoreFailed) as raised:
        await ask(deliveries)

    assert told == [raised.value]
