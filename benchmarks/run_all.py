"""Runs every benchmark. Ends with 1 only if one could not run: being over a budget is news, not an error."""

import subprocess
import sys
from pathlib import Path

BENCHMARKS = ("cold_start", "idle_worker", "trial_cost", "report_latency", "placement", "waste", "simulation")


def main() -> int:
    failed = []
    for name in BENCHMARKS:
        done = subprocess.run(
            [sys.executable, Path(__file__).with_name(f"{name}.py")], stdin=subprocess.DEVNULL, check=False
        )
        if done.returncode != 0:
            failed.append(name)
    if failed:
        print(f"could not run: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
