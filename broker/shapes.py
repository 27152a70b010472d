"""What the units of a run ask for, as the server has it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast


def load_needs(client: Any, run: str, steps: Sequence[str]) -> list[Mapping[str, int]]:
    """The needs of all different bundles of these steps: exact units by name. A step none of whose units was made yet
    may lack some.
    """
    pipe = client.pipeline(transaction=False)
    for step in steps:
        pipe.smembers(f"fc:stepshapes:{run}:{step}")
    ids = sorted({shape for found in cast(list[set[str]], pipe.execute()) for shape in found}) if steps else []
    rows = cast(list[str | None], client.hmget("fc:shapes", ids)) if ids else []
    return [bundle["need"] for row in rows if row for bundle in json.loads(row)["bundles"]]
