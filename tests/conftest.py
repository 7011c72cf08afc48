"""Fixtures for the whole suite."""
