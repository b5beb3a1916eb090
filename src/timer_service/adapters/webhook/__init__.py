"""Callbacks over HTTP: guarded, signed, bounded."""
