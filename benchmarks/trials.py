"""The experiments that the benchmarks run."""

from typing import Any

from flowctl import experiment, report


@experiment(num_samples=1)
def empty(config: Any) -> None:
    """Does nothing but say which process it is, and whether an earlier trial left a module in it."""
    import os
    import sys

    with open("/proc/self/stat", encoding="ascii") as file:
        started = file.read().rsplit(")", 1)[1].split()[19]
    print(os.getpid(), started, "left_by_a_trial" in sys.modules)
    sys.modules["left_by_a_trial"] = sys


@experiment(param_space={"url_file": "", "blocks": 0, "calls": 0}, num_samples=1)
def reporting(config: Any) -> None:
    """Times reports and, in turns, bare round trips to the same server from the same process; prints them as JSON.

    The address comes through a file of the benchmark's: a trial is given none.
    """
    import json
    import time
    from pathlib import Path

    from flowctl.broker.broker_url import BrokerURL

    client = BrokerURL.parse(Path(config.url_file).read_text()).redis_client()
    digest = client.script_load("return 'OK'")
    times: dict[str, list[float]] = {"report": [], "ping": [], "evalsha": []}
    step = 0

    def send() -> None:
        report({"loss": 1.0 / step, "accuracy": 0.5})

    calls = {"report": send, "ping": client.ping, "evalsha": lambda: client.evalsha(digest, 0)}
    for _ in range(config.blocks):
        for name, call in calls.items():
            for _ in range(config.calls):
                step += 1
                start = time.perf_counter()
                call()
                times[name].append(time.perf_counter() - start)
    print(json.dumps(times))


@experiment(param_space={"pause_s": 0.0}, num_samples=1)
def sleeping(config: Any) -> None:
    """Prints when its code began and when it ended."""
    import time

    start = time.time()
    time.sleep(config.pause_s)
    print(start, time.time())
