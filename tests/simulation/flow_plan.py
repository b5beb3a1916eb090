"""What a seed chooses for durable functions: their runs, who calls when, and what goes wrong."""

from dataclasses import dataclass
from datetime import timedelta
from random import Random
from typing import Any

HOUR = timedelta(hours=1)
KINDS = ("step", "step", "transaction", "transaction", "fail", "sleep", "sleep", "wait", "gather", "break")
MAX_RUNS, MAX_MOVES, MAX_FAULTS = 4, 6, 7
RETRIES = 3
"""How often a run is tried again that breaks; it never breaks more often."""
LOSING = frozenset({"lost event", "lost timers"})
"""After these only the reconciler helps, which takes its time."""
FAULTS = ("kill", "kill", "kill after", "freeze", "freeze", "both have it", "stop", "lost acks")

Move = list[Any]
"""What a run does next, as its input says it: the kind, the name, and what belongs to it."""


@dataclass(frozen=True, slots=True)
class Planned:
    """One run."""

    id: str
    moves: list[Move]


@dataclass(frozen=True, slots=True)
class Call:
    """What callers do at a moment; several do it at once, each in its own name."""

    at: timedelta
    what: str
    run: str
    callers: int
    signal: str = ""


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong at a step of the workers."""

    step: int
    kind: str
    slot: int
    """Which of the two workers is hit."""
    lasts: int
    """Steps, or moments until another process is started."""


@dataclass(frozen=True, slots=True)
class FlowPlan:
    """All that one seed chooses."""

    seed: int
    runs: list[Planned]
    calls: list[Call]
    faults: list[Fault]

    @property
    def is_losing(self) -> bool:
        """Return whether runs may be found by the reconciler only."""
        return any(fault.kind in LOSING for fault in self.faults)


def make_flow_plan(seed: int) -> FlowPlan:
    """Let a seed choose; one in four has nothing go wrong, and one in four loses what it must not."""
    random = Random(f"flows-{seed}")
    runs = [Planned(f"run-{n}", _moves(random, 0)) for n in range(random.randint(1, MAX_RUNS))]
    calls = [call for run in runs for call in _calls(random, run)]
    kinds = FAULTS if seed % 4 != 1 else (*FAULTS, *sorted(LOSING), *sorted(LOSING))
    steps = random.choice((300, 900))
    faults = [
        Fault(random.randrange(1, steps), random.choice(kinds), random.randrange(2), random.randrange(1, 80))
        for _ in range(random.randint(1, MAX_FAULTS) if seed % 4 else 0)
    ]
    calls.sort(key=lambda call: call.at)
    faults.sort(key=lambda fault: fault.step)
    return FlowPlan(seed, runs, calls, faults)


def _moves(random: Random, depth: int) -> list[Move]:
    moves: list[Move] = []
    if depth == 0 and random.random() < 0.3:
        # Told while it is in hand, it does not wait at all, and what would have ended the wait is in the way.
        moves += [["step", "first"], ["wait", "told", 1], ["sleep", "night", 5]]
    for number in range(random.randint(1, MAX_MOVES if depth == 0 else 3)):
        breaks = any(kind == "break" for kind, *_ in moves)
        kind = random.choice(KINDS[:-2] if depth else KINDS[:-1] if breaks else KINDS)
        move: Move = [kind, f"{kind}-{number}"]
        if kind == "sleep":
            move.append(random.choice((0, 1, 1, 2, 5)))
        elif kind == "wait":
            move.append(random.choice((None, 1, 1, 2)))
        elif kind == "gather":
            move.append({name: _moves(random, depth + 1) for name in (f"left-{number}", f"right-{number}")})
        elif kind == "break":
            move.append(random.randint(1, RETRIES))
        moves.append(move)
    return moves


def _calls(random: Random, run: Planned) -> list[Call]:
    """Start a run, tell it what it waits for, and cancel some; calls often meet what wakes the run."""
    starts = HOUR * random.choice((0, 0, 1))
    calls = [Call(starts, "start", run.id, random.choice((1, 1, 2)))]
    for name in _waits(run.moves, ""):
        told = starts + HOUR * random.choice((0, 0, 0, 1, 2, 3))
        calls.append(Call(told, "signal", run.id, random.choice((1, 2)), name))
    if random.random() < 0.15:
        calls.append(Call(starts + HOUR * random.choice((0, 1, 2)), "cancel", run.id, random.choice((1, 2))))
    return calls


def _waits(moves: list[Move], prefix: str) -> list[str]:
    """Return the whole names of what a run waits for."""
    found = []
    for kind, name, *more in moves:
        if kind == "wait":
            found.append(prefix + name)
        elif kind == "gather":
            for branch, inside in more[0].items():
                found += _waits(inside, f"{prefix}{branch}/")
    return found
