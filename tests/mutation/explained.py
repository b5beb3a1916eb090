"""Mistakes that change nothing anybody could notice, each with the reason."""

EXPLAINED: dict[str, str] = {}
