"""The Celery message of an attempt, as text with places to fill in, made by Celery and kombu themselves.

The placement script pushes it, so that the decision and the message are one step. Made at each worker's start by the
versions installed there.
"""

import json
from typing import Any

from kombu import Connection, Producer

UNIT = "@@UNIT@@"
EPOCH = "@@EPOCH@@"
TAG = f"fc.{UNIT}.{EPOCH}"
"""Delivery tag: derived, so that a reaper can remove exactly this message."""


def make(task: Any, *, queue: str) -> str:
    """The message for `task(unit, epoch)` on `queue`, as the Redis transport would write it, with a plain JSON body."""
    collected: list[dict[str, Any]] = []
    with Connection("memory://") as connection:
        channel = connection.channel()
        channel._put = lambda _queue, message, **_options: collected.append(message)
        producer = Producer(channel)
        task.apply_async(
            args=(UNIT, EPOCH),
            producer=producer,
            queue=queue,
            declare=[],
            task_id=f"{UNIT}.{EPOCH}",
            ignore_result=True,
            retry=False,
            exchange="",
            routing_key=queue,
        )
    if len(collected) != 1:
        raise RuntimeError(f"celery made {len(collected)} messages for one task")
    message = json.loads(json.dumps(collected[0]))
    properties = message["properties"]
    if properties.pop("body_encoding", None) == "base64":
        import base64

        message["body"] = base64.b64decode(message["body"]).decode()
    properties["delivery_tag"] = TAG
    text = json.dumps(message)
    check(text, queue=queue)
    return text


def check(text: str, *, queue: str) -> None:
    """Fills the template in and reads it as kombu does. Raises RuntimeError if it would not arrive as it should."""
    from kombu.transport.virtual import Message

    filled = json.loads(text.replace(UNIT, "run:step:7").replace(EPOCH, "3"))
    with Connection("memory://") as connection:
        message = Message(filled, channel=connection.channel(), accept={"application/json"})
        args, kwargs, _embed = message.payload
    right = args == ["run:step:7", "3"] and kwargs == {} and message.delivery_tag == "fc.run:step:7.3"
    if not right or message.delivery_info.get("routing_key") != queue:
        raise RuntimeError(
            "celery's message is not the one that flowctl knows; install the versions that pyproject.toml names"
        )
