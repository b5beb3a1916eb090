"""What needs node and npm: the TypeScript client, alone and beside Python, its program, AsyncAPI's parser.

The program is that of docs/messages.md, run under the permissions that the page shows.
"""

import asyncio
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import nats
import pytest

from tests.support.asyncapi import ASYNCAPI
from tests.support.broker import NatsServer
from tests.support.documents import ROOT, marked_blocks
from tests.support.messages import iso
from tests.support.patience import PATIENCE_S
from tests.support.world import World
from timer_client import Firing, Timers
from timer_service.testing import START
from timer_service.testing.kit import running_service

pytestmark = pytest.mark.clients

MESSAGES = "docs/messages.md"
PACKAGES = ("@nats-io/transport-node@3.4.0", "@nats-io/jetstream@3.4.0", "typescript@5.9.3")
TO_JAVASCRIPT = """
const { readFileSync, writeFileSync } = require("fs");
const { transpileModule, ModuleKind, ScriptTarget } = require("typescript");
const compilerOptions = { module: ModuleKind.ESNext, target: ScriptTarget.ES2022 };
const { outputText } = transpileModule(readFileSync("program.ts", "utf-8"), { compilerOptions });
writeFileSync("program.mjs", outputText);
"""
SERVICE_LOGIN = {
    "broker_user": "timer-service",
    "broker_password": "change-me-1",
    "broker_inbox_prefix": "_INBOX.timer-service",
}
CLIENT = ROOT / "clients" / "typescript"
RUN_TESTS = ("node", "--test", "--test-reporter=tap", "dist/test/")
PARSER = "@asyncapi/parser@3.6.0"
PARSE = """
import { Parser, fromFile } from "@asyncapi/parser";
const { document, diagnostics } = await fromFile(new Parser(), process.argv[2]).parse();
const errors = diagnostics.filter(({ severity }) => severity === 0).map(({ message }) => message);
console.log(JSON.stringify([errors, document?.operations().all().map((each) => each.id())]));
"""
DAY = timedelta(days=1)
YEAR = 365
CHAIN = """
import { connect } from "@nats-io/transport-node";
import { Timers } from "timer-service-client";
const [servers, prefix, last] = process.argv.slice(2);
const timers = new Timers(await connect({ servers }), { tenant: "acme", prefix });
await timers.consume("node", async ({ serviceCallId, at, ...firing }) => {
  console.log([serviceCallId, firing.dueAt.toISOString(), at.toISOString()].join(" "));
  const day = Number(serviceCallId.replace("day-", ""));
  const dueAt = new Date(at.getTime() + 86_400_000);
  if (day % 2 && day < last) await timers.schedule(`day-${day + 1}`, { dueAt });
});
console.log("ready");
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the program, translated, and with the packages that it imports."""
    folder = tmp_path_factory.mktemp("node")
    (folder / "program.ts").write_text(marked_blocks(MESSAGES)["snippet: typescript"])
    (folder / "package.json").write_text("{}")
    (folder / "translate.cjs").write_text(TO_JAVASCRIPT)
    _run("npm", "install", "--no-audit", "--no-fund", *PACKAGES, cwd=folder)
    _run("node", "translate.cjs", cwd=folder)
    return folder


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The TypeScript client, built as its page tells."""
    folder = tmp_path_factory.mktemp("client") / "typescript"
    shutil.copytree(
        CLIENT, folder, ignore=shutil.ignore_patterns("node_modules", "dist", "package-lock.json")
    )
    # The program of its page must at least fit the types.
    (folder / "src" / "readme.ts").write_text(marked_blocks("clients/typescript/README.md")["snippet"])
    _run("npm", "install", "--no-audit", "--no-fund", cwd=folder)
    _run("npm", "run", "build", cwd=folder)
    return folder


async def test_the_typescript_program_handles_its_event(project: Path, tmp_path: Path) -> None:
    broker = NatsServer(tmp_path / "broker", marked_blocks(MESSAGES)["example: permissions"]).start()
    world = World(tmp_path, broker, "timer")
    try:
        service = world.service(**SERVICE_LOGIN)
        service.start_ready()
        with _running(project, "program.mjs", broker.url) as program:
            said = await asyncio.to_thread(program.stdout.readline) if program.stdout else ""
        complaints = service.events("broker.error")
    finally:
        await world.close()
        broker.stop()

    assert (said, complaints) == ("order-42 is due\n", [])


@pytest.mark.parametrize("user", ["acme", None])
async def test_the_typescript_client_passes_its_tests(tmp_path: Path, user: str | None, client: Path) -> None:
    """As a tenant who may do no more than the page allows, and where everything is allowed."""
    permissions = marked_blocks(MESSAGES)["example: permissions"]
    broker = NatsServer(tmp_path / "broker", permissions if user else "").start()
    world = World(tmp_path, broker, "timer")
    login = {"NATS_USER": user, "NATS_PASSWORD": "change-me-2"} if user else {}
    try:
        world.service(**(SERVICE_LOGIN if user else {})).start_ready()
        environment = {**os.environ, **login, "NATS_URL": broker.url}
        said = await asyncio.to_thread(_run, *RUN_TESTS, cwd=client, env=environment)
    finally:
        await world.close()
        broker.stop()

    assert "# fail 0" in said
    assert f"# skipped {1 if user else 0}" in said


async def test_in_a_year_of_daily_timers_python_and_node_take_turns_to_schedule_the_next(
    client: Path, shared_broker: NatsServer, prefix: str
) -> None:
    """Both get every firing; node schedules after odd days, Python after even ones."""
    (client / "chain.mjs").write_text(CHAIN)
    fired: list[str] = []
    async with (
        running_service(shared_broker.url, prefix) as virtual,
        await nats.connect(shared_broker.url) as connection,
    ):
        timers = Timers(connection, tenant="acme", prefix=prefix)

        async def again(firing: Firing) -> None:
            day = int(firing.service_call_id.removeprefix("day-"))
            fired.append(f"day-{day} {iso(firing.due_at)} {iso(firing.reached_at)}")
            if day % 2 == 0 and day < YEAR:
                await timers.schedule(f"day-{day + 1}", firing.reached_at + DAY)

        with _running(client, "chain.mjs", shared_broker.url, prefix, str(YEAR)) as program:
            assert program.stdout is not None
            assert await asyncio.to_thread(program.stdout.readline) == "ready\n"
            async with timers.consume("python", again):
                started = time.perf_counter()
                await timers.schedule("day-1", START + DAY)
                walked = await virtual.walk.advance_to(START + 400 * DAY)
                print(f"365 daily timers, Python and node in turn, in {time.perf_counter() - started:.2f} s")
            lines = [await asyncio.to_thread(program.stdout.readline) for _ in range(YEAR)]

    moments = [iso(START + day * DAY) for day in range(1, YEAR + 1)]
    assert (walked.published, walked.arrived) == (YEAR, True)
    assert fired == [f"day-{day} {moment} {moment}" for day, moment in enumerate(moments, 1)]
    assert [line.strip() for line in lines] == fired


def test_the_asyncapi_document_is_read_without_an_error(tmp_path: Path) -> None:
    (tmp_path / "package.json").write_text("{}")
    (tmp_path / "parse.mjs").write_text(PARSE)
    _run("npm", "install", "--no-audit", "--no-fund", PARSER, cwd=tmp_path)

    errors, operations = json.loads(_run("node", "parse.mjs", str(ROOT / ASYNCAPI), cwd=tmp_path))

    assert errors == []
    assert {"receiveScheduleTimer", "sendDueTimeReached", "answer-schedule"} <= set(operations)


@contextmanager
def _running(folder: Path, program: str, url: str, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(
        ["node", program, url, *arguments],
        cwd=folder,
        env={**os.environ, "NATS_URL": url},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE_S)


def _run(*command: str, cwd: Path, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
