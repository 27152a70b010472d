"""What each trial of a step asks for, where that is a function of its configuration.

The submitting process calls the function, once per trial, before the run exists; the answers travel in the run's signed
records, so that no worker ever calls it. What a function raises is the end of its trial, and of nothing else (D13).
"""

import os
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flowctl.dsl import launcher
from flowctl.dsl.compile import Asking
from flowctl.dsl.config import Config
from flowctl.dsl.jsonvalue import canonical
from flowctl.dsl.place import function_place
from flowctl.dsl.plan import Step
from flowctl.dsl.request import evaluate
from flowctl.dsl.sample import sampler
from flowctl.storage.run_folder import TrialShard
from flowctl.storage.trial_files import SHARD

_TEXT, _TRACE = 1000, 4000


class Asks:
    """The answers of one step's trials: `{"request": …}`, or `{"failed": cause}`. Equal ones are held once.

    With a `limit`, only the first so many trials are asked for: `count` of them.
    """

    def __init__(self, step: Step, asking: Asking, *, limit: int | None = None) -> None:
        self.step = step
        self._answers: list[dict[str, Any]] = []
        self._numbers: dict[bytes, int] = {}
        self.count = step.total if limit is None else min(limit, step.total)
        source = sampler(step)
        with launcher.refusing("a resource function does not submit", cure="return what the trial asks for"):
            self._of = [self._number(_answer(asking, source.config_at(index))) for index in range(self.count)]

    def _number(self, answer: dict[str, Any]) -> int:
        text = canonical(answer)
        if text not in self._numbers:
            self._numbers[text] = len(self._answers)
            self._answers.append(answer)
        return self._numbers[text]

    def of(self, index: int) -> dict[str, Any]:
        """The answer for one trial."""
        return self._answers[self._of[index]]

    def shards(self) -> Iterator[TrialShard]:
        """The records of all trials, a shard at a time; configurations are sampled anew, and so unchanged."""
        source = sampler(self.step)
        for first in range(0, self.step.total, SHARD):
            indexes = range(first, min(first + SHARD, self.step.total))
            configs = [source.config_at(index) for index in indexes]
            yield TrialShard(self.step.name, first // SHARD, configs, [self.of(index) for index in indexes])


def _answer(asking: Asking, config: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"request": evaluate(asking.function, Config(config), labels=asking.labels).to_json()}
    except (Exception, SystemExit) as error:  # a person's code runs here, so anything can come out of it
        return {"failed": _cause(error, function_place(asking.function) or "")}


def _cause(error: BaseException, place: str) -> dict[str, Any]:
    """As the causes of attempts. The place is the innermost line of the person's own code, else the function's."""
    try:
        text = str(error)
    except Exception as second:  # its __str__ is a person's code too
        text = f"(its text could not be made: {type(second).__name__})"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(_OWN)]
    cause = {
        "kind": "exception",
        "type": type(error).__name__,
        "text": f"in the function of its resources: {text}"[:_TEXT],
        "place": f"{frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno}" if frames else place,
        "traceback": "".join([*traceback.format_list(frames), *traceback.format_exception_only(error)])[-_TRACE:],
    }
    # half a surrogate pair is text to Python and to nobody else
    return {key: value.encode("utf-8", "backslashreplace").decode() for key, value in cause.items()}


_OWN = tuple(f"{Path(file).parent}{os.sep}" for file in (__file__, evaluate.__code__.co_filename))
