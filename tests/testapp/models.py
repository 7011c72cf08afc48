"""The models that tests pass to tasks."""

from __future__ import annotations

from django.db import models


class Note(models.Model):
    """A row to read, change and pass to a task."""

    text = models.CharField(max_length=200)

    def __str__(self) -> str:
        return self.text
