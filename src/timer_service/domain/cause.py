"""Why a timer is as it is, in one word."""

from enum import StrEnum


class Cause(StrEnum):
    """Why a timer is as it is, in one word for programs."""

    NOT_DUE = "not_due"
    BEING_FIRED = "being_fired"
    BROKER_AWAY = "broker_away"
    NO_BROKER = "no_broker"
    STORE_TROUBLE = "store_trouble"
    CLOCK_HELD = "clock_held"
    WORKER_STUCK = "worker_stuck"
    STREAM_REFUSES = "stream_refuses"
    TENANT_HELD_BACK = "tenant_held_back"
    TIMER_HELD_BACK = "timer_held_back"
    WAITS_FOR_COMMANDS = "waits_for_commands"
    COMMANDS_SILENT = "commands_silent"
    BACKLOG = "backlog"
    UNEXPLAINED = "unexplained"
    FIRED = "fired"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    CALLBACK_WAITING = "callback_waiting"
    CALLBACK_RETRYING = "callback_retrying"
    RECEIVER_AWAY = "receiver_away"
    CALLBACK_DELIVERED = "callback_delivered"
    CALLBACK_FAILED = "callback_failed"
    CALLBACK_ABANDONED = "callback_abandoned"
    REFUSED = "refused"
    COMMANDS_WAITING = "commands_waiting"
    NOT_FOUND = "not_found"
