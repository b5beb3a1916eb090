"""Durable timers over NATS JetStream: ScheduleTimer in, DueTimeReached out."""

__version__ = "0.1.0"
