"""Who gets the newsletter."""

from __future__ import annotations

from django.db import models


class Subscriber(models.Model):
    """One address that the newsletter goes to."""

    name = models.CharField(max_length=200)
    email = models.EmailField(unique=True)

    objects: models.Manager[Subscriber] = models.Manager()

    class Meta:
        ordering = ["id"]

    def __str__(self) -> str:
        return f"{self.name} <{self.email}>"
