"""Whose turn it is: attempts wait in lanes, one for each tenant and receiver, and tenants share the slots.

A tenant's turns are counted in seconds of slots, not in requests: a receiver that hangs uses up the share of
its own tenant. No tenant holds more slots than are free, so that there is always one for a newcomer; the same
goes for the seats in memory.
"""

from collections import Counter, OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Final, Generic, TypeVar

from timer_service.domain.delivery import CallResult
from timer_service.domain.messages import TenantId
from timer_service.domain.pace import NEW_RECEIVER, Pace

MAX_SLOTS: Final = 256
MAX_LANE_QUEUE: Final = 128
"""Attempts of one lane in memory; the others are found in the store when their turn comes."""
MAX_QUEUED: Final = 25_000
"""Attempts of all lanes in memory."""
MAX_REMEMBERED: Final = 10_000
"""Idle receivers whose pace is remembered."""
FIRST_CHARGE_S: Final = 0.05
_SMOOTHING: Final = 0.2

Lane = tuple[TenantId, str]
K = TypeVar("K", bound=Hashable)


@dataclass(slots=True)
class _Queue(Generic[K]):
    """What waits for one receiver of a tenant."""

    waiting: list[K] = field(default_factory=list)
    """A list, because most lanes hold one, and none more than MAX_LANE_QUEUE."""
    under_way: int = 0
    pace: Pace = NEW_RECEIVER
    has_more: bool = False
    """Whether there is more in the store than is here."""
    tried_again_at_s: float | None = None
    """When it was last put among those that wait for their receiver to come back."""


@dataclass(slots=True)
class _Tenant:
    """What a tenant has used, and where it has something to send."""

    used_s: float
    under_way: int = 0
    usual_s: float = FIRST_CHARGE_S
    ready: OrderedDict[Lane, None] = field(default_factory=OrderedDict)
    turn: int = 0
    """The number of its place in the line, the only one that counts; 0 if it does not stand there."""
    lanes: int = 0


class Seats(Generic[K]):
    """Seats in memory: which attempt goes where, and whether its tenant may have more."""

    def __init__(self, seats: int) -> None:
        self._seats = seats
        self._lane_of: dict[K, Lane] = {}
        self._held: Counter[TenantId] = Counter()
        """How many of these each tenant has."""
        self._left_out: set[TenantId] = set()
        """Tenants of which not everything was taken in, because they had too many."""

    def __contains__(self, key: K) -> bool:
        """Return whether an attempt waits, is under way, or has an outcome that is not kept yet."""
        return key in self._lane_of

    def __len__(self) -> int:
        return len(self._lane_of)

    @property
    def is_full(self) -> bool:
        """Whether no more attempts are taken in for now."""
        return len(self) >= self._seats

    def lane_of(self, key: K) -> Lane:
        """Return where an attempt goes."""
        return self._lane_of[key]

    def has_seat_for(self, tenant_id: TenantId) -> bool:
        """Return whether one more attempt of a tenant is taken in."""
        return self._held[tenant_id] < self._seats - len(self)

    def leave_out(self, tenant_id: TenantId) -> None:
        """Note that a tenant has more, for which there is no seat."""
        self._left_out.add(tenant_id)

    def take_in(self, key: K, lane: Lane) -> None:
        """Give an attempt a seat."""
        self._lane_of[key] = lane
        self._held[lane[0]] += 1

    def let_go(self, key: K) -> Lane:
        """Take the seat of an attempt back; return where it went."""
        lane = self._lane_of.pop(key)
        self._held[lane[0]] -= 1
        if not self._held[lane[0]]:
            del self._held[lane[0]]
        return lane

    def wants_more(self) -> bool:
        """Return, once, whether there are seats again for tenants of which something was left out."""
        # Room for many: what is taken in then lies behind all that is here already.
        free = self._seats - len(self)
        again = {tenant for tenant in self._left_out if self._held[tenant] < free // 4}
        self._left_out -= again
        return bool(again)


class Lanes(Generic[K]):
    """Attempts that wait and those under way; all times are seconds of a clock that never leaps."""

    def __init__(self, slots: int = MAX_SLOTS, seats: int = MAX_QUEUED) -> None:
        self.seats = Seats[K](seats)
        self._slots = slots
        self._under_way = 0
        self._queues: dict[Lane, _Queue[K]] = {}
        self._tenants: dict[TenantId, _Tenant] = {}
        self._turns: list[tuple[float, int, TenantId]] = []
        """Tenants that may send, least used first; an entry may be outdated."""
        self._pauses: list[tuple[float, int, Lane]] = []
        """Lanes that may send again, by the time from which they may."""
        self._taken: dict[K, tuple[float, float]] = {}
        """When each attempt began, and what its tenant was charged for it."""
        self._with_more: dict[Lane, None] = {}
        self._paces: OrderedDict[Lane, Pace] = OrderedDict()
        self._floor_s = 0.0
        self._count = 0

    @property
    def under_way(self) -> int:
        """How many slots are taken."""
        return self._under_way

    @property
    def open_breakers(self) -> int:
        """How many receivers count as gone."""
        paces = [*(queue.pace for queue in self._queues.values()), *self._paces.values()]
        return sum(pace.is_open for pace in paces)

    def open_until_s(self, lane: Lane) -> float | None:
        """Return until when nothing is sent to a receiver that counts as gone; None if it does not."""
        queue = self._queues.get(lane)
        return (self._paces.get(lane, NEW_RECEIVER) if queue is None else queue.pace).open_until_s

    def offer(self, key: K, lane: Lane, now_s: float) -> None:
        """Let an attempt wait for its turn; of a lane or a tenant with many only the first are taken in."""
        if key in self.seats:
            return
        if not self.seats.has_seat_for(lane[0]):
            self.seats.leave_out(lane[0])
            return
        queue = self._queues.get(lane)
        if queue is None:
            queue = self._queues[lane] = _Queue(pace=self._paces.pop(lane, NEW_RECEIVER))
            self._tenant(lane[0]).lanes += 1
        if len(queue.waiting) >= MAX_LANE_QUEUE:
            queue.has_more = True
            self._with_more[lane] = None
            return
        queue.waiting.append(key)
        self.seats.take_in(key, lane)
        self._make_ready(lane, queue, now_s)

    def take(self, now_s: float) -> list[K]:
        """Return the attempts that may begin now; the caller reports what becomes of each."""
        self._end_pauses(now_s)
        taken: list[K] = []
        passed_over: list[TenantId] = []
        while self._turns and self._under_way < self._slots:
            used_s, turn, tenant_id = heappop(self._turns)
            tenant = self._tenants.get(tenant_id)
            if tenant is None or tenant.turn != turn:
                continue
            tenant.turn = 0
            if not tenant.ready:
                continue
            if used_s < tenant.used_s:
                self._in_line(tenant_id, tenant)
            elif tenant.under_way >= self._slots - self._under_way:
                passed_over.append(tenant_id)
            else:
                self._floor_s = max(self._floor_s, used_s)
                taken.append(self._take_from(tenant_id, tenant, now_s))
        for tenant_id in passed_over:
            self._in_line(tenant_id, self._tenants[tenant_id])
        return taken

    def done(self, key: K, result: CallResult | None, now_s: float) -> None:
        """Give the slot of an attempt back; it stays known until it is forgotten.

        Without a result there was no request.
        """
        lane = self.seats.lane_of(key)
        queue, tenant = self._queues[lane], self._tenants[lane[0]]
        began_s, charged_s = self._taken.pop(key)
        self._under_way -= 1
        queue.under_way -= 1
        tenant.under_way -= 1
        if result is None:
            tenant.used_s -= charged_s
        else:
            spent_s = max(0.001, now_s - began_s)
            tenant.used_s += spent_s - charged_s
            tenant.usual_s += _SMOOTHING * (spent_s - tenant.usual_s)
            queue.pace = queue.pace.after(result, now_s)
        self._make_ready(lane, queue, now_s)

    def forget(self, key: K) -> None:
        """Forget an attempt that is done."""
        lane = self.seats.let_go(key)
        queue = self._queues.get(lane)
        if queue is not None and not queue.waiting and not queue.under_way and not queue.has_more:
            self._drop(lane, queue)

    def outdate(self, lane: Lane) -> None:
        """Forget what waits in a lane because it is outdated; the store has the truth."""
        if (queue := self._queues.get(lane)) is not None:
            for key in queue.waiting:
                self.seats.let_go(key)
            queue.waiting.clear()
            self._tenants[lane[0]].ready.pop(lane, None)
            queue.has_more = True
            self._with_more[lane] = None

    def next_at_s(self) -> float | None:
        """Return when a receiver that is given nothing now may be tried again; None if none waits."""
        return self._pauses[0][0] if self._pauses else None

    def hungry(self) -> list[Lane]:
        """Return lanes that are running low here and have more in the store."""
        return [
            lane
            for lane in self._with_more
            if len(self._queues[lane].waiting) < MAX_LANE_QUEUE // 4 and self.seats.has_seat_for(lane[0])
        ]

    def has_no_more(self, lane: Lane) -> None:
        """Record that everything of a lane is in memory."""
        queue = self._queues.get(lane)
        self._with_more.pop(lane, None)
        if queue is not None:
            queue.has_more = False
            if not queue.waiting and not queue.under_way:
                self._drop(lane, queue)

    def _end_pauses(self, now_s: float) -> None:
        while self._pauses and self._pauses[0][0] <= now_s:
            _, _, lane = heappop(self._pauses)
            if lane in self._queues:
                self._make_ready(lane, self._queues[lane], now_s)

    def _take_from(self, tenant_id: TenantId, tenant: _Tenant, now_s: float) -> K:
        lane, _ = tenant.ready.popitem(last=False)
        queue = self._queues[lane]
        key = queue.waiting.pop(0)
        queue.under_way += 1
        tenant.under_way += 1
        self._under_way += 1
        tenant.used_s += tenant.usual_s
        self._taken[key] = (now_s, tenant.usual_s)
        self._make_ready(lane, queue, now_s)
        if tenant.ready and not tenant.turn:
            self._in_line(tenant_id, tenant)
        return key

    def _make_ready(self, lane: Lane, queue: _Queue[K], now_s: float) -> None:
        tenant = self._tenants[lane[0]]
        if not queue.waiting or not queue.pace.allows(queue.under_way, now_s):
            tenant.ready.pop(lane, None)
            again_s = queue.pace.open_until_s
            if queue.waiting and again_s is not None and queue.tried_again_at_s != again_s > now_s:
                queue.tried_again_at_s = again_s
                self._count += 1
                heappush(self._pauses, (again_s, self._count, lane))
            return
        tenant.ready[lane] = None
        if not tenant.turn:
            if not tenant.under_way:
                # A tenant that was away has saved nothing up.
                tenant.used_s = max(tenant.used_s, self._floor_s)
            self._in_line(lane[0], tenant)

    def _in_line(self, tenant_id: TenantId, tenant: _Tenant) -> None:
        self._count += 1
        tenant.turn = self._count
        heappush(self._turns, (tenant.used_s, self._count, tenant_id))

    def _tenant(self, tenant_id: TenantId) -> _Tenant:
        if tenant_id not in self._tenants:
            self._tenants[tenant_id] = _Tenant(self._floor_s)
        return self._tenants[tenant_id]

    def _drop(self, lane: Lane, queue: _Queue[K]) -> None:
        del self._queues[lane]
        if queue.pace != NEW_RECEIVER:
            self._paces[lane] = queue.pace
            if len(self._paces) > MAX_REMEMBERED:
                self._paces.popitem(last=False)
        tenant = self._tenants[lane[0]]
        tenant.ready.pop(lane, None)
        tenant.lanes -= 1
        if not tenant.lanes:
            del self._tenants[lane[0]]
