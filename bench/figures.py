"""Write the figures of the benchmark into README.md and docs/: `python -m bench.figures`.

Numbers in the documents are never typed: a test fails where they differ from bench/results/latest.json.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from bench.report import shown

ROOT: Final = Path(__file__).parents[1]
README: Final = ROOT / "README.md"
BENCH: Final = ROOT / "bench" / "README.md"
FLOWS: Final = ROOT / "docs" / "flows.md"
OPERATIONS: Final = ROOT / "docs" / "operations.md"
POSTGRESQL: Final = ROOT / "docs" / "postgresql.md"
LATEST: Final = ROOT / "bench" / "results" / "latest.json"
BEGIN: Final = "<!-- bench:begin -->"
END: Final = "<!-- bench:end -->"

Results = Mapping[str, Any]
Values = Mapping[str, Mapping[str, Any]]


class MarkersMissing(Exception):
    """The document has no place for the figures."""


def insert(text: str, figures: str) -> str:
    """Return the text with the figures between the markers, in place of what was there."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise MarkersMissing(f"the document must hold the lines {BEGIN} and {END}")
    return f"{before}{BEGIN}\n{figures}\n{END}{after}"


def _by_name(results: Results) -> Values:
    return {f"{figure['part']}/{figure['name']}": figure for figure in results["figures"]}


def render(results: Results) -> str:
    """Return the figures that the README shows, as Markdown."""
    values = _by_name(results)
    lines = [
        "| | timer-service | NATS `@at` | NATS `@at`, fsynced | 5 s poller |",
        "|---|---|---|---|---|",
        *(f"| {what} | {' | '.join(_cell(values, names) for names in columns)} |" for what, columns in _ROWS),
        "",
        "| | timer-service |",
        "|---|---|",
        *(f"| {what} | {_cell(values, names)} |" for what, names in _OWN_ROWS),
        *_measured(values, _CALLBACK_ROWS),
        "",
        _where(results),
    ]
    return "\n".join(lines)


# What a row says, and of which figures each column is made; a figure that was not measured shows as a dash.
_ROWS: Final[list[tuple[str, list[tuple[str, ...]]]]] = [
    (
        "timers accepted per second",
        [
            ("ingest/backlog of 200,000",),
            ("peers/NATS @at: ingest of 100,000",),
            ("peers/NATS @at, fsynced: ingest of 5,000",),
            ("peers/plain poller: ingest of 2,000",),
        ],
    ),
    (
        "timers fired per second, all due at one instant",
        [
            ("burst/100,000 at one instant",),
            ("peers/NATS @at: burst of 100,000",),
            ("peers/NATS @at, fsynced: burst of 5,000",),
            ("peers/plain poller: burst of 2,000",),
        ],
    ),
    (
        "lateness at 500 timers per second, p50 / p99",
        [
            ("steady/500/s: p50", "steady/500/s: p99"),
            ("peers/NATS @at: 500/s: p50", "peers/NATS @at: 500/s: p99"),
            ("peers/NATS @at, fsynced: 500/s: p50", "peers/NATS @at, fsynced: 500/s: p99"),
            ("peers/plain poller: 500/s: p50", "peers/plain poller: 500/s: p99"),
        ],
    ),
]
_OWN_ROWS: Final[list[tuple[str, tuple[str, ...]]]] = [
    (
        "lateness at 500 timers per second beside 1,000,000 pending, p50 / p99",
        ("scale/1,000,000 pending: 500/s p50", "scale/1,000,000 pending: 500/s p99"),
    ),
    (
        "a small tenant's lateness beside another's burst of 100,000, p99",
        ("fairness/small tenant at 10/s beside a burst of 100,000: p99",),
    ),
]

_CALLBACK_ROWS: Final[list[tuple[str, tuple[str, ...]]]] = [
    (
        "callbacks delivered and committed per second, kept connections / a new TLS connection each",
        (
            "callbacks/10,000 at one instant, delivered and committed",
            "callbacks/2,000 at one instant, each over a new TLS connection",
        ),
    ),
    (
        "callbacks at 500 per second, due to sent, p50 / p99",
        ("callbacks/500/s beside 10,000 pending: p50", "callbacks/500/s beside 10,000 pending: p99"),
    ),
]
_REST_ROWS: Final[list[tuple[str, tuple[str, ...]]]] = [
    (
        "timers created over REST per second, one by one / by batches of 1,000",
        ("rest/create, 32 connections: timers", "rest/create by batches of 1,000: timers"),
    ),
    (
        "callbacks at 500 per second beside 1,000,000 pending, due to sent, p50 / p99",
        ("callbacks/500/s beside 1,000,000 pending: p50", "callbacks/500/s beside 1,000,000 pending: p99"),
    ),
    (
        "callbacks beside 10,000 due ones of another tenant to a receiver that hangs, p50 / p99",
        (
            "isolation/callbacks beside 10,000 due callbacks of another tenant to a receiver that hangs: p50",
            "isolation/callbacks beside 10,000 due callbacks of another tenant to a receiver that hangs: p99",
        ),
    ),
]


_HEAD: Final = ("| what | measured |", "|---|---|")


def _measured(values: Values, rows: list[tuple[str, tuple[str, ...]]]) -> list[str]:
    """Return the rows of parts that may be measured later than the others, without those that were not."""
    return _lines(values, [row for row in rows if not values.keys().isdisjoint(row[1])])


def _lines(values: Values, rows: list[tuple[str, tuple[str, ...]]]) -> list[str]:
    return [f"| {what} | {_cell(values, names)} |" for what, names in rows]


def render_sizing(results: Results) -> str:
    """Return the figures by which an operator sizes a machine, as Markdown."""
    values = _by_name(results)
    machine = results["machine"]
    lines = [
        *_HEAD,
        *_lines(values, _SIZING_ROWS),
        *_measured(values, _REST_ROWS),
        "",
        f"Service, broker, load and subscriber shared {machine['cpus']} cores ({machine['cpu']}).",
        "[bench/README.md](../bench/README.md) says how it was measured; `make bench` measures yours.",
    ]
    return "\n".join(lines)


def render_flows(results: Results) -> str:
    """Return the figures of durable functions, as Markdown."""
    values = _by_name(results)
    machine = results["machine"]
    lines = [
        *_HEAD,
        *_lines(values, _FLOW_ROWS),
        "",
        f"Service, broker and two workers on SQLite shared {machine['cpus']} cores ({machine['cpu']}).",
    ]
    return "\n".join(lines)


_FLOW_ROWS: Final[list[tuple[str, tuple[str, ...]]]] = [
    ("runs woken per second, 5,000 due at one instant", ("flows/2 workers, 5,000 runs due at one instant",)),
    (
        "from due to the function running, 200 runs per second, p50 / p99",
        ("flows/due to function running at 200/s: p50", "flows/due to function running at 200/s: p99"),
    ),
    (
        "the same beside 1,000,000 sleeping runs",
        (
            "flows/due to function running at 200/s beside 1,000,000 sleeping runs: p50",
            "flows/due to function running at 200/s beside 1,000,000 sleeping runs: p99",
        ),
    ),
    (
        "from kill -9 of a worker to its step in another one, with an `ack_wait` of 2 s",
        ("flows/kill -9 of a worker to the same step in another, ack_wait 2 s",),
    ),
    (
        "from SIGTERM to the end of a worker, 500 runs asleep",
        ("flows/SIGTERM of a worker to its end, 500 runs asleep",),
    ),
    (
        "error of a sleep of 1 s on workers whose clocks are a year fast and a year slow, p99",
        ("flows/workers a year fast and a year slow: error of a sleep of 1 s, p99",),
    ),
]


def render_missed(results: Results) -> str:
    """Return the figures of the last run that miss their goal, as Markdown."""
    missed = [figure for figure in results["figures"] if figure["verdict"] == "missed"]
    if not missed:
        return "The last run reached every goal."
    return "\n".join(
        [
            "| part | figure | measured | must |",
            "|---|---|---|---|",
            *(f"| {each['part']} | {each['name']} | {_reached(each)} | {_must(each)} |" for each in missed),
        ]
    )


def _reached(figure: Mapping[str, Any]) -> str:
    value = shown(figure["value"], figure["unit"])
    if figure["goal"]["of"] == "value":
        return value
    limit = f"{shown(figure['limit_value'], figure['unit'])} ({figure['limit']})"
    return f"{value}, {shown(figure['ratio'])} × {limit}"


def _must(figure: Mapping[str, Any]) -> str:
    goal = figure["goal"]
    bound = "at least" if goal["at_least"] else "at most"
    return f"{bound} {shown(goal['must'])}{' ×' if goal['of'] == 'ratio' else ''}"


def render_postgres(results: Results) -> str:
    """Return the figures of PostgreSQL beside SQLite, as Markdown."""
    values = _by_name(results)
    machine = results["machine"]
    lines = [
        "| | commands per second, backlog of 20,000 | timers per second, 20,000 due at one instant |",
        "|---|---|---|",
        *(
            f"| {what} | {_cell(values, (one,))} | {_cell(values, (other,))} |"
            for what, one, other in _STORE_ROWS
        ),
        "",
        f"Instances, database, broker, load and listener shared {machine['cpus']} cores ({machine['cpu']}).",
        f"With one instance, they were {_cell(values, _BUSY)} busy: more instances share what is left.",
        "The two queues insert jobs in bulk, without a broker, and run them without an event.",
    ]
    return "\n".join(lines)


_BUSY: Final = (
    "postgres/1 instance: backlog of 20,000 commands: all cores busy",
    "postgres/1 instance: 20,000 at one instant: all cores busy",
)
_STORE_ROWS: Final[list[tuple[str, str, str]]] = [
    ("SQLite", "ingest/backlog of 20,000", "burst/20,000 at one instant"),
    *(
        (
            f"PostgreSQL, {count}",
            f"postgres/{count}: backlog of 20,000 commands",
            f"postgres/{count}: 20,000 at one instant",
        )
        for count in ("1 instance", "2 instances", "3 instances")
    ),
    *(
        (
            f"{queue} on the same PostgreSQL, {count} jobs",
            f"peers/{queue} on PostgreSQL: bulk insert of {count}",
            f"peers/{queue} on PostgreSQL: {count} due at once",
        )
        for queue, count in (("pgqueuer", "20,000"), ("procrastinate", "2,000"))
    ),
]


_SIZING_ROWS: Final[list[tuple[str, tuple[str, ...]]]] = [
    ("commands accepted per second, out of a backlog of 200,000", ("ingest/backlog of 200,000",)),
    ("timers fired per second, 100,000 due at one instant", ("burst/100,000 at one instant",)),
    (
        "2,000 commands in and 2,000 timers out per second: lateness p50 / p99",
        ("both/2,000/s in and 2,000/s out: p50", "both/2,000/s in and 2,000/s out: p99"),
    ),
    (
        "the same at 500 timers out per second, with 50 ms added to every sync of the disk",
        (
            "disk/500/s with 50 ms added to every sync: p50",
            "disk/500/s with 50 ms added to every sync: p99",
        ),
    ),
    (
        "timers fired per second, 100,000 tenants with one due timer each",
        ("tenants/100,000 tenants with one due timer each",),
    ),
    (
        "one poll for 1,000 timers of 10 tenants with a backlog, beside 100,000 tenants with nothing due",
        ("tenants/one poll for 1,000, 10 tenants with a backlog of 5,100 beside 100,000 idle",),
    ),
    (
        "memory (RSS) with 10,000 / with 1,000,000 pending timers",
        ("scale/10,000 pending: RSS", "scale/1,000,000 pending: RSS"),
    ),
    ("memory at the peak of a burst of 100,000", ("burst/100,000 at one instant: peak RSS",)),
    (
        "disk per pending timer, without / with a correlation id of 36 characters",
        (
            "scale/10,000 pending: disk per timer",
            "scale/10,000 pending: disk per timer with a correlation id",
        ),
    ),
    ("idle CPU with 1,000,000 pending timers", ("scale/1,000,000 pending: idle CPU",)),
    (
        "from start, after kill -9, to the first firing with 1,000,000 pending",
        ("scale/1,000,000 pending: start to first firing",),
    ),
    (
        "`TIMER_BATCH_SIZE` 100: commands accepted / timers fired per second",
        ("batches/100 a batch: ingest of 30,000", "batches/100 a batch: burst of 30,000"),
    ),
    (
        "500: the same",
        ("batches/500 a batch: ingest of 30,000", "batches/500 a batch: burst of 30,000"),
    ),
    (
        "1,000: the same",
        ("batches/1,000 a batch: ingest of 30,000", "batches/1,000 a batch: burst of 30,000"),
    ),
    (
        "2,000, the default: the same",
        ("batches/2,000 a batch: ingest of 30,000", "batches/2,000 a batch: burst of 30,000"),
    ),
    (
        "4,000: the same",
        ("batches/4,000 a batch: ingest of 30,000", "batches/4,000 a batch: burst of 30,000"),
    ),
]


def _where(results: Mapping[str, Any]) -> str:
    machine = results["machine"]
    again = results["run"].get("updated", {}).get("machine", machine)
    days = " and ".join(dict.fromkeys(each["at"][:10] for each in (machine, again)))
    return (
        f"Measured on {days}, everything on {machine['cpus']} cores ({machine['cpu']}); "
        "[bench/README.md](bench/README.md) says how, and which goals are missed."
    )


def _cell(values: Values, names: tuple[str, ...]) -> str:
    found = [values[name] for name in names if name in values]
    return " / ".join(shown(figure["value"], figure["unit"]) for figure in found) or "—"


DOCUMENTS: Final = {
    README: render,
    BENCH: render_missed,
    FLOWS: render_flows,
    OPERATIONS: render_sizing,
    POSTGRESQL: render_postgres,
}
"""Each document with what stands between its markers."""


def main() -> None:
    """Bring the documents up to date."""
    results = json.loads(LATEST.read_text("utf-8"))
    for path, render_part in DOCUMENTS.items():
        rendered = render_part(results)
        path.write_text(insert(path.read_text("utf-8"), rendered), "utf-8")


if __name__ == "__main__":
    main()
