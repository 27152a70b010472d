"""The message that the placement script pushes is the one that the installed Celery and kombu read."""

from __future__ import annotations

import json

import pytest
from celery import Celery

from flowctl.workers import template


def made(queue: str) -> str:
    app = Celery("probe", broker="memory://", set_as_current=False)
    app.conf.task_ignore_result = True

    @app.task(name="flowctl.run_unit")  # type: ignore[untyped-decorator]
    def run_unit(unit: str, epoch: str) -> None:
        raise AssertionError

    return template.make(run_unit, queue=queue)


def test_the_template_names_task_queue_and_tag() -> None:
    message = json.loads(made("fcq.boot"))

    assert message["headers"]["task"] == "flowctl.run_unit"
    assert message["headers"]["id"] == "@@UNIT@@.@@EPOCH@@"
    assert message["properties"]["delivery_tag"] == "fc.@@UNIT@@.@@EPOCH@@"
    assert "body_encoding" not in message["properties"]
    assert json.loads(message["body"])[0] == ["@@UNIT@@", "@@EPOCH@@"]


def test_a_message_for_another_queue_is_refused() -> None:
    text = made("fcq.boot")

    with pytest.raises(RuntimeError, match="install the versions"):
        template.check(text, queue="fcq.other")
