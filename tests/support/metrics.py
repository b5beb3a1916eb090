"""The service's metrics as Prometheus sees them, and the queries that name them."""

from dataclasses import dataclass

import promql_parser
from prometheus_client.metrics import MetricWrapperBase

from timer_service.observability.metrics import Metrics

ADDED_BY_PROMETHEUS = frozenset({"instance", "job"})
_SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_count", "_sum")}


@dataclass(frozen=True, slots=True, order=True)
class Family:
    """One metric: its name as a table shows it, its type and its labels."""

    name: str
    type: str
    labels: tuple[str, ...]

    @property
    def series(self) -> dict[str, frozenset[str]]:
        """The names that a query may use, each with its labels."""
        stem = self.name.removesuffix("_total")
        return {
            stem + suffix: frozenset(self.labels) | ({"le"} if suffix == "_bucket" else set())
            for suffix in _SUFFIXES[self.type]
        }


def families() -> list[Family]:
    """Return every metric that the service registers."""
    return [
        Family(
            collector._name + ("_total" if collector._type == "counter" else ""),
            str(collector._type),
            tuple(collector._labelnames),
        )
        for collector in Metrics()._registry._collector_to_names
        if isinstance(collector, MetricWrapperBase)
    ]


def series() -> dict[str, frozenset[str]]:
    """Return every name that a query may use, each with its labels."""
    return {name: labels for family in families() for name, labels in family.series.items()}


def selectors(query: str) -> list[promql_parser.VectorSelector]:
    """Parse a PromQL query and return what it selects."""
    found: list[promql_parser.VectorSelector] = []

    def visit(part: promql_parser.Expr) -> None:
        if isinstance(part, promql_parser.VectorSelector):
            found.append(part)
        if isinstance(part, promql_parser.MatrixSelector):
            found.append(part.vector_selector)

    promql_parser.walk(promql_parser.parse(query), visit)
    return found


def unknown_names(query: str, known: dict[str, frozenset[str]]) -> list[str]:
    """Return the metrics and labels that a query names and that do not exist."""
    unknown = []
    for selector in selectors(query):
        labels = {matcher.name for matcher in selector.matchers.matchers}
        if selector.name not in known:
            unknown.append(str(selector.name))
        else:
            extra = labels - known[selector.name] - ADDED_BY_PROMETHEUS
            unknown += [f"{selector.name}{{{label}}}" for label in sorted(extra)]
    return unknown
