"""Durable functions: a sleep of three days that survives everything."""

from timer_client.flows.flows import Flows
from timer_client.flows.journal import Journal
from timer_client.flows.model import FlowError, RunNotFound, RunState, RunView, StepFailed, Suspension
from timer_client.flows.postgres import PostgresJournal
from timer_client.flows.run import Run
from timer_client.flows.sqlite import MemoryJournal, SqliteJournal
from timer_client.flows.statements import TABLES
from timer_client.flows.worker import Worker

__all__ = [
    "TABLES",
    "FlowError",
    "Flows",
    "Journal",
    "MemoryJournal",
    "PostgresJournal",
    "Run",
    "RunNotFound",
    "RunState",
    "RunView",
    "SqliteJournal",
    "StepFailed",
    "Suspension",
    "Worker",
]
