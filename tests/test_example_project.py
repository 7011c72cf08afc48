"""The example project: its data, its mail server, its task's patience. The demonstration itself is
``make demo``."""

from __future__ import annotations

from tests.support import run_python

EXAMPLE = {"DJANGO_SETTINGS_MODULE": "example_project.settings"}


def run_in_example(code: str, *arguments: str) -> str:
    """Run code in a process that has the example project set up; gives its output."""
    setup = "import django\ndjango.setup()\n"
    return run_python(setup + code, *arguments, env=EXAMPLE).stdout


def test_the_subscribers() -> None:
    """500 different addresses; those that the demonstration knows about are among them."""
    run_in_example(
        """
import csv
from example_project.newsletter.demonstration import CORRECTIONS, CSV_FILE, GREYLISTED
with CSV_FILE.open(newline="", encoding="utf-8") as file:
    emails = [row["email"] for row in csv.DictReader(file)]
assert len(emails) == len(set(emails)) == 500
assert len(CORRECTIONS) == 5 and set(CORRECTIONS) <= set(emails)
assert not set(CORRECTIONS.values()) & set(emails)
assert sum(email.endswith("@" + GREYLISTED) for email in emails) == 25
assert all(email.rpartition("@")[2] in ("example.com", "example.net") for email in emails)
"""
    )


def test_the_mail_server_and_the_task_agree() -> None:
    """A mailbox that does not exist is given up at once, a greylisted one is tried again."""
    run_in_example(
        """
import smtplib
from example_project.newsletter.mail_server import MailServer
from example_project.newsletter.tasks import retry_interval

def deliver(recipient):
    with smtplib.SMTP(server.host, server.port, local_hostname="localhost") as client:
        client.sendmail("newsletter+1-2-a-3@example.com", [recipient], "X-Task-Id: 1-2-a-3\\n\\nHi")

def wait_after(recipient):
    try:
        deliver(recipient)
    except smtplib.SMTPRecipientsRefused as error:
        return retry_interval(error, 1)
    return "delivered"

server = MailServer(
    unknown=["no@example.com"], greylisted="example.net", greylist_seconds=0.0,
    seconds_per_message=0.0,
)
with server:
    assert wait_after("no@example.com") is None
    server._greylist_seconds = 60.0
    assert 1 <= wait_after("a@example.net") <= 2
    assert wait_after("b@example.com") == "delivered"
    server._greylist_seconds = 0.0
    assert wait_after("a@example.net") == "delivered"
assert [message.recipient for message in server.received] == ["b@example.com", "a@example.net"]
assert {message.task_id for message in server.received} == {"1-2-a-3"}
assert len(server.attempts) == 4
assert retry_interval(ConnectionRefusedError(), 1) <= 2
"""
    )


def test_every_setting_of_the_example_file_is_read() -> None:
    run_in_example(
        """
import re
from pathlib import Path
import example_project.settings as settings
folder = Path(settings.__file__).parent
source = Path(settings.__file__).read_text(encoding="utf-8")
for line in (folder / ".env.example").read_text(encoding="utf-8").splitlines():
    match = re.match(r"#?([A-Z_]+)=", line)
    if match:
        assert f'"{match[1]}"' in source, match[1]
"""
    )
