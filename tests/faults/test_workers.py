"""Real workers on a store that fails lastingly: a sample, see :mod:`tests.faults.workers`."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from tests.faults import switched, workers


def test_a_worker_outlives_lasting_faults() -> None:
    """It lives, loses and repeats nothing, says little, and goes on when the faults end."""
    sample = workers.sample(seconds=1.0)
    assert {place for trial in sample for place in trial.faults} == {*switched.PLACES}
    assert {code for trial in sample for code in trial.faults.values()} == {*workers.ERRORS}
    with ThreadPoolExecutor(len(sample)) as threads:  # they wait most of the time
        done = list(threads.map(workers.attempt, sample))
    assert {str(trial): trial.violations for trial in done if trial.violations} == {}
