"""Foreign bytes in the files of a store: mutations, and what the format's description says of them.

The checks of :mod:`.levels` run on any bytes: under Hypothesis in the test suite, in a seeded loop
(``python -m tests.fuzz``), and guided by coverage (``tests/fuzz/atheris_*.py``).
"""
