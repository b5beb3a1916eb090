"""The event bus on NATS JetStream."""
