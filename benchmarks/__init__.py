"""Measurements of the store and the worker; each number stands beside its floor."""
