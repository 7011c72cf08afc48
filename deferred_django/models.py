"""The model that dead tasks have permissions by. It has no table."""

from __future__ import annotations

from typing import Any

from django.db import models


class DeadTaskManager(models.Manager[Any]):
    """Finds nothing, without a query: ``dumpdata`` and its like visit every model's rows."""

    def get_queryset(self) -> models.QuerySet[Any]:
        """No rows."""
        return super().get_queryset().none()


class DeadTask(models.Model):
    """Carries the permissions to view, delete and retry dead tasks.

    The dead tasks themselves are in the backend's store
    (``get_backend().list_dead_tasks()``), never in a table of this name.
    """

    id = models.CharField(primary_key=True, max_length=200)

    objects = DeadTaskManager()

    class Meta:
        managed = False
        base_manager_name = "objects"
        default_permissions = ("view", "delete")
        permissions = [("retry_deadtask", "Can retry dead task")]
        verbose_name = "dead task"
        verbose_name_plural = "dead tasks"

    def __str__(self) -> str:
        return self.id
