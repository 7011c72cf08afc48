"""The newsletter's background tasks; a worker finds this module by its name."""

from __future__ import annotations

import random
import smtplib

from django.conf import settings
from django.core.mail import EmailMessage

from deferred_django import current_task, deferred
from example_project.newsletter.models import Subscriber


def retry_interval(exception: BaseException, attempt: int) -> float | None:
    """Seconds until the next attempt; ``None`` gives up.

    A mailbox that does not exist (5xx) will not exist in a second either, so a person has to
    look at it. Anything else (a server that is busy, greylists or is away) is tried again soon.
    """
    if isinstance(exception, smtplib.SMTPRecipientsRefused):
        replies = exception.recipients.values()
        if all(code >= 500 for code, _ in replies):
            return None
    return random.uniform(1.0, 2.0)


@deferred(max_retries=10, retry_interval=retry_interval)
def send_newsletter(subscriber: Subscriber) -> None:
    """Send this month's newsletter to one subscriber.

    The subscriber travels as a reference and is read again when the task runs, so an address
    that was corrected meanwhile is the one that is used.
    """
    task_id = current_task().id
    sender, _, domain = settings.DEFAULT_FROM_EMAIL.partition("@")
    EmailMessage(
        subject=f"News for {subscriber.name}",
        body=f"Dear {subscriber.name},\n\nthere is news.\n",
        # The envelope's sender names the task, so that a bounce can be told from any other.
        from_email=f"{sender}+{task_id}@{domain}",
        to=[subscriber.email],
        headers={"From": settings.DEFAULT_FROM_EMAIL, "X-Task-Id": task_id},
    ).send()
