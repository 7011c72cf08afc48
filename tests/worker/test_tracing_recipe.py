"""The OpenTelemetry recipe of the documentation, run as it stands there."""

from __future__ import annotations

import json
from typing import Any

from tests.test_docs import code_blocks
from tests.worker.conftest import MakeProject

SETTINGS = """
DEFERRED["ENQUEUE_MIDDLEWARE"] = ["app.tracing.send"]
DEFERRED["PERFORM_MIDDLEWARE"] = ["app.tracing.process"]
"""

TASKS = """
import json

from django.dispatch import receiver
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from deferred_django.signals import worker_started, worker_stopped


class NotingExporter(SpanExporter):
    def export(self, spans):
        for span in spans:
            note(span.to_json(indent=None))
        return SpanExportResult.SUCCESS


provider = TracerProvider()


@receiver(worker_started)
def set_up(**told):
    provider.add_span_processor(BatchSpanProcessor(NotingExporter()))
    trace.set_tracer_provider(provider)


@receiver(worker_stopped)
def shut_down(**told):
    provider.shutdown()


tracer = trace.get_tracer("app")


@deferred
def plain():
    with tracer.start_as_current_span("inside plain"):
        asynchronous.enqueue()


@deferred
async def asynchronous():
    with tracer.start_as_current_span("inside asynchronous"):
        pass


@deferred(max_retries=0)
def failing():
    raise ValueError("of the task")
"""

ENQUEUER = """
set_up()
with tracer.start_as_current_span("request"):
    plain.enqueue()
    failing.enqueue()
shut_down()
"""


def recipe() -> str:
    (code,) = [code for _, code in code_blocks("python") if "# shop/tracing.py" in code]
    return code


def test_one_trace_from_the_request_to_the_last_task(make_project: MakeProject) -> None:
    project = make_project(settings=SETTINGS, tasks=TASKS)
    (project.path / "app" / "tracing.py").write_text(recipe())
    project.run(ENQUEUER)
    done = project.drain("--threads", "2")
    assert "of the signal" not in done.stderr
    spans: dict[str, dict[str, Any]] = {}
    for line in project.notes():
        span = json.loads(line)
        spans[span["name"].replace("app.tasks.", "")] = span
    parents = {span["context"]["span_id"]: name for name, span in spans.items()}
    assert {name: parents.get(span["parent_id"]) for name, span in spans.items()} == {
        "request": None,
        "send plain": "request",
        "process plain": "send plain",
        "inside plain": "process plain",
        "send asynchronous": "inside plain",
        "process asynchronous": "send asynchronous",
        "inside asynchronous": "process asynchronous",
        "send failing": "request",
        "process failing": "send failing",
    }
    assert len({span["context"]["trace_id"] for span in spans.values()}) == 1
    failed = spans["process failing"]
    assert failed["status"]["status_code"] == "ERROR"
    assert [event["name"] for event in failed["events"]] == ["exception"]
    assert failed["kind"] == "SpanKind.CONSUMER"
    assert failed["attributes"]["messaging.destination.name"] == "default"
    assert failed["attributes"]["deferred_django.attempt"] == 1
