"""A Django app with a model, for tests that need one."""
