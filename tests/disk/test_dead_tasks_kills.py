"""Processes that add, remove, take and read at once, and are killed at any moment."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

from tests.disk.dlq import assert_at_rest, open_store
from tests.support import start_python, wait_until

SECONDS = float(os.environ.get("DEAD_TASKS_KILLS_SECONDS", "3"))

# Each says in a file of its own what it is about to do and what it has done: one line, one write.
ACTOR = """
    import os, random, sys
    from deferred_django.backends.disk.dead_tasks_storage import DeadTasksStorage

    path, role, name, notes = sys.argv[1:]
    fd = os.open(notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def note(*words):
        os.write(fd, (" ".join(words) + "\\n").encode())

    store = DeadTasksStorage(path, "d-", lock_timeout=20)
    number = 0
    while True:
        number += 1
        if role == "add":
            task = f"{name}-{number}"
            store.add(task, task.encode() * random.choice((1, 10, 500)))
            note("added", task)
            continue
        there = [task for task, _ in store.read(limit=random.choice((10, 1000)))]
        assert store.problems() == [], store.problems()
        some = random.sample(there, min(len(there), random.choice((1, 3))))
        if role == "remove" and some:
            note("removing", *some)
            store.remove(some)
            note("removed", *some)
        elif role == "take" and some:
            note("taking", *some)
            def hand_over(task, data):
                assert data.startswith(task.encode()), (task, data[:50])
                note("handed", task)
            taken = store.take(some, hand_over, lambda: None)
            note("taken", *taken)
"""
ROLES = ("add", "add", "add", "remove", "take", "read")


class Books:
    """What the processes said."""

    def __init__(self, directory: Path) -> None:
        self.words: dict[str, Counter[str]] = {}
        for file in directory.iterdir():
            for line in file.read_text().splitlines():
                word, *tasks = line.split(" ")
                self.words.setdefault(word, Counter()).update(tasks)

    def said(self, word: str) -> set[str]:
        return set(self.words.get(word, ()))


def test_the_books_balance_after_kills(tmp_path: Path) -> None:
    path, notes = tmp_path / "store", tmp_path / "notes"
    notes.mkdir()
    kills: Counter[str] = Counter()
    actors: list[tuple[str, subprocess.Popen[str]]] = []
    with contextlib.ExitStack() as stack:

        def start(role: str) -> None:
            name = f"{role}{time.monotonic_ns()}"
            arguments = (str(path), role, name, str(notes / name))
            process = stack.enter_context(start_python(ACTOR, *arguments))
            stack.callback(process.kill)
            actors.append((role, process))

        for role in ROLES:
            start(role)
        wait_until(lambda: len(list(notes.iterdir())) == len(ROLES), timeout=30)
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            time.sleep(random.uniform(0.02, 0.3))
            role, process = actors.pop(random.randrange(len(actors)))
            process.kill()
            _, errors = process.communicate(timeout=10)
            assert not errors, errors
            assert process.returncode == -signal.SIGKILL
            kills[role] += 1
            start(role)
        for _, process in actors:
            process.kill()
            _, errors = process.communicate(timeout=10)
            assert not errors, errors
    store = open_store(path)
    there = {name for name, _ in store.read()}
    assert store.count() == len(there)
    books = Books(notes)
    added = books.said("added")
    assert len(added) > 20
    touched = books.said("removing") | books.said("taking")
    lost = added - touched - there
    assert not lost, f"{len(lost)} of {len(added)} lost after {kills.total()} kills"
    gone = books.said("removed") | books.said("taken")
    assert not gone & there, "what was removed came back"
    # Only a take that was killed between its hand-over and its removal is repeated.
    repeated = [task for task, times in books.words.get("handed", Counter()).items() if times > 1]
    assert len(repeated) <= 3 * kills["take"]
    assert not [found for found in store.verify() if found.kind != "torn"]
    store.add("after", b"1")
    assert store.verify() == []
    assert store.remove(["after"]) == 1
    assert_at_rest(path)
