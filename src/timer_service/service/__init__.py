"""The loops around the workflows: the only place that decides when."""
