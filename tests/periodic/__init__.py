"""Periodic tasks: the timings, the setting, the scheduler, and a simulated year of it."""
