"""How much to measure: the whole, or a smoke test."""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Plan:
    """The sizes of all workloads."""

    limit_count: int = 30_000
    repeats: int = 3
    """How often a short measurement is taken; the median counts."""
    ingest: tuple[int, ...] = (20_000, 200_000)
    burst: tuple[int, ...] = (20_000, 100_000)
    batch_count: int = 30_000
    batch_sizes: tuple[int, ...] = (100, 500, 1_000, 4_000)
    """Beside the default."""
    rates: tuple[int, ...] = (500, 2_000)
    steady_s: float = 15.0
    both_rate: int = 2_000
    fairness_burst: int = 100_000
    fairness_rate: int = 10
    neighbour_s: float = 15.0
    neighbour_rate: int = 50
    flood_rate: int = 5_000
    pending: tuple[int, ...] = (10_000, 1_000_000, 10_000_000)
    overdue: int = 100_000
    callback_burst: int = 10_000
    tls_burst: int = 2_000
    callback_s: float = 8.0
    callback_pending: tuple[int, int] = (10_000, 1_000_000)
    isolation_s: float = 10.0
    isolation_rounds: int = 5
    """How often a sudden backlog or a flood is measured, with and without it; the median counts."""
    hanging: int = 10_000
    broker_away_s: float = 60.0
    lanes: int = 100_000
    lanes_s: float = 20.0
    rest_creates: int = 6_000
    rest_batches: int = 60
    """Of 1,000 timers each."""
    page_rounds: int = 30
    """How often each screen of the page is visited, with a pause between the rounds."""
    page_pause_s: float = 1.0
    page_watched_s: float = 40.0
    tenants: int = 100_000
    busy_tenants: int = 10
    slow_s: float = 10.0
    sync_delay_ms: int = 50
    reached: int = 1_000_000
    idle_s: float = 20.0
    flow_burst: int = 5_000
    flow_rate: int = 200
    flow_s: float = 10.0
    flow_sleeping: int = 1_000_000
    peer_burst: int = 100_000
    peer_synced_burst: int = 5_000
    poller_burst: int = 2_000
    poller_rate: int = 500
    poller_s: float = 11.0
    """Longer than two intervals of five seconds."""

    def with_pending(self, more: int) -> "Plan":
        """Return the plan with one more size for the scale part."""
        return replace(self, pending=tuple(sorted({*self.pending, more})))


FULL = Plan()
QUICK = Plan(
    limit_count=5_000,
    repeats=1,
    ingest=(5_000,),
    burst=(5_000,),
    batch_count=3_000,
    batch_sizes=(300,),
    rates=(500,),
    steady_s=2.0,
    both_rate=500,
    fairness_burst=5_000,
    neighbour_s=3.0,
    pending=(1_000, 20_000, 50_000),
    overdue=5_000,
    callback_burst=1_000,
    tls_burst=200,
    callback_s=2.0,
    callback_pending=(1_000, 20_000),
    isolation_s=2.0,
    isolation_rounds=1,
    hanging=500,
    broker_away_s=2.0,
    lanes=2_000,
    lanes_s=2.0,
    rest_creates=500,
    rest_batches=3,
    page_rounds=3,
    page_pause_s=0.1,
    page_watched_s=4.0,
    tenants=3_000,
    slow_s=2.0,
    reached=50_000,
    idle_s=2.0,
    flow_burst=300,
    flow_s=2.0,
    flow_sleeping=5_000,
    peer_burst=2_000,
    peer_synced_burst=500,
    poller_burst=200,
    poller_rate=100,
    poller_s=1.0,
)
