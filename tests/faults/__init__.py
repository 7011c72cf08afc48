"""Faults at every call of the disk store: `python -m tests.faults`, and a sample of it here."""
