"""The REST API: how many timers it takes per second."""

import json
from collections.abc import Iterator
from typing import Final

from tests.support.ports import free_port

from bench import rest_load
from bench.harness import NotMeasured, rig, spawn
from bench.report import Figure, Goal, median, percentile
from bench.rest_load import BATCH, Done, RestLoad
from bench.workloads import Bench

PART: Final = "rest"
KEY: Final = "bench-key-" + "k" * 32
CONNECTIONS: Final = 32
BATCH_CONNECTIONS: Final = 4
SINGLE_GOAL: Final = Goal(1_500, 3_000, at_least=True)
BATCH_GOAL: Final = Goal(15_000, 30_000, at_least=True)


def settings(port: int) -> dict[str, str]:
    """Return what the service needs to serve one tenant without a limit."""
    return {"TIMER_API_PORT": str(port), "TIMER_API_KEY": KEY, "TIMER_REQUEST_RATE": "0"}


def measure_rest(bench: Bench) -> Iterator[Figure]:
    """Measure creating timers with a callback, each in a request of its own and 1,000 in one."""
    single: list[Done] = []
    batches: list[Done] = []
    for _ in range(bench.plan.repeats):
        single.append(_created(bench, bench.plan.rest_creates, CONNECTIONS, batch=False))
        batches.append(_created(bench, bench.plan.rest_batches, BATCH_CONNECTIONS, batch=True))
    one_by_one = median([bench.plan.rest_creates / done.seconds for done in single])
    name = f"create, {CONNECTIONS} connections"
    yield Figure(PART, f"{name}: timers", one_by_one, "/s", goal=SINGLE_GOAL)
    for label, share in {"p50": 0.5, "p99": 0.99}.items():
        value = median([percentile(done.took_ms, share) for done in single])
        yield Figure(PART, f"{name}: answer {label}", value, "ms")
    by_batch = median([bench.plan.rest_batches * BATCH / done.seconds for done in batches])
    yield Figure(PART, f"create by batches of {BATCH:,}: timers", by_batch, "/s", goal=BATCH_GOAL)


def _created(bench: Bench, requests: int, connections: int, *, batch: bool) -> Done:
    port = free_port()
    with rig(bench.new_folder(), log_level=bench.log_level, settings=settings(port)) as parts:
        parts.service.start_ready()
        done = send(RestLoad(port, KEY, requests, connections, batch=batch))
    expected = requests * (BATCH if batch else 1)
    if done.statuses != {"201": expected}:
        raise NotMeasured(f"not every timer was created: {done.statuses}")
    return done


def send(load: RestLoad) -> Done:
    """Send a load from a process of its own and wait for its end."""
    process = spawn(rest_load.arguments(load))
    output, _ = process.communicate()
    if process.returncode:
        raise NotMeasured("the load failed")
    return Done(**json.loads(output))
