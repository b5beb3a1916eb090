"""What an operator sees: logs on stderr and metrics in Prometheus form."""
