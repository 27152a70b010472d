"""The trial process: a fresh interpreter in which one attempt's user code runs, and nothing else.

It dies with its guardian, holds no secret, and imports nothing heavy before user code does. Every ending is told to
the guardian in plain values: no exception object ever travels.
"""

import atexit
import os
import signal
import sys
import threading
from types import FrameType
from typing import Any

_PR_SET_PDEATHSIG = 1


def main(fd: int, guardian_pid: int) -> None:
    """Runs the attempt that the guardian at the other end of `fd` describes."""
    _die_with(guardian_pid)
    from flowctl.workers.channel import Channel

    channel = Channel(fd)
    channel.send({"t": "ready"})
    start = channel.receive()
    _end(_attempt(channel, start))


def _end(code: int) -> None:
    """Ends as an interpreter does, but for taking itself apart: that takes milliseconds, and the kernel does it better.

    Threads that are not daemons are waited for, exit functions run, output is flushed.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _die_with(guardian_pid: int) -> None:
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != guardian_pid:
        os._exit(1)


def _attempt(channel: Any, start: dict[str, Any]) -> int:
    import pickle

    from flowctl.dsl.config import Config
    from flowctl.dsl.jsonvalue import decode, encode
    from flowctl.workers import session

    asked: list[int] = []

    def stop() -> None:
        raise session.TrialStopped("asked to stop")

    def on_term(signum: int, frame: FrameType | None) -> None:
        asked.append(signum)
        channel.interrupt(stop)

    current: session.Session | None = None
    sources: dict[str, str] = {}
    try:
        signal.signal(signal.SIGTERM, on_term)
        is_host = start["kind"] == "host"
        with open(start["payload"], "rb") as file:
            code, sources, names = pickle.load(file)
        if is_host or len(sources) > 1:
            from flowctl.workers import script_finder

            script_finder.install(sources, names)
        function, stop_functions = (lambda: None, ()) if is_host else pickle.loads(code)
        told = {**start["context"], "devices": tuple(start["context"]["devices"])}
        bundles = session.bundles_of(channel, start.get("bundles", ()), sources, names)
        context = session.Context(**told, bundles=bundles)
        current = session.Session(
            channel=channel,
            context=context,
            stop=start["stop"],
            stop_functions=tuple(stop_functions),
            metric=start["metric"],
            iteration=start["iteration"],
            time_before_s=start["time_before_s"],
            devices=tuple(start["devices"]),
            sources=sources,
            is_host=is_host,
        )
        session.begin(current)
        args = [_resolved(value) for value in decode(start["inputs"])]
        keywords = {name: _resolved(value) for name, value in decode(start["keyword_inputs"]).items()}
        if is_host:
            function, args, keywords = pickle.loads(code)
        elif start["kind"] == "experiment":
            args = [Config(decode(start["config"])), *args]
        result = function(*args, **keywords)
        ending = _ending_of_return(start["kind"], result, session, encode)
    except session.TrialStopped as stopped:
        ending = {"t": "end", "status": "stopped", "reason": stopped.reason, "signal": asked[0] if asked else None}
    except SystemExit as error:
        if error.code is None or error.code == 0:
            ending = {"t": "end", "status": "completed", "output": None}
        else:
            ending = {
                "t": "end",
                "status": "failed",
                "cause": {
                    "kind": "exit",
                    "code": error.code if isinstance(error.code, int) else 1,
                    "text": f"sys.exit({error.code!r})",
                },
            }
    except BaseException as error:
        ending = {"t": "end", "status": "failed", "cause": _cause(error, sources)}
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    channel.send(ending)
    return 0 if ending["status"] != "failed" else 1


def _ending_of_return(kind: str, result: Any, session: Any, encode: Any) -> dict[str, Any]:
    if kind == "experiment":
        if isinstance(result, dict):
            session.report(result)
        elif result is not None:
            print(
                f"flowctl: the returned {type(result).__name__} is not kept; return a dictionary, or use report",
                file=sys.stderr,
            )
        note = session.current().note()
        if note is not None:
            print(f"flowctl: {note}", file=sys.stderr)
        return {"t": "end", "status": "completed", "output": None, "note": note}
    if kind == "host":
        return {"t": "end", "status": "completed", "output": encode(result, "the result")}
    if session.is_checkpoint(result):
        return {"t": "end", "status": "completed", "output_checkpoint": str(result.path)}
    return {"t": "end", "status": "completed", "output": encode(result, "the stage's result")}


def _resolved(value: Any) -> Any:
    """Inputs as user code gets them: a marked reference becomes a checkpoint that is fetched on first use."""
    if isinstance(value, dict):
        if set(value) == {"$checkpoint"}:
            from flowctl.storage.checkpoint import Checkpoint
            from flowctl.workers import session

            ref = value["$checkpoint"]
            return Checkpoint(fetch=lambda: session.fetch_checkpoint(ref))
        from flowctl.dsl.config import Config

        return Config({key: _resolved(item) for key, item in value.items()})
    if isinstance(value, list):
        return [_resolved(item) for item in value]
    return value


def _cause(error: BaseException, sources: dict[str, str]) -> dict[str, Any]:
    import linecache
    import traceback

    from flowctl.workers.relative_path import hint

    for name, source in sources.items():
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)

    try:
        text = str(error)
    except BaseException as second:
        text = f"(its text could not be made: {type(second).__name__})"
    trail = error.__traceback__
    while trail is not None and trail.tb_frame.f_code.co_filename == __file__:
        trail = trail.tb_next
    frames = traceback.extract_tb(trail)
    place = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    for frame in reversed(frames):
        if frame.filename in sources:
            place = f"{frame.filename}:{frame.lineno}"
            break
    try:
        trace = "".join(traceback.format_exception(type(error), error, trail))
    except BaseException:
        trace = "".join(traceback.format_tb(trail))
    sys.stderr.write(trace)
    cause = {
        "kind": "exception",
        "type": type(error).__name__,
        "text": text[:4000],
        "place": place,
        "traceback": trace[-16000:],
    }
    told = hint(error, frames)
    if told is not None:
        sys.stderr.write(f"flowctl: {told}\n")
        cause["text"] += f"; {told}"
    # half a surrogate pair is text to Python and to nobody else
    return {key: value.encode("utf-8", "backslashreplace").decode() for key, value in cause.items()}
