"""A state folder, a server and workers of a benchmark's own; nothing of them is left when it ends."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flowctl.broker.embedded import stop_server
from flowctl.broker.settings import Settings
from flowctl.broker.store import Broker
from flowctl.broker.view import now_ms
from flowctl.broker.worker_view import load_workers

READY_S = 60.0
STOP_S = 20.0
FLOWCTL = Path(sys.executable).with_name("flowctl")


@contextmanager
def private_home() -> Iterator[Settings]:
    """Every FLOWCTL_ variable is replaced; the server is stopped and the folder removed at the end.

    Python may write its byte code: where it may not, each trial process compiles its imports anew.
    """
    folder = Path(tempfile.mkdtemp(prefix="flowctl-bench-"))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    before = dict(os.environ)
    for name in [name for name in os.environ if name.startswith("FLOWCTL_")]:
        del os.environ[name]
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ |= {"FLOWCTL_HOME": str(folder / "home"), "FLOWCTL_STORAGE": str(folder / "results")}
    try:
        yield Settings.from_env()
    finally:
        stop_server(folder / "home")
        os.environ.clear()
        os.environ.update(before)
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def worker(settings: Settings, *options: str) -> Iterator[int]:
    """`flowctl worker` with these options, from accepting work to gone; gives its pid."""
    log = settings.home / "bench-worker.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [FLOWCTL, "worker", *options], stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
        )
    try:
        _wait_until_accepting(settings, process, log)
        yield process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait_until_accepting(settings: Settings, process: "subprocess.Popen[bytes]", log: Path) -> None:
    broker = Broker.connect(settings)
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        at_ms = now_ms(broker.client)
        if any(each.pid == process.pid and each.is_live(at_ms) for each in load_workers(broker.client)):
            return
        if process.poll() is not None:
            break
        time.sleep(0.02)
    raise RuntimeError(f"the worker did not come up:\n{log.read_text(errors='replace')[-2000:]}")
