"""Builds what the settings ask for: the store, the sender of callbacks, the REST API, the page."""
