"""Proofs of what a worker bears for long: stops, memory, a lost database, idleness.

``python -m tests.endurance NAME`` or ``make endurance``; each prints what it did and its figures.
"""
