"""Health and metrics over HTTP, in the same process and loop."""
