"""What a worker costs while it has nothing to do: the share of a core of its process tree, and of the server."""

import subprocess
import sys
import time

import psutil
from measurement import Measurement
from private_home import private_home, worker

from flowctl.broker.embedded import running_server
from flowctl.broker.store import Broker

SETTLE_S = 5.0
WATCH_S = 20.0
BUDGET_PERCENT = 1.0
_PINGS = """
import sys, time
from flowctl.broker.broker_url import BrokerURL
client = BrokerURL.parse(sys.stdin.readline().strip()).redis_client()
while True:
    client.ping()
    time.sleep(1)
"""


def main() -> None:
    with private_home() as settings:
        broker = Broker.connect(settings)
        server = running_server(settings.home)
        assert server is not None
        alone = _shares({"server": [psutil.Process(server.pid)]})["server"]
        with worker(settings) as pid:
            main_process = psutil.Process(pid)
            ping = subprocess.Popen([sys.executable, "-c", _PINGS], stdin=subprocess.PIPE, text=True)
            try:
                assert ping.stdin is not None
                ping.stdin.write(f"{broker.url.kombu_url()}\n")
                ping.stdin.flush()
                time.sleep(SETTLE_S)
                children = main_process.children(recursive=True)
                groups = {
                    "main": [main_process],
                    "children": children,
                    "server": [psutil.Process(server.pid)],
                    "ping": [psutil.Process(ping.pid)],
                }
                found = _shares(groups)
            finally:
                ping.kill()
                ping.wait()
            memory = sum(process.memory_info().rss for process in [main_process, *children])
            private = sum(process.memory_full_info().uss for process in [main_process, *children])
    Measurement(
        "idle_worker",
        found["main"] + found["children"],
        "% of a core",
        found["ping"],
        BUDGET_PERCENT,
        details={
            "main_percent": found["main"],
            "children_percent": found["children"],
            "processes": 1 + len(children),
            "server_percent": found["server"],
            "server_without_worker_percent": alone,
            "seconds": WATCH_S,
            "rss_mib": memory / 2**20,
            "private_mib": private / 2**20,
        },
    ).say()


def _shares(groups: dict[str, list[psutil.Process]]) -> dict[str, float]:
    """Percent of a core that each group used, by the kernel's nanosecond count."""
    before = {name: sum(map(_cpu_s, processes)) for name, processes in groups.items()}
    start = time.monotonic()
    time.sleep(WATCH_S)
    elapsed = time.monotonic() - start
    return {name: 100 * (sum(map(_cpu_s, processes)) - before[name]) / elapsed for name, processes in groups.items()}


def _cpu_s(process: psutil.Process) -> float:
    """User and system time of all threads."""
    times = process.cpu_times()
    return float(times.user + times.system)


if __name__ == "__main__":
    main()
