"""docs/monitoring.md lists exactly the metrics that the service has."""

import re

from tests.support.documents import code_words, table
from tests.support.metrics import Family, families
from timer_service.observability.metrics import Metrics

DOCUMENT = "docs/monitoring.md"


def test_the_catalogue_lists_every_metric_with_its_type_and_labels() -> None:
    listed = [
        Family(code_words(row["metric"])[0], row["type"], tuple(code_words(row["labels"])))
        for row in table(DOCUMENT, "metric")
    ]

    assert listed == families()


def test_every_metric_has_a_meaning() -> None:
    without = [row["metric"] for row in table(DOCUMENT, "metric") if len(row["meaning"]) < 10]

    assert without == []


def test_the_page_of_metrics_has_the_names_of_the_catalogue() -> None:
    """Prometheus' own naming of a counter is not taken for granted."""
    shown = re.findall(r"^# TYPE (\S+) (\S+)$", Metrics().text().decode(), re.MULTILINE)

    assert shown == [(family.name, family.type) for family in families()]
