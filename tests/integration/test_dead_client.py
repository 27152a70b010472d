"""A submission whose client is killed in the middle of it."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from functools import partial

import pytest
from cluster import FLOWCTL, Cluster

TRIALS = 5000


def is_expanded(cluster: Cluster, run: str) -> bool:
    return bool(cluster.client.hget(f"fc:step:{run}:train", "expanded") == str(TRIALS))


SCRIPT = f"""
from flowctl import experiment, uniform

@experiment(param_space={{"x": uniform(0, 1)}}, num_samples={TRIALS}, resources={{"cpu": 1, "license": 1}})
def train(config):
    pass
"""


@pytest.mark.parametrize("rounds", [2, pytest.param(30, marks=[pytest.mark.acceptance, pytest.mark.timeout(3600)])])
def test_either_no_run_is_left_or_one_with_all_trials(cluster: Cluster, rounds: int) -> None:
    """No worker here offers a license, so trials are made and none runs."""
    luck = random.Random(5)
    script = cluster.script(SCRIPT)
    began = time.monotonic()
    cluster.flowctl("submit", str(script), "--name", "whole", check=True)
    whole_s = time.monotonic() - began
    cluster.flowctl("cancel", "whole", check=True)
    cluster.worker(cpu=1)
    left = []
    for round_ in range(rounds):
        run = f"cut{round_}"
        client = subprocess.Popen(
            [FLOWCTL, "submit", str(script), "--name", run],
            env=cluster.env,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        time.sleep(luck.uniform(0.3, 1.0) * whole_s)  # the instant of the death is the point
        os.killpg(client.pid, signal.SIGKILL)
        client.wait()
        if not cluster.state(run):
            assert -2 <= cluster.client.pttl(f"fc:name:{run}") <= 60_000
            assert cluster.client.pttl(f"fc:name:{run}") != -1
            continue
        left.append(run)
        cluster.until(partial(is_expanded, cluster, run), what=f"all trials of {run}")
        counts = cluster.status(run)["counts"]
        assert (counts["pending"], counts["total"]) == (TRIALS, TRIALS)
        units = sum(1 for _ in cluster.client.scan_iter(f"fc:unit:{run}:*", count=5000))
        assert units == TRIALS
        folder = cluster.folder(run)
        values = {config["x"] for shard in range(TRIALS // 1000) for config in folder.read_shard("train", shard)}
        assert len(values) == TRIALS
        cluster.flowctl("cancel", run, check=True)
        assert cluster.wait(run, state="cancelled")["counts"]["cancelled"] == TRIALS
    assert not cluster.client.zcard("fc:expanding")
