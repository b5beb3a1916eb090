"""The NATS configurations in deploy/nats, used as they are: what each user can do, and what it cannot."""

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import nats
import nats.errors
import pytest
from nats.aio.client import Client
from nats.js.api import AckPolicy, ConsumerConfig, StreamConfig

from tests.support.broker import NatsServer, told
from tests.support.documents import ROOT
from tests.support.messages import encode, in_seconds, schedule
from tests.support.patience import PATIENCE_S
from tests.support.process import TimerServiceProcess, run_cli
from timer_client import Firing, OperatorClient, Outcome, Timers

CONFIGURATIONS = ROOT / "deploy" / "nats"
ONE_ACCOUNT = "permissions.conf"
ACCOUNTS = "accounts.conf"
USERS = ("service", "operator", "monitor", "acme", "globex")
CONSUMERS = {"acme": "acme-billing", "globex": "globex-shipping"}
ACKNOWLEDGEMENTS_TO_COME = "feature_flags { js_ack_fc_v2: true }"
LONG_AGO = "2020-01-01T00:00:00Z"
FAR_AHEAD = "9999-01-01T00:00:00Z"
JETSTREAM_NOT_ENABLED = 10039


@dataclass
class User:
    """A connection with a user's rights, and what the broker forbade it."""

    connection: Client
    errors: list[str] = field(default_factory=list)

    async def forbidden(self) -> list[str]:
        """Return the subjects that the broker refused so far, as nats-py shows them: in lower case."""
        await self.settle()
        return [match for error in self.errors for match in re.findall('"([^"]+)"', error)]

    async def settle(self) -> None:
        """Return once the broker has seen all that was sent: the ping of one flush may overtake it."""
        await told(self.connection)

    async def call(self, subject: str, **request: Any) -> dict[str, Any]:
        answer = await self.connection.request(subject, json.dumps(request).encode(), timeout=PATIENCE_S)
        assert not answer.headers, answer.headers
        result: dict[str, Any] = json.loads(answer.data)
        return result

    async def send(self, tenant: str, call: str, due: str, *, subject: str | None = None) -> None:
        """Publish ScheduleTimer and wait for the broker's confirmation."""
        await self.connection.jetstream(timeout=PATIENCE_S).publish(
            subject or f"timer.commands.{tenant}.ScheduleTimer", encode(schedule(tenant, call, due))
        )


@dataclass(frozen=True)
class Round:
    """What came of a timer and of a message that is no command, and how the service ended."""

    fired: str
    refused: str
    complaints: list[str]
    exit_code: int


class Site:
    """A broker with one of the shipped configurations, and a service on it."""

    def __init__(self, folder: Path, configuration: str, extra: str = "") -> None:
        self.folder = folder
        self.one_inbox_each = configuration == ONE_ACCOUNT
        included = os.path.relpath(CONFIGURATIONS / configuration, folder / "broker")
        self.broker = NatsServer(folder / "broker", f"include '{included}'\n{extra}")
        self.service = TimerServiceProcess(
            folder / "service",
            broker_url=self.broker.url,
            broker_user="service",
            broker_password=_password("service"),
            broker_inbox_prefix="_INBOX.service",
            http_port=0,
        )

    @asynccontextmanager
    async def user(self, name: str) -> AsyncIterator[User]:
        errors: list[str] = []

        async def remember(error: Exception) -> None:
            errors.append(str(error))

        connection = await nats.connect(
            self.broker.url,
            user=name,
            password=_password(name),
            inbox_prefix=f"_INBOX.{name}",
            error_cb=remember,
        )
        try:
            yield User(connection, errors)
        finally:
            await connection.close()

    def command_line(self, user: str, *arguments: str) -> tuple[int, str, str]:
        """Run the command line with a user's rights; return its exit code and what it printed."""
        done = run_cli(
            *arguments,
            cwd=self.folder,
            broker_url=self.broker.url,
            broker_user=user,
            broker_password=_password(user),
            broker_inbox_prefix=f"_INBOX.{user}",
        )
        return done.returncode, done.stdout, done.stderr

    async def prepare_consumers(self) -> None:
        """Create the tenants' consumers, as the operator does where each tenant has an account."""
        async with self.user("operator") as operator:
            for tenant, consumer in CONSUMERS.items():
                for stream, name, subject in (
                    ("TIMER_EVENTS", consumer, f"timer.events.{tenant}.>"),
                    ("TIMER_DEADLETTER", f"{tenant}-letters", f"timer.deadletter.{tenant}"),
                ):
                    await operator.connection.jetstream(timeout=PATIENCE_S).add_consumer(
                        stream,
                        ConsumerConfig(
                            name=name,
                            durable_name=name,
                            filter_subject=subject,
                            ack_policy=AckPolicy.EXPLICIT,
                        ),
                    )

    async def next_event(self, tenant: User, name: str) -> dict[str, Any]:
        """Read and acknowledge the next event through the tenant's durable consumer."""
        return await self._next(tenant, "TIMER_EVENTS", CONSUMERS[name])

    async def next_letter(self, tenant: User, name: str) -> dict[str, Any]:
        """Read and acknowledge the next dead letter through the tenant's durable consumer."""
        return await self._next(tenant, "TIMER_DEADLETTER", f"{name}-letters")

    async def _next(self, tenant: User, stream: str, durable: str) -> dict[str, Any]:
        domain = {} if self.one_inbox_each else {"domain": "timer"}
        consumer = await tenant.connection.jetstream(**domain, timeout=PATIENCE_S).pull_subscribe_bind(
            durable, stream
        )
        [message] = await consumer.fetch(1, timeout=PATIENCE_S)
        await message.ack_sync()
        await consumer.unsubscribe()
        event: dict[str, Any] = json.loads(message.data)
        return event

    def start(self) -> "Site":
        self.broker.start()
        self.service.start_ready()
        return self

    def stop(self) -> None:
        self.service.close()
        self.broker.stop()


@pytest.fixture(scope="module", autouse=True)
def passwords() -> Iterator[None]:
    """The environment from which the configurations take the passwords."""
    with pytest.MonkeyPatch.context() as patch:
        for user in USERS:
            patch.setenv(f"NATS_{user.upper()}_PASSWORD", _password(user))
        yield


@pytest.fixture(scope="module")
def one_account(passwords: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A site where permissions keep the tenants apart; the tests leave it in order."""
    site = Site(tmp_path_factory.mktemp("permissions"), ONE_ACCOUNT).start()
    yield site
    site.stop()


@pytest.fixture(scope="module")
def accounts(passwords: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A site where accounts keep the tenants apart; the tests leave it in order."""
    site = Site(tmp_path_factory.mktemp("accounts"), ACCOUNTS).start()
    asyncio.run(site.prepare_consumers())
    yield site
    site.stop()


@pytest.fixture
def open_site(tmp_path: Path) -> Iterator[Callable[..., Site]]:
    """Start a site that the test may break."""
    opened: list[Site] = []

    def start(configuration: str, extra: str = "") -> Site:
        opened.append(Site(tmp_path, configuration, extra))
        return opened[-1].start()

    yield start
    for site in opened:
        site.stop()


@pytest.fixture(params=[ONE_ACCOUNT, ACCOUNTS])
def either(request: pytest.FixtureRequest) -> Site:
    """Both sites, one after the other."""
    site: Site = request.getfixturevalue("one_account" if request.param == ONE_ACCOUNT else "accounts")
    return site


# The service


@pytest.mark.parametrize("acknowledgements", ["", ACKNOWLEDGEMENTS_TO_COME], ids=["of_today", "to_come"])
@pytest.mark.parametrize("configuration", [ONE_ACCOUNT, ACCOUNTS])
async def test_the_service_works_within_its_permissions(
    open_site: Callable[..., Site], configuration: str, acknowledgements: str
) -> None:
    site = open_site(configuration, acknowledgements)
    await site.prepare_consumers()

    first = await _one_round(site, "order-1")
    site.service.restart().wait_for_log("broker.connected")
    second = await _one_round(site, "order-2")

    assert first == Round(fired="order-1", refused="not_json", complaints=[], exit_code=0)
    assert second == Round(fired="order-2", refused="not_json", complaints=[], exit_code=0)


async def test_the_service_can_do_nothing_beyond_its_work(either: Site) -> None:
    publications = [
        "timer.commands.acme.ScheduleTimer",
        "timer.events.acme.Other",
        "timer.api.acme.get",
        *(f"$JS.API.STREAM.{verb}.TIMER_EVENTS" for verb in ("DELETE", "PURGE", "UPDATE", "MSG.GET")),
        "$JS.API.STREAM.CREATE.OTHER",
        "$JS.API.CONSUMER.CREATE.TIMER_EVENTS.timer-service.timer.events.>",
        "$JS.API.CONSUMER.DELETE.TIMER_COMMANDS.timer-service",
        "$JS.ACK.TIMER_EVENTS.acme-billing.1.1.1.1.0",
        "$SRV.PING",
    ]
    subscriptions = ["timer.commands.>", "timer.events.>", "timer.api.>", "$JS.API.>", ">"]

    async with either.user("service") as service:
        forbidden = await _try_all(service, publications, subscriptions)

    assert forbidden == [subject.lower() for subject in publications + subscriptions]


def test_the_page_needs_only_to_look_back_beside_what_the_service_may_do() -> None:
    blocks = [
        set(re.findall(r'^ +"([^#\n]*)"', block, re.MULTILINE))
        for name in ("roles.conf", "page.conf")
        for block in re.findall(
            r"^SERVICE_PERMISSIONS \{(.*?)^\}",
            (CONFIGURATIONS / name).read_text("utf-8"),
            re.MULTILINE | re.DOTALL,
        )
    ]

    service, page = blocks
    more = page - service

    assert service < page
    assert more == {
        "$JS.API.CONSUMER.CREATE.TIMER_DEADLETTER.*.timer.deadletter.>",
        "$JS.API.CONSUMER.MSG.NEXT.TIMER_DEADLETTER.*",
        "$JS.API.CONSUMER.CREATE.TIMER_EVENTS.*.timer.events.>",
        "$JS.API.CONSUMER.MSG.NEXT.TIMER_EVENTS.*",
        "$JS.API.CONSUMER.LIST.TIMER_EVENTS",
        "timer.status",
    }


@pytest.mark.parametrize("credentials", [{}, {"user": "acme", "password": "guessed"}], ids=["none", "wrong"])
async def test_nobody_gets_in_without_a_password(either: Site, credentials: dict[str, Any]) -> None:
    connection = Client()

    with pytest.raises(nats.errors.Error, match="Authorization Violation"):
        await connection.connect(either.broker.url, **credentials, allow_reconnect=False, error_cb=_ignore)
    await connection.close()


# A tenant, in one account


@pytest.mark.parametrize("tenant", ["acme", "globex"])
async def test_a_tenant_creates_its_consumer_and_reads_its_events(one_account: Site, tenant: str) -> None:
    async with one_account.user(tenant) as user:
        await user.send(tenant, "order-1", LONG_AGO)
        consumer = await user.connection.jetstream(timeout=PATIENCE_S).pull_subscribe(
            f"timer.events.{tenant}.>", durable=CONSUMERS[tenant], stream="TIMER_EVENTS"
        )
        [message] = await consumer.fetch(1, timeout=PATIENCE_S)
        await message.ack_sync()
        forbidden = await user.forbidden()

    assert message.subject == f"timer.events.{tenant}.DueTimeReached"
    assert forbidden == []


async def test_a_tenant_reads_its_dead_letters_through_a_durable_consumer(
    open_site: Callable[..., Site],
) -> None:
    site = open_site(ONE_ACCOUNT)
    async with site.user("globex") as globex, site.user("acme") as acme:
        await globex.connection.jetstream(timeout=PATIENCE_S).publish(
            "timer.commands.globex.CancelTimer", b"globex' own"
        )
        await acme.connection.jetstream(timeout=PATIENCE_S).publish(
            "timer.commands.acme.CancelTimer", b"acme's own"
        )
        await acme.connection.jetstream(timeout=PATIENCE_S).pull_subscribe(
            "timer.deadletter.acme", durable="acme-letters", stream="TIMER_DEADLETTER"
        )
        letter = await site.next_letter(acme, "acme")
        forbidden = await acme.forbidden()

    assert (letter["body"], forbidden) == ("acme's own", [])


async def test_a_tenant_reads_its_dead_letters_from_its_own_account(open_site: Callable[..., Site]) -> None:
    site = open_site(ACCOUNTS)
    await site.prepare_consumers()
    async with site.user("globex") as globex, site.user("acme") as acme:
        await globex.connection.publish("timer.commands.globex.CancelTimer", b"globex' own")
        await globex.settle()
        await acme.connection.publish("timer.commands.acme.CancelTimer", b"acme's own")
        letter = await site.next_letter(acme, "acme")
        forbidden = await acme.forbidden()

    assert (letter["body"], forbidden) == ("acme's own", [])


async def test_a_tenant_may_publish_nothing_of_anybody_else(one_account: Site) -> None:
    publications = [
        "timer.commands.globex.ScheduleTimer",
        "timer.commands.acme.Other",
        "timer.api.globex.get",
        "timer.api.globex.schedule",
        "timer.status",
        "timer.events.acme.DueTimeReached",
        "timer.events.globex.DueTimeReached",
        "timer.deadletter.acme",
        "_INBOX.globex.answer",
        "_INBOX.acme.answer",
        *(f"$JS.API.STREAM.{verb}.TIMER_EVENTS" for verb in ("DELETE", "PURGE", "UPDATE", "INFO", "MSG.GET")),
        "$JS.API.STREAM.DELETE.TIMER_COMMANDS",
        "$JS.API.DIRECT.GET.TIMER_EVENTS.timer.events.globex.DueTimeReached",
        "$JS.API.CONSUMER.CREATE.TIMER_EVENTS.acme-billing",
        "$JS.API.CONSUMER.DURABLE.CREATE.TIMER_EVENTS.acme-billing",
        "$JS.API.CONSUMER.CREATE.TIMER_EVENTS.acme-billing.timer.events.globex.DueTimeReached",
        "$JS.API.CONSUMER.CREATE.TIMER_EVENTS.acme-billing.timer.events.>",
        "$JS.API.CONSUMER.CREATE.TIMER_EVENTS.globex-shipping.timer.events.acme.DueTimeReached",
        "$JS.API.CONSUMER.CREATE.TIMER_COMMANDS.acme-billing.timer.commands.acme.>",
        "$JS.API.CONSUMER.CREATE.TIMER_DEADLETTER.acme-letters.timer.deadletter.globex",
        "$JS.API.CONSUMER.CREATE.TIMER_DEADLETTER.acme-letters.timer.deadletter.>",
        "$JS.API.CONSUMER.CREATE.TIMER_DEADLETTER.globex-letters.timer.deadletter.acme",
        "$JS.API.CONSUMER.MSG.NEXT.TIMER_DEADLETTER.globex-letters",
        "$JS.ACK.TIMER_DEADLETTER.globex-letters.1.1.1.1.0",
        "$JS.API.CONSUMER.DELETE.TIMER_EVENTS.globex-shipping",
        "$JS.API.CONSUMER.MSG.NEXT.TIMER_EVENTS.globex-shipping",
        "$JS.API.CONSUMER.MSG.NEXT.TIMER_COMMANDS.timer-service",
        "$JS.ACK.TIMER_EVENTS.globex-shipping.1.1.1.1.0",
        "$JS.ACK.TIMER_COMMANDS.timer-service.1.1.1.1.0",
        "$SRV.PING",
    ]

    async with one_account.user("acme") as acme:
        forbidden = await _try_all(acme, publications, [])

    assert forbidden == [subject.lower() for subject in publications]


async def test_a_tenant_may_listen_to_nothing_of_anybody_else(one_account: Site) -> None:
    subscriptions = [
        "timer.events.globex.DueTimeReached",
        "timer.events.*.DueTimeReached",
        "timer.deadletter.globex",
        "timer.deadletter.>",
        "timer.commands.acme.>",
        "timer.api.acme.get",
        "_INBOX.>",
        "_INBOX.globex.>",
        "_INBOX.service.>",
        "$JS.ACK.>",
        "$SRV.PING",
        ">",
    ]

    async with one_account.user("acme") as acme:
        forbidden = await _try_all(acme, [], subscriptions)

    assert forbidden == [subject.lower() for subject in subscriptions]


@pytest.mark.parametrize(
    "wider",
    [
        {"filter_subject": "timer.events.>"},
        {"filter_subject": "timer.events.globex.DueTimeReached"},
        {"filter_subjects": ["timer.events.acme.DueTimeReached", "timer.events.globex.DueTimeReached"]},
        {},
        {"name": "globex-shipping", "filter_subject": "timer.events.acme.DueTimeReached"},
    ],
    ids=["all", "another", "several", "none", "another_name"],
)
async def test_a_consumer_cannot_ask_for_more_than_its_subject_says(
    one_account: Site, wider: dict[str, Any]
) -> None:
    config = {"name": "acme-billing", "durable_name": "acme-billing", "ack_policy": "explicit", **wider}
    config["durable_name"] = config["name"]

    async with one_account.user("acme") as acme:
        answer = await acme.connection.request(
            "$JS.API.CONSUMER.CREATE.TIMER_EVENTS.acme-billing.timer.events.acme.DueTimeReached",
            json.dumps({"stream_name": "TIMER_EVENTS", "config": config}).encode(),
            timeout=PATIENCE_S,
        )

    assert json.loads(answer.data)["error"]["code"] == 400


# A tenant, in either configuration


async def test_the_api_answers_a_tenant(either: Site) -> None:
    async with either.user("acme") as acme:
        scheduled = await acme.call("timer.api.acme.schedule", serviceCallId="call-1", dueAt=FAR_AHEAD)
        found = await acme.call("timer.api.acme.get", serviceCallId="call-1")
        listed = await acme.call("timer.api.acme.list", dueFrom=FAR_AHEAD)
        cancelled = await acme.call("timer.api.acme.cancel", serviceCallId="call-1")
        forbidden = await acme.forbidden()

    assert [scheduled["outcome"], cancelled["outcome"]] == ["scheduled", "cancelled"]
    assert found["timer"] == scheduled["timer"]
    assert listed == {"timers": [scheduled["timer"]]}
    assert forbidden == []


async def test_each_tenant_hears_of_its_own_timers_only(either: Site) -> None:
    async with either.user("acme") as acme, either.user("globex") as globex:
        heard = {
            "acme": await acme.connection.subscribe("timer.events.acme.DueTimeReached"),
            "globex": await globex.connection.subscribe("timer.events.globex.DueTimeReached"),
        }
        await acme.settle()
        await globex.settle()
        for call in ("same-id-1", "same-id-2"):
            await globex.send("globex", call, LONG_AGO)
            await acme.send("acme", call, LONG_AGO)
        events = {
            tenant: [json.loads((await listener.next_msg(timeout=PATIENCE_S)).data) for _ in range(2)]
            for tenant, listener in heard.items()
        }

    assert {
        tenant: sorted((event["tenantId"], event["payload"]["serviceCallId"]) for event in found)
        for tenant, found in events.items()
    } == {tenant: [(tenant, "same-id-1"), (tenant, "same-id-2")] for tenant in heard}


async def test_the_command_line_serves_a_tenant(either: Site) -> None:
    scheduled = either.command_line(
        "acme", "schedule", "--tenant", "acme", "--id", "by-hand", "--at", FAR_AHEAD, "--json"
    )
    async with either.user("operator") as operator:
        await _until_kept(operator, "acme", "by-hand")
    code, shown, complaint = either.command_line(
        "acme", "get", "--tenant", "acme", "--id", "by-hand", "--json"
    )

    assert (scheduled[0], code, scheduled[2] + complaint) == (0, 0, "")
    assert json.loads(shown)["state"] == "Scheduled"


async def test_the_python_client_needs_no_more_than_a_tenants_rights(either: Site) -> None:
    handled = asyncio.Queue[Firing]()
    async with either.user("acme") as acme:
        timers = Timers(acme.connection, tenant="acme", domain=None if either.one_inbox_each else "timer")
        async with timers.consume("billing", handled.put):
            await timers.schedule("by-client", timedelta())
            decision = await timers.cancel("by-client-2", confirm=True)
            waited = await timers.wait("by-client", timeout=timedelta(seconds=PATIENCE_S))
            async with asyncio.timeout(PATIENCE_S):
                while (await handled.get()).service_call_id != "by-client":
                    """What other tests left."""
        forbidden = await acme.forbidden()

    assert (waited.state, decision.outcome) == ("Reached", Outcome.NOT_FOUND)
    assert forbidden == []


async def test_no_answer_of_the_api_lands_on_a_subject_that_is_no_inbox(one_account: Site) -> None:
    async with one_account.user("acme") as acme, one_account.user("operator") as operator:
        jetstream = operator.connection.jetstream(timeout=PATIENCE_S)
        before = (await jetstream.stream_info("TIMER_COMMANDS")).state.last_seq
        await acme.connection.publish(
            "timer.api.acme.get",
            b'{"serviceCallId": "order-1"}',
            reply="timer.commands.globex.ScheduleTimer",
        )
        await acme.settle()
        one_account.service.wait_for_log(
            "request.ignored", where=lambda line: line["reply"] == "timer.commands.globex.ScheduleTimer"
        )
        after = (await jetstream.stream_info("TIMER_COMMANDS")).state.last_seq

    assert after == before


async def test_a_tenant_cannot_forge_the_confirmation_of_another_s_event(
    open_site: Callable[..., Site],
) -> None:
    """A subscriber sees where the service waits for confirmations, and the broker confirms to any subject."""
    site = open_site(ONE_ACCOUNT)
    async with site.user("operator") as operator, site.user("acme") as acme, site.user("globex") as globex:
        heard = await acme.connection.subscribe("timer.events.acme.DueTimeReached")
        await acme.send("acme", "own", LONG_AGO)
        inbox, batch, _ = (await heard.next_msg(timeout=PATIENCE_S)).reply.rsplit(".", 2)
        await asyncio.to_thread(site.service.wait_for_log, "batch.fired")
        # From here on the broker confirms no event, so that any confirmation is forged.
        await operator.connection.jetstream(timeout=PATIENCE_S).update_stream(
            StreamConfig(name="TIMER_EVENTS", subjects=["timer.events.>"], no_ack=True)
        )
        await globex.send("globex", "victim", LONG_AGO)
        forging = asyncio.ensure_future(_forge(acme, inbox, int(batch)))
        failure = await asyncio.to_thread(site.service.wait_for_log, "publish.failed")
        forging.cancel()
        state = (await operator.call("timer.api.globex.get", serviceCallId="victim"))["timer"]["state"]

    assert (failure["service_call_id"], failure["kind"], state) == ("victim", "unanswered", "Scheduled")


async def test_what_a_subscriber_sees_does_not_give_the_service_s_other_inboxes_away(either: Site) -> None:
    """A client's names follow one from another: who knows one inbox could guess where commands come in."""
    async with either.user("acme") as acme, either.user("operator") as operator:
        heard = await acme.connection.subscribe("timer.events.acme.DueTimeReached")
        await acme.settle()
        await acme.send("acme", "seen", LONG_AGO)
        seen = (await heard.next_msg(timeout=PATIENCE_S)).reply.split(".")
        named = (await operator.call("$SRV.PING.timer"))["id"]

    assert [token for token in seen if token[:12] == named[:12]] == []


# A tenant with an account of its own


@pytest.mark.parametrize("tenant", ["acme", "globex"])
async def test_an_account_reads_its_events_through_its_own_consumer(accounts: Site, tenant: str) -> None:
    async with accounts.user(tenant) as user:
        await user.send(tenant, "pulled", LONG_AGO)
        event = await accounts.next_event(user, tenant)
        while event["payload"]["serviceCallId"] != "pulled":
            event = await accounts.next_event(user, tenant)

    assert event["tenantId"] == tenant


async def test_the_server_writes_the_tenant_of_an_account(accounts: Site) -> None:
    async with accounts.user("acme") as acme, accounts.user("operator") as operator:
        letters = await operator.connection.subscribe("timer.deadletter.*")
        await operator.settle()
        await acme.send("acme", "renamed", FAR_AHEAD, subject="timer.commands.globex.ScheduleTimer")
        await acme.send("globex", "foreign", FAR_AHEAD)
        letter = await letters.next_msg(timeout=PATIENCE_S)
        await _until_kept(operator, "acme", "renamed")
        of_globex = await operator.call("timer.api.globex.list", dueFrom=FAR_AHEAD)

    refused = json.loads(letter.data)
    assert letter.subject == "timer.deadletter.acme"
    assert (refused["reason"], refused["subject"]) == ("tenant_mismatch", "timer.commands.acme.ScheduleTimer")
    assert of_globex == {"timers": []}


async def test_a_call_for_another_tenant_is_a_call_for_the_account_s_own(accounts: Site) -> None:
    async with accounts.user("acme") as acme:
        answer = await acme.call("timer.api.globex.schedule", serviceCallId="mine", dueAt=FAR_AHEAD)
        await acme.call("timer.api.globex.cancel", serviceCallId="mine")

    assert answer["timer"]["tenantId"] == "acme"


async def test_nothing_of_another_account_answers(accounts: Site) -> None:
    unanswered = [
        "timer.status",
        "$SRV.PING",
        *(f"$JS.API.STREAM.{verb}.TIMER_EVENTS" for verb in ("DELETE", "PURGE", "UPDATE", "INFO", "MSG.GET")),
        "$JS.API.CONSUMER.CREATE.TIMER_EVENTS.acme-billing.timer.events.globex.DueTimeReached",
        "$JS.API.CONSUMER.MSG.NEXT.TIMER_EVENTS.globex-shipping",
        "$JS.timer.API.CONSUMER.MSG.NEXT.TIMER_EVENTS.globex-shipping",
        "$JS.timer.API.CONSUMER.MSG.NEXT.TIMER_COMMANDS.timer-service",
        "timer.events.globex.DueTimeReached",
        "timer.deadletter.globex",
    ]

    async with accounts.user("acme") as acme:
        silent = [subject for subject in unanswered if not await _is_answered(acme, subject)]

    assert silent == unanswered


async def test_an_account_cannot_listen_to_another_s_events(accounts: Site) -> None:
    async with accounts.user("acme") as acme, accounts.user("globex") as globex:
        everything = await acme.connection.subscribe("timer.>")
        await acme.settle()
        heard = await globex.connection.subscribe("timer.events.globex.DueTimeReached")
        await globex.send("globex", "secret", LONG_AGO)
        await heard.next_msg(timeout=PATIENCE_S)
        await acme.connection.publish("timer.marker")
        message = await everything.next_msg(timeout=PATIENCE_S)

    assert message.subject == "timer.marker"


async def test_an_account_cannot_aim_the_broker_s_confirmation_at_another_tenant(accounts: Site) -> None:
    async with accounts.user("acme") as acme, accounts.user("operator") as operator:
        jetstream = operator.connection.jetstream(timeout=PATIENCE_S)
        before = (await jetstream.stream_info("TIMER_EVENTS")).state.last_seq
        await acme.connection.publish(
            "timer.commands.acme.ScheduleTimer",
            encode(schedule("acme", "aimed", FAR_AHEAD)),
            reply="timer.events.globex.DueTimeReached",
        )
        await _until_kept(operator, "acme", "aimed")
        after = (await jetstream.stream_info("TIMER_EVENTS")).state.last_seq

    assert after == before


# An operator and a monitor


async def test_an_operator_sees_every_timer_and_sends_a_letter_again(either: Site) -> None:
    async with either.user("acme") as acme, either.user("operator") as operator:
        client = OperatorClient(operator.connection)
        letters = await operator.connection.subscribe("timer.deadletter.acme")
        await operator.settle()
        await acme.connection.jetstream(timeout=PATIENCE_S).publish("timer.commands.acme.CancelTimer", b"[]")
        await letters.next_msg(timeout=PATIENCE_S)
        *_, letter = await client.dead_letters("acme", in_seconds(-3600), 100)
        await client.publish_again(letter["subject"], b"[] again", letter_sequence=letter["letter"])
        again = json.loads((await letters.next_msg(timeout=PATIENCE_S)).data)
        discovered = await operator.call("$SRV.PING.timer")
        [status] = await client.status()
        forbidden = await operator.forbidden()

    assert (letter["body"], again["body"]) == ("[]", "[] again")
    assert (discovered["name"], status.problems) == ("timer", {})
    assert forbidden == []


async def test_the_command_line_serves_an_operator(either: Site) -> None:
    code, shown, complaint = either.command_line("operator", "status", "--json")

    assert (code, complaint) == (0, "")
    assert json.loads(shown)["problems"] == {}


async def test_an_operator_cannot_speak_for_the_service(either: Site) -> None:
    publications = ["timer.events.acme.DueTimeReached", "timer.deadletter.acme", "_INBOX.acme.answer"]
    subscriptions = ["_INBOX.>", "_INBOX.acme.>", "timer.api.acme.get"]

    async with either.user("operator") as operator:
        forbidden = await _try_all(operator, publications, subscriptions)

    assert forbidden == [subject.lower() for subject in publications + subscriptions]


async def test_a_monitor_sees_how_all_is(either: Site) -> None:
    async with either.user("monitor") as monitor:
        status = await monitor.call("timer.status")
        discovered = await monitor.call("$SRV.STATS.timer")
        jetstream = monitor.connection.jetstream(timeout=PATIENCE_S)
        streams = [info.config.name for info in await jetstream.streams_info()]
        consumer = await jetstream.consumer_info("TIMER_COMMANDS", "timer-service")
        forbidden = await monitor.forbidden()

    assert status["problems"] == {}
    assert discovered["name"] == "timer"
    assert sorted(filter(None, streams)) == ["TIMER_COMMANDS", "TIMER_DEADLETTER", "TIMER_EVENTS"]
    assert consumer.name == "timer-service"
    assert forbidden == []


async def test_a_monitor_sees_no_timer_and_changes_nothing(either: Site) -> None:
    publications = [
        "timer.commands.acme.ScheduleTimer",
        "timer.api.acme.get",
        "timer.api.acme.list",
        *(f"$JS.API.STREAM.{verb}.TIMER_EVENTS" for verb in ("DELETE", "PURGE", "UPDATE", "MSG.GET")),
        "$JS.API.CONSUMER.CREATE.TIMER_EVENTS.monitor.timer.events.>",
        "$JS.API.CONSUMER.DELETE.TIMER_COMMANDS.timer-service",
        "$JS.API.CONSUMER.MSG.NEXT.TIMER_COMMANDS.timer-service",
    ]
    subscriptions = ["timer.events.>", "timer.deadletter.>", "_INBOX.>"]

    async with either.user("monitor") as monitor:
        forbidden = await _try_all(monitor, publications, subscriptions)

    assert forbidden == [subject.lower() for subject in publications + subscriptions]


def _password(user: str) -> str:
    return f"{user}-password"


async def _try_all(user: User, publications: list[str], subscriptions: list[str]) -> list[str]:
    """Publish and subscribe to each subject; return what the broker forbade, in that order."""
    for subject in publications:
        await user.connection.publish(subject, b"{}")
    for subject in subscriptions:
        await user.connection.subscribe(subject)
    return await user.forbidden()


async def _is_answered(user: User, subject: str) -> bool:
    """Return whether anybody answers, other than the broker that this account has no JetStream."""
    try:
        answer = await user.connection.request(subject, b"{}", timeout=PATIENCE_S)
    except nats.errors.NoRespondersError:
        return False
    return bool(json.loads(answer.data)["error"]["err_code"] != JETSTREAM_NOT_ENABLED)


async def _one_round(site: Site, call: str) -> Round:
    """Let a timer fire and a message be refused, then end the service."""
    async with site.user("acme") as acme:
        letters = await acme.connection.subscribe("timer.deadletter.acme")
        await acme.settle()
        await acme.send("acme", call, LONG_AGO)
        await acme.connection.jetstream(timeout=PATIENCE_S).publish(
            "timer.commands.acme.CancelTimer", b"no command"
        )
        letter = json.loads((await letters.next_msg(timeout=PATIENCE_S)).data)
        event = await site.next_event(acme, "acme")
    await _until_all_is_acknowledged(site)
    complaints = [line["detail"] for line in site.service.events("broker.error")]
    return Round(event["payload"]["serviceCallId"], letter["reason"], complaints, site.service.terminate())


async def _forge(tenant: User, inbox: str, last_batch: int) -> None:
    """Have the broker confirm the tenant's own commands to where the service waits for its events."""
    while True:
        for batch in range(last_batch + 1, last_batch + 6):
            await tenant.connection.publish(
                "timer.commands.acme.ScheduleTimer",
                encode(schedule("acme", "forger", FAR_AHEAD)),
                reply=f"{inbox}.{batch}.0",
            )
        await asyncio.sleep(0.05)


async def _until_kept(operator: User, tenant: str, call: str) -> None:
    """Wait until the service has the timer."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            answer = await operator.connection.request(
                f"timer.api.{tenant}.get", json.dumps({"serviceCallId": call}).encode(), timeout=PATIENCE_S
            )
            if not answer.headers:
                return
            await asyncio.sleep(0.02)


async def _until_all_is_acknowledged(site: Site) -> None:
    async with site.user("monitor") as monitor:
        jetstream = monitor.connection.jetstream(timeout=PATIENCE_S)
        async with asyncio.timeout(PATIENCE_S):
            while (await jetstream.stream_info("TIMER_COMMANDS")).state.messages:
                await asyncio.sleep(0.02)


async def _ignore(error: Exception) -> None:
    """The connection is meant to fail."""
