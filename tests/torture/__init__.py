"""Proofs that take longer than a test suite may: run by hand, with figures in their last lines.

Also a Django app, whose tasks are what the tortured processes run.
"""
