"""How much each tenant may request: a rate per tenant, and turns between tenants for what waits."""

from collections import Counter, OrderedDict, deque
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, Generic, TypeVar

MAX_TENANTS: Final = 10_000
"""Tenants whose rate is remembered; beyond that, the one that has been quiet longest is forgotten."""
MAX_WAITING: Final = 8_192
MAX_WAITING_OF_TENANT: Final = 1_024
MAX_UNDER_WAY: Final = 128
MAX_UNDER_WAY_OF_TENANT: Final = 32
_ROUNDING_S: Final = 1e-6

T = TypeVar("T")


class RateLimit:
    """A number of requests per second and tenant, with a burst; a rate of 0 sets no limit."""

    def __init__(self, rate: float, burst: int, max_tenants: int = MAX_TENANTS) -> None:
        self._interval_s = 1 / rate if rate else 0.0
        self._tolerance_s = (burst - 1) * self._interval_s
        self._max_tenants = max_tenants
        self._paid_until: OrderedDict[str, float] = OrderedDict()
        """When each tenant would be back at a full burst; least recently allowed first."""

    def wait_s(self, tenant: str, now_s: float) -> float:
        """Allow one request and return 0, or return after how many seconds the next is allowed."""
        if not self._interval_s:
            return 0.0
        paid_until = max(self._paid_until.get(tenant, now_s), now_s)
        ahead_s = paid_until - now_s - self._tolerance_s
        if ahead_s > _ROUNDING_S:
            return ahead_s
        self._paid_until[tenant] = paid_until + self._interval_s
        self._paid_until.move_to_end(tenant)
        if len(self._paid_until) > self._max_tenants:
            self._paid_until.popitem(last=False)
        return 0.0

    def left(self, tenant: str, now_s: float) -> int | None:
        """Return how many requests a tenant may send at once; None if there is no limit."""
        if not self._interval_s:
            return None
        ahead_s = max(self._paid_until.get(tenant, now_s) - now_s, 0.0)
        return max(0, 1 + int((self._tolerance_s - ahead_s + _ROUNDING_S) // self._interval_s))

    def charge(self, tenant: str, requests: int) -> None:
        """Count a request that was allowed as `requests` more."""
        if tenant in self._paid_until:
            self._paid_until[tenant] += requests * self._interval_s

    def __len__(self) -> int:
        """Return how many tenants are remembered."""
        return len(self._paid_until)


class Room(Enum):
    """Whether a request may wait for its turn."""

    FREE = auto()
    TENANT_FULL = auto()
    FULL = auto()


@dataclass(frozen=True, slots=True)
class TurnLimits:
    """How much may wait and be under way, in all and of one tenant."""

    waiting: int = MAX_WAITING
    waiting_of_tenant: int = MAX_WAITING_OF_TENANT
    under_way: int = MAX_UNDER_WAY
    under_way_of_tenant: int = MAX_UNDER_WAY_OF_TENANT


class Turns(Generic[T]):
    """What waits, tenant by tenant: the next is taken from the tenant that was served longest ago."""

    def __init__(self, limits: TurnLimits | None = None) -> None:
        self._limits = limits or TurnLimits()
        self._queues: OrderedDict[str, deque[T]] = OrderedDict()
        self._waiting = 0
        self._under_way: Counter[str] = Counter()

    def offer(self, tenant: str, item: T) -> Room:
        """Let an item wait for its turn, if there is room."""
        queue = self._queues.get(tenant)
        if queue is not None and len(queue) >= self._limits.waiting_of_tenant:
            return Room.TENANT_FULL
        if self._waiting >= self._limits.waiting:
            return Room.FULL
        if queue is None:
            queue = self._queues[tenant] = deque()
        queue.append(item)
        self._waiting += 1
        return Room.FREE

    def take(self) -> T | None:
        """Return the item whose turn it is; the caller reports `done` when it is finished."""
        if self._under_way.total() >= self._limits.under_way:
            return None
        for tenant, queue in self._queues.items():
            if self._under_way[tenant] < self._limits.under_way_of_tenant:
                self._under_way[tenant] += 1
                self._waiting -= 1
                item = queue.popleft()
                self._queues.move_to_end(tenant)
                if not queue:
                    del self._queues[tenant]
                return item
        return None

    def done(self, tenant: str) -> None:
        """Free the place of one of the tenant's items."""
        self._under_way[tenant] -= 1
        if not self._under_way[tenant]:
            del self._under_way[tenant]

    def __len__(self) -> int:
        """Return how many items wait."""
        return self._waiting

    def clear(self) -> list[T]:
        """Return all that waits, and forget it."""
        items = [item for queue in self._queues.values() for item in queue]
        self._queues.clear()
        self._waiting = 0
        return items
