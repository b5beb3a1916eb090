"""The alert rules and the dashboard name metrics that exist, and every alert leads to a runbook."""

import json
import re
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.support.documents import read
from tests.support.metrics import families, selectors, series, unknown_names
from timer_service.domain.delivery import DeliveryState
from timer_service.observability.metrics import LATENESS_BUCKETS_S, Metrics
from timer_service.ports.event_sink import Published
from timer_service.service.health import MIN_FREE_BYTES, SILENT_S

ALERTS = "deploy/prometheus/alerts.yaml"
DASHBOARD = "deploy/grafana/dashboard.json"
RUNBOOKS = "docs/runbook.md"
DURATION = re.compile(r"[1-9]\d*[smhd]")


def test_the_file_has_the_shape_that_prometheus_reads() -> None:
    document = yaml.safe_load(read(ALERTS))

    assert list(document) == ["groups"]
    assert [sorted(group) for group in document["groups"]] == [["name", "rules"]] * len(document["groups"])
    assert [sorted(rule) for rule in _rules("record")] == [["expr", "record"]] * len(_rules("record"))
    assert [set(rule) - {"for"} for rule in _rules("alert")] == [
        {"alert", "expr", "labels", "annotations"} for _ in _rules("alert")
    ]


def test_every_name_is_used_once() -> None:
    names = [rule.get("alert") or rule["record"] for rule in _rules()]

    assert names == list(dict.fromkeys(names))


def test_every_alert_says_what_it_means_and_how_bad_it_is() -> None:
    for rule in _rules("alert"):
        assert sorted(rule["annotations"]) == ["description", "runbook", "summary"], rule["alert"]
        assert all(len(text) > 10 for text in rule["annotations"].values()), rule["alert"]
        assert list(rule["labels"]) == ["severity"], rule["alert"]
        assert rule["labels"]["severity"] in ("critical", "warning"), rule["alert"]
        assert DURATION.fullmatch(rule.get("for", "1m")), rule["alert"]


def test_every_query_names_metrics_and_labels_that_exist() -> None:
    known = series() | {rule["record"]: frozenset() for rule in _rules("record")}

    unknown = {name for rule in _rules() for name in unknown_names(rule["expr"], known)}

    assert unknown == set()


def test_every_series_of_an_alert_is_there_from_the_start() -> None:
    """Prometheus sees no increase of a series that begins with its first count."""
    samples = [
        (sample.name, sample.labels)
        for family in text_string_to_metric_families(Metrics().text().decode())
        for sample in family.samples
    ]

    missing = {
        str(selector)
        for rule in _rules()
        for selector in selectors(rule["expr"])
        if ":" not in str(selector.name) and not any(_selects(selector, *sample) for sample in samples)
    }

    assert missing == set()


def test_every_recorded_series_is_used() -> None:
    used = {selector.name for rule in _rules("alert") for selector in selectors(rule["expr"])}

    assert {rule["record"] for rule in _rules("record")} <= used


def test_every_value_of_a_label_can_occur() -> None:
    """A misspelt value selects nothing and never fires."""
    allowed = {
        "le": {str(float(bound)) for bound in LATENESS_BUCKETS_S},
        "kind": {outcome.name.lower() for outcome in Published},
        "state": {state.value.lower() for state in DeliveryState},
    }

    named = {
        (matcher.name, matcher.value)
        for rule in _rules()
        for selector in selectors(rule["expr"])
        for matcher in selector.matchers.matchers
    }

    assert {(name, value) for name, value in named if value not in allowed[name]} == set()


def test_a_summary_uses_only_labels_that_its_query_keeps() -> None:
    used = {
        (rule["alert"], label)
        for rule in _rules("alert")
        for text in rule["annotations"].values()
        for label in re.findall(r"\$labels\.(\w+)", text)
    }

    assert {(name, label) for name, label in used if f"by ({label})" not in _alert(name)["expr"]} == set()


def test_every_alert_has_a_runbook_and_every_runbook_an_alert() -> None:
    section = read(RUNBOOKS).partition("\n## Alerts and what to do\n")[2].partition("\n## ")[0]
    headings = re.findall(r"^### (.+)$", section, re.MULTILINE)
    anchors = {rule["annotations"]["runbook"] for rule in _rules("alert")}

    assert anchors == {f"{RUNBOOKS}#{_anchor(heading)}" for heading in headings}


def test_the_limits_are_those_of_the_code() -> None:
    assert _alert("TimerWorkerSilent")["expr"] == f"time() - timer_last_poll_timestamp_seconds > {SILENT_S:g}"
    assert f"{MIN_FREE_BYTES // 1024**2} MiB" in _alert("TimerDiskAlmostFull")["annotations"]["description"]


def test_what_must_be_alerted_on_is() -> None:
    """A silent worker, refused commands, overdue and late timers, no broker, no store, a full disk."""
    watched = {selector.name for rule in _rules() for selector in selectors(rule["expr"])}

    assert watched >= {
        "timer_last_poll_timestamp_seconds",
        "timer_dead_letters_total",
        "timer_oldest_overdue_seconds",
        "timer_lateness_seconds_bucket",
        "timer_broker_connected",
        "timer_store_available",
        "timer_store_free_bytes",
        "timer_clock_step_held_seconds",
        "timer_stream_tail_lost",
    }


def test_lateness_is_watched_over_a_long_and_a_short_window() -> None:
    """The long one tells that it matters, the short one that it goes on."""
    fast = [s.name for s in selectors(_alert("TimerLatenessBudgetBurnsFast")["expr"])]
    slow = [s.name for s in selectors(_alert("TimerLatenessBudgetBurnsSlowly")["expr"])]

    assert fast == ["timer:late:ratio_rate1h", "timer:late:ratio_rate5m"]
    assert slow == ["timer:late:ratio_rate6h", "timer:late:ratio_rate30m"]


def test_the_dashboard_names_metrics_and_labels_that_exist() -> None:
    unknown = {name for query in _dashboard_queries() for name in unknown_names(query, series())}

    assert unknown == set()


def test_the_dashboard_shows_every_metric() -> None:
    shown = {selector.name for query in _dashboard_queries() for selector in selectors(query)}

    assert [family.name for family in families() if not shown & set(family.series)] == []


def test_the_dashboard_s_panels_are_in_order() -> None:
    panels = json.loads(read(DASHBOARD))["panels"]

    assert [panel["id"] for panel in panels] == list(range(1, len(panels) + 1))
    assert [pair for pair in combinations(panels, 2) if _overlap(*(p["gridPos"] for p in pair))] == []
    assert all(panel["title"] and panel.get("description", "row") for panel in panels)


def test_the_dashboard_works_with_any_data_source() -> None:
    board = json.loads(read(DASHBOARD))
    sources = {
        target["datasource"]["uid"]
        for panel in board["panels"]
        for target in [panel, *panel.get("targets", [])]
        if "datasource" in target
    }

    assert sources == {"${datasource}"}
    assert [variable["name"] for variable in board["templating"]["list"]] == ["datasource", "instance"]


def _rules(kind: str | None = None) -> list[dict[str, Any]]:
    groups = yaml.safe_load(read(ALERTS))["groups"]
    return [rule for group in groups for rule in group["rules"] if kind is None or kind in rule]


def _selects(selector: Any, name: str, labels: dict[str, str]) -> bool:
    named = {matcher.name: matcher.value for matcher in selector.matchers.matchers if str(matcher.op) == "="}
    return bool(selector.name == name and named.items() <= labels.items())


def _alert(name: str) -> dict[str, Any]:
    [rule] = [rule for rule in _rules("alert") if rule["alert"] == name]
    return rule


def _dashboard_queries() -> Iterator[str]:
    """Return the dashboard's queries, with Grafana's variables filled in."""
    for panel in json.loads(read(DASHBOARD))["panels"]:
        for target in panel.get("targets", []):
            yield target["expr"].replace("$__rate_interval", "1m").replace("$instance", ".*")


def _anchor(heading: str) -> str:
    """Return the anchor that a Markdown heading gets."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _overlap(one: dict[str, int], other: dict[str, int]) -> bool:
    return (
        one["x"] < other["x"] + other["w"]
        and other["x"] < one["x"] + one["w"]
        and one["y"] < other["y"] + other["h"]
        and other["y"] < one["y"] + one["h"]
    )
