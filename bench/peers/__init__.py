"""What one would use in place of the timer service, under the same workload on the same machine."""
