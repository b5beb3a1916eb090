"""The API on a real broker: who is let in, in which order, and what becomes of the rest."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError
from structlog.testing import capture_logs

from tests.support.broker import NatsServer, told
from tests.support.patience import PATIENCE_S
from tests.support.timers import at, scheduled_timer
from timer_client import OperatorClient, wire
from timer_client.subjects import Subjects
from timer_service.adapters.endpoints import BUSY
from timer_service.adapters.nats.client import TolerantClient
from timer_service.adapters.nats.requests import RequestApi, request_api
from timer_service.domain.admission import (
    MAX_UNDER_WAY,
    MAX_UNDER_WAY_OF_TENANT,
    RateLimit,
    TurnLimits,
)
from timer_service.domain.callback import Callback, NoCallback
from timer_service.domain.errors import RequestRefused, StoreBusy, StoreFailed, TimerNotFound
from timer_service.domain.messages import CorrelationId, ServiceCallId, TenantId, Trace
from timer_service.domain.timer import Outcome, Timer
from timer_service.ports.health import Recent
from timer_service.ports.timer_store import TimerQuery
from timer_service.timers import Status, Timers
from timer_service.workflows.decide_timer import Settled


class FakeTimers(Timers):
    """Answers as a test wants it, and counts who is being served."""

    def __init__(
        self,
        instance: str = "here-1",
        rate_limit: RateLimit | None = None,
        turn_limits: TurnLimits | None = None,
        error: Callable[[], Exception | None] = lambda: None,
    ) -> None:
        self.instance = instance
        self.rate_limit = RateLimit(0, 1) if rate_limit is None else rate_limit
        self.turn_limits = turn_limits
        self.error = error
        self.open = asyncio.Event()
        self.timers: list[Timer] = []
        self.is_known = True
        self.served: list[str] = []
        self.outcomes: Counter[str] = Counter()

    def api(self, prefix: str) -> AbstractAsyncContextManager[RequestApi]:
        return request_api(
            self,
            Subjects(prefix),
            rate_limit=self.rate_limit,
            turn_limits=self.turn_limits,
            answered=self._note_outcome,
        )

    async def get(self, tenant_id: TenantId, service_call_id: ServiceCallId) -> Timer:
        self.served.append(tenant_id)
        await self.open.wait()
        if (error := self.error()) is not None:
            raise error
        if not self.is_known:
            raise TimerNotFound(service_call_id)
        return scheduled_timer(service_call_id)

    async def list(self, query: TimerQuery) -> list[Timer]:
        after = "" if query.after is None else query.after[1]
        return [timer for timer in self.timers if timer.service_call_id > after][: query.limit]

    async def schedule(
        self,
        tenant_id: TenantId,
        service_call_id: ServiceCallId,
        due_at: datetime,
        correlation_id: CorrelationId | None,
        trace: Trace | None,
        callback: Callback | NoCallback | None = None,
        *,
        if_absent: bool = False,
        expires_after_ms: int | None = None,
    ) -> Settled:
        return Settled(Outcome.SCHEDULED, scheduled_timer(service_call_id))

    async def cancel(self, tenant_id: TenantId, service_call_id: ServiceCallId) -> Settled:
        return Settled(Outcome.NOT_FOUND, scheduled_timer(service_call_id))

    async def status(self) -> Status:
        return Status(
            instance=self.instance,
            version="1.2.3",
            broker=None,
            problems={},
            pending=3,
            overdue=1,
            oldest_overdue_s=0.5,
            next_due_at=at(60),
            store_bytes=4096,
            recent=Recent(1.0, 2.0, 0.01, None),
        )

    async def accept_clock_step(self) -> float:
        return 0.0

    def _note_outcome(self, endpoint: str, outcome: str, seconds: float) -> None:
        self.outcomes[outcome] += 1


class Line:
    """An API that serves, and a tenant who asks."""

    def __init__(self, api: RequestApi, timers: FakeTimers, client: Client) -> None:
        self.api = api
        self.timers = timers
        self.client = client
        self.prefix = ""

    async def ask(self, endpoint: str = "get", tenant: str = "acme", **request: Any) -> Msg:
        body = json.dumps(request or {"serviceCallId": "order-1"}).encode()
        return await self.client.request(f"{self.prefix}.api.{tenant}.{endpoint}", body, timeout=PATIENCE_S)

    def asking(self, count: int, tenant: str = "acme") -> "list[asyncio.Task[Msg]]":
        return [asyncio.create_task(self.ask(tenant=tenant)) for _ in range(count)]

    async def until_served(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while len(self.timers.served) < count:
                await asyncio.sleep(0)


@asynccontextmanager
async def serving(
    broker: NatsServer,
    prefix: str,
    timers: FakeTimers | None = None,
    served_by: TolerantClient | None = None,
) -> AsyncIterator[Line]:
    timers, served_by = timers or FakeTimers(), served_by or TolerantClient()
    client = await nats.connect(broker.url)
    await served_by.connect(servers=[broker.url])
    try:
        async with timers.api(prefix) as api:
            await api.start(served_by)
            line = Line(api, timers, client)
            line.prefix = prefix
            try:
                yield line
            finally:
                timers.open.set()
    finally:
        await client.close()
        await served_by.close()


@pytest.fixture
async def line(shared_broker: NatsServer, prefix: str) -> AsyncIterator[Line]:
    async with serving(shared_broker, prefix) as opened:
        yield opened


def code(answer: Msg) -> str:
    return (answer.headers or {}).get("Nats-Service-Error-Code", "ok")


def error(answer: Msg) -> str:
    return (answer.headers or {})["Nats-Service-Error"]


async def test_places_are_given_back_whatever_the_answer_was(line: Line) -> None:
    errors = [None, StoreBusy("locked"), ValueError("a bug"), RequestRefused("no such value")]
    line.timers.open.set()
    line.timers.error = lambda: errors[len(line.timers.served) % len(errors)]

    answers = [code(await task) for task in line.asking(3 * MAX_UNDER_WAY)]

    assert Counter(answers) == {"ok": 96, "503": 96, "500": 96, "400": 96}


async def test_a_timer_that_is_not_there_is_not_found(line: Line) -> None:
    line.timers.open.set()
    line.timers.is_known = False

    answer = await line.ask()

    assert (code(answer), error(answer)) == ("404", "there is no timer 'order-1'")


async def test_a_subject_without_a_valid_tenant_is_refused(line: Line) -> None:
    answer = await line.ask(tenant="a$b")

    assert code(answer) == "400"
    assert error(answer).startswith("subject: the tenant must be")
    assert line.timers.served == []


async def test_with_too_many_requests_of_all_tenants_in_hand_the_next_is_told_to_come_again(
    shared_broker: NatsServer, prefix: str
) -> None:
    timers = FakeTimers(turn_limits=TurnLimits(waiting=1, under_way=1))
    async with serving(shared_broker, prefix, timers) as line:
        asked = line.asking(1, "acme")
        await line.until_served(1)
        asked += line.asking(1, "globex")
        async with asyncio.timeout(PATIENCE_S):
            while line.api.waiting == 0:
                await asyncio.sleep(0)

        answer = await line.ask(tenant="initech")

        assert (code(answer), error(answer)) == ("503", BUSY.text)
        assert (answer.headers or {})["Retry-After"] == "1"
        timers.open.set()
        assert [code(each) for each in await asyncio.gather(*asked)] == ["ok", "ok"]


class LateClient(TolerantClient):
    """A client that has one more request come in before it tells the broker to send no more."""

    one_more: Callable[[], Awaitable[None]] | None = None

    async def send_no_more(self, subscription: Subscription) -> None:
        if self.one_more is not None:
            one_more, self.one_more = self.one_more, None
            await one_more()
        await super().send_no_more(subscription)


async def test_what_comes_in_while_it_stops_is_refused_and_what_is_under_way_is_answered(
    shared_broker: NatsServer, prefix: str
) -> None:
    served_by = LateClient()
    async with serving(shared_broker, prefix, served_by=served_by) as line:
        [under_way] = line.asking(1)
        await line.until_served(1)
        inbox = await line.client.subscribe("_INBOX.late")

        async def one_more() -> None:
            await line.client.publish(f"{line.prefix}.api.acme.get", b"{}", reply="_INBOX.late")
            await told(line.client)

        served_by.one_more = one_more
        stopping = asyncio.create_task(line.api.stop())
        async with asyncio.timeout(PATIENCE_S):
            while not line.timers.outcomes["503"]:
                await asyncio.sleep(0)
        line.timers.open.set()
        await stopping

        assert code(await under_way) == "ok"
        assert code(await inbox.next_msg(timeout=PATIENCE_S)) == "503"


async def test_an_api_that_never_had_a_connection_stops_at_once() -> None:
    async with asyncio.timeout(PATIENCE_S), FakeTimers().api("timer"):
        pass


async def test_replies_go_to_inboxes_only(line: Line, prefix: str) -> None:
    line.timers.open.set()
    elsewhere = await line.client.subscribe(f"{prefix}.commands.>")
    with capture_logs() as logs:
        for _ in range(10):
            await line.client.publish(
                f"{prefix}.api.acme.get",
                b'{"serviceCallId": "a"}',
                reply=f"{prefix}.commands.globex.ScheduleTimer",
            )
        await line.ask()

    assert line.timers.served == ["acme"]
    assert elsewhere.pending_msgs == 0
    assert [entry["event"] for entry in logs] == ["request.ignored"]


async def test_one_tenant_never_has_all_places_and_another_does_not_wait_behind_it(line: Line) -> None:
    flood = line.asking(MAX_UNDER_WAY)
    await line.until_served(MAX_UNDER_WAY_OF_TENANT)

    other = line.asking(1, tenant="globex")
    await line.until_served(MAX_UNDER_WAY_OF_TENANT + 1)

    assert line.timers.served == ["acme"] * MAX_UNDER_WAY_OF_TENANT + ["globex"]
    line.timers.open.set()
    assert {code(await task) for task in flood + other} == {"ok"}


async def test_a_tenant_over_its_rate_is_told_when_to_come_again(
    shared_broker: NatsServer, prefix: str
) -> None:
    timers = FakeTimers(rate_limit=RateLimit(rate=1, burst=5))
    timers.open.set()
    with capture_logs() as logs:
        async with serving(shared_broker, prefix, timers) as line:
            answers = [await task for task in line.asking(50)]
            other = await line.ask(tenant="globex")

    refused = [answer for answer in answers if code(answer) == "429"]
    assert len(refused) >= 40
    assert {(answer.headers or {})["Retry-After"] for answer in refused} <= {"1", "2"}
    assert code(other) == "ok"
    assert [(e["event"], e["tenant_id"]) for e in logs] == [("requests.limited", "acme")]


async def test_a_tenant_with_too_many_waiting_is_refused_at_once(line: Line) -> None:
    flood = line.asking(1_100)
    done, _ = await asyncio.wait(flood, return_when=asyncio.FIRST_COMPLETED, timeout=PATIENCE_S)

    assert {code(task.result()) for task in done} == {"429"}
    line.timers.open.set()
    assert Counter([code(await task) for task in flood]) == {"ok": 1_024 + MAX_UNDER_WAY_OF_TENANT, "429": 44}


async def test_who_waits_when_the_service_stops_is_told_so_and_who_is_served_is_answered(line: Line) -> None:
    asked = line.asking(MAX_UNDER_WAY_OF_TENANT + 10)
    await line.until_served(MAX_UNDER_WAY_OF_TENANT)

    stopping = asyncio.create_task(line.api.stop())
    late = line.asking(20)
    await asyncio.sleep(0)
    line.timers.open.set()
    await stopping

    assert Counter([code(await task) for task in asked]) == {"ok": MAX_UNDER_WAY_OF_TENANT, "503": 10}
    told = await asyncio.gather(*late, return_exceptions=True)
    assert {code(x) if isinstance(x, Msg) else type(x).__name__ for x in told} <= {"503", "NoRespondersError"}


async def test_what_is_wrong_inside_is_not_told_outside_and_logged_once(line: Line) -> None:
    line.timers.open.set()
    line.timers.error = lambda: StoreBusy("postgresql://db.internal:5432/timers: deadlock")
    with capture_logs() as logs:
        answers = [await task for task in line.asking(20)]

    texts = {(answer.headers or {})["Nats-Service-Error"] for answer in answers}
    assert texts == {"try again: the store is busy"}
    assert [(entry["event"], entry["detail"]) for entry in logs] == [
        ("requests.failing", "postgresql://db.internal:5432/timers: deadlock")
    ]


async def test_a_failed_disk_ends_the_process_and_is_told_without_its_path(
    shared_broker: NatsServer, prefix: str
) -> None:
    timers = FakeTimers(error=lambda: StoreFailed("/var/lib/timer/timers.db: disk I/O error"))
    timers.open.set()
    answers: list[Msg] = []

    async def serve() -> None:
        async with serving(shared_broker, prefix, timers) as line:
            asked = line.asking(1)
            asked[0].add_done_callback(lambda task: answers.append(task.result()))
            await asyncio.sleep(PATIENCE_S)

    with pytest.raises(ExceptionGroup) as failure:
        await serve()

    assert isinstance(failure.value.exceptions[0], StoreFailed)
    [answer] = answers
    assert code(answer) == "500"
    assert "/var" not in (answer.headers or {})["Nats-Service-Error"]


class NarrowClient(TolerantClient):
    """A client of a broker that lets little pass."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__()
        self._max_bytes = max_bytes

    @property
    def max_payload(self) -> int:
        return self._max_bytes


async def test_a_page_that_does_not_fit_is_cut_and_leads_on(shared_broker: NatsServer, prefix: str) -> None:
    names = sorted(f"{number:03}{'☃' * 252}" for number in range(100))
    timers = FakeTimers()
    timers.timers = [scheduled_timer(name) for name in names]

    found: list[str] = []
    cursor: dict[str, str] = {}
    sizes = []
    async with serving(shared_broker, prefix, timers, NarrowClient(16_384)) as line:
        while True:
            answer = await line.ask("list", limit=100, **cursor)
            assert code(answer) == "ok"
            sizes.append(len(answer.data))
            page = json.loads(answer.data)
            found += [timer["serviceCallId"] for timer in page["timers"]]
            if "cursor" not in page:
                break
            cursor = {"cursor": page["cursor"]}

    assert found == names
    assert max(sizes) <= 16_384
    assert len(sizes) > 5


async def test_one_timer_that_does_not_fit_is_said_clearly(shared_broker: NatsServer, prefix: str) -> None:
    timers = FakeTimers()
    timers.open.set()
    timers.timers = [scheduled_timer("a" * 255)]

    async with serving(shared_broker, prefix, timers, NarrowClient(256)) as line:
        for answer in (await line.ask("list", limit=1), await line.ask("get", serviceCallId="a" * 255)):
            assert code(answer) == "500"
            assert "max_payload is 256" in (answer.headers or {})["Nats-Service-Error"]


class MuteClient(TolerantClient):
    """A client that fails to send answers, each time in another way."""

    def __init__(self, *failures: Exception) -> None:
        super().__init__()
        self.failures = list(failures)

    async def publish(self, subject: str, *args: Any, **options: Any) -> None:
        if subject.startswith("_INBOX") and self.failures:
            raise self.failures.pop(0)
        await super().publish(subject, *args, **options)


async def test_an_answer_that_cannot_be_sent_ends_nothing(shared_broker: NatsServer, prefix: str) -> None:
    timers = FakeTimers()
    timers.open.set()
    served_by = MuteClient(NatsError("gone"), OSError("gone"), RuntimeError("nobody expects it"))
    with capture_logs() as logs:
        async with serving(shared_broker, prefix, timers, served_by) as line:
            for _ in range(3):
                await line.client.publish(
                    f"{prefix}.api.acme.get", b'{"serviceCallId": "order-1"}', reply="_INBOX.mute"
                )
            async with asyncio.timeout(PATIENCE_S):
                while timers.outcomes["lost"] < 3:
                    await asyncio.sleep(0.01)
            answer = await line.ask()

    assert code(answer) == "ok"
    assert [entry["event"] for entry in logs if entry["log_level"] == "error"] == ["request.failed"]


async def test_every_instance_answers_an_operator(shared_broker: NatsServer, prefix: str) -> None:
    async with (
        serving(shared_broker, prefix, FakeTimers(instance="a-1")) as line,
        serving(shared_broker, prefix, FakeTimers(instance="b-2")),
        serving(shared_broker, prefix, FakeTimers(instance="c-3")),
        serving(shared_broker, prefix + "-other", FakeTimers(instance="d-4")),
    ):
        client = OperatorClient(line.client, prefix=prefix)

        assert [answer.instance for answer in await client.status()] == ["a-1", "b-2", "c-3"]
        assert await client.accept_clock_step() == [
            wire.ClockAnswer(instance=name, acceptedStepSeconds=0) for name in ("a-1", "b-2", "c-3")
        ]


async def test_one_instance_answers_a_tenant(shared_broker: NatsServer, prefix: str) -> None:
    several = [FakeTimers(instance=name) for name in ("a-1", "b-2", "c-3")]
    for timers in several:
        timers.open.set()
    async with (
        serving(shared_broker, prefix, several[0]) as line,
        serving(shared_broker, prefix, several[1]),
        serving(shared_broker, prefix, several[2]),
    ):
        for task in line.asking(60):
            assert code(await task) == "ok"

    assert sum(len(timers.served) for timers in several) == 60


async def test_nobody_there_is_said_at_once(shared_broker: NatsServer, prefix: str) -> None:
    connection = await nats.connect(shared_broker.url)
    try:
        with pytest.raises(nats.errors.NoRespondersError):
            await OperatorClient(connection, prefix=prefix).status()
    finally:
        await connection.close()
