"""Trials on devices: which they see, that no card is over-booked, and when a card goes to the next one.

Real workers, real trial processes, the real pynvml on the stand-in for NVML. Trials write what they saw, and when.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import psutil
import pytest
from cluster import Cluster, Worker
from nvml_standin import StandIn, card
from script import trains

A, B, C, D = (f"GPU-{letter * 8}-0000-0000-0000-{letter * 12}" for letter in "abcd")
SEEN = """
mark(NAME, f"start {os.environ['CUDA_VISIBLE_DEVICES']!r}")
wait_for(NAME + "-go")
mark(NAME, f"end {os.environ['CUDA_VISIBLE_DEVICES']!r}")
"""
VARIABLES = """
keys = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "HIP_VISIBLE_DEVICES")
me = get_context()
shown = {key: os.environ.get(key) for key in keys}
mark(NAME, "|" + __import__("json").dumps([shown, list(me.devices), dict(me.resources)]))
"""

Start = Callable[..., Worker]


@pytest.fixture
def gpus(tmp_path: Path) -> StandIn:
    return StandIn(tmp_path)


@pytest.fixture
def start(cluster: Cluster, gpus: StandIn) -> Start:
    """Starts a worker that sees the stand-in's cards."""

    def begin(resources: str = "cpu=8", **variables: str) -> Worker:
        return cluster.worker(resources=resources, env={**gpus.env, **variables})

    return begin


def saw(cluster: Cluster, name: str, word: str = "start") -> list[str]:
    """What CUDA_VISIBLE_DEVICES was in each trial that wrote `word`."""
    return [line.split(" ", 3)[3].strip("'") for line in cluster.lines(name) if line.split()[2] == word]


def spans(cluster: Cluster, name: str) -> list[tuple[str, float, float]]:
    """(devices, start, end) of each trial process."""
    times: dict[str, dict[str, float]] = {}
    devices: dict[str, str] = {}
    for line in cluster.lines(name):
        pid, at, word, seen = line.split(" ", 3)
        times.setdefault(pid, {})[word] = float(at)
        devices[pid] = seen.strip("'")
    return [(devices[pid], each["start"], each["end"]) for pid, each in times.items()]


def test_whole_cards_are_given_to_one_trial_at_a_time(cluster: Cluster, gpus: StandIn, start: Start) -> None:
    """Row 56: 2 cards, 4 trials: at most 2 at once, each with a card of its own."""
    gpus.write(card(A), card(B))
    start()
    space = "{'i': grid([0, 1, 2, 3])}"
    run = cluster.submit(trains(SEEN.replace("NAME", "'whole'"), param_space=space, resources="{'gpu': 1}"))

    cluster.until(lambda: cluster.has_lines("whole", 2), what="two trials at once")
    status = cluster.status(run)
    cluster.side.joinpath("whole-go").touch()
    cluster.wait(run)

    assert status["counts"]["running"] == 2 and status["counts"]["pending"] == 2
    assert sorted(saw(cluster, "whole")[:2]) == ["0", "1"]
    assert sorted(saw(cluster, "whole")) == ["0", "0", "1", "1"]
    for (one, from_1, to_1), (other, from_2, to_2) in combinations(spans(cluster, "whole"), 2):
        assert one != other or to_1 <= from_2 or to_2 <= from_1, "two trials on one card"


def test_halves_share_a_card_two_by_two(cluster: Cluster, gpus: StandIn, start: Start) -> None:
    """Row 57: four halves on two cards: two on each, and no fifth."""
    gpus.write(card(A), card(B))
    start()
    space = "{'i': grid(range(5))}"
    run = cluster.submit(trains(SEEN.replace("NAME", "'half'"), param_space=space, resources="{'gpu': 0.5}"))

    cluster.until(lambda: cluster.has_lines("half", 4), what="four trials at once")
    status = cluster.status(run)
    cluster.side.joinpath("half-go").touch()
    cluster.wait(run)

    assert status["counts"]["running"] == 4 and status["counts"]["pending"] == 1
    assert sorted(saw(cluster, "half")[:4]) == ["0", "0", "1", "1"]


def test_two_whole_cards_are_two_and_three_thirds_fit_one(cluster: Cluster, gpus: StandIn, start: Start) -> None:
    gpus.write(card(A), card(B), card(C))
    start()
    both = cluster.submit(trains(SEEN.replace("NAME", "'both'"), resources="{'gpu': 2}"))
    cluster.until(lambda: cluster.lines("both"), what="the trial with two cards")
    space = "{'i': grid(range(3))}"
    thirds = cluster.submit(trains(SEEN.replace("NAME", "'third'"), param_space=space, resources="{'gpu': 0.33}"))
    cluster.until(lambda: cluster.has_lines("third", 3), what="three thirds")
    cluster.side.joinpath("both-go").touch()
    cluster.side.joinpath("third-go").touch()
    cluster.wait(both)
    cluster.wait(thirds)

    (pair,) = saw(cluster, "both")
    assert len(pair.split(",")) == 2
    assert len(set(saw(cluster, "third"))) == 1 and saw(cluster, "third")[0] not in pair.split(",")


def shown(cluster: Cluster, name: str) -> list[tuple[dict[str, str], list[str], dict[str, float]]]:
    """What trials of VARIABLES wrote."""
    return [tuple(json.loads(line.split("|", 1)[1])) for line in cluster.lines(name)]


def test_a_trial_without_a_gpu_sees_none(cluster: Cluster, gpus: StandIn, start: Start) -> None:
    """Row 58: the variable is there and empty. Threads follow the cores that were asked for."""
    gpus.write(card(A))
    start(MKL_NUM_THREADS="5")
    run = cluster.submit(trains(VARIABLES.replace("NAME", "'plain'"), resources="{'cpu': 2.5}"))
    cluster.wait(run)

    ((variables, devices, resources),) = shown(cluster, "plain")
    assert variables == {
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "2",
        "MKL_NUM_THREADS": "5",
        "HIP_VISIBLE_DEVICES": None,
    }
    assert devices == [] and resources == {"cpu": 2.5}


def test_an_operators_choice_of_cards_is_kept_in_its_order(cluster: Cluster, gpus: StandIn, start: Start) -> None:
    """B35: with CUDA_VISIBLE_DEVICES=3,1 two GPU trials see 3 and 1, and one without sees nothing."""
    gpus.write(card(A), card(B), card(C), card(D))
    start("cpu=3,gpu=auto", CUDA_VISIBLE_DEVICES="3,1")
    space = "{'i': grid([0, 1])}"
    name = "'chosen'"
    run = cluster.submit(trains(SEEN.replace("NAME", name), param_space=space, resources="{'cpu': 1, 'gpu': 1}"))
    cluster.until(lambda: cluster.has_lines("chosen", 2), what="both trials")
    plain = cluster.submit(trains(VARIABLES.replace("NAME", "'none'"), resources="{'cpu': 1}"))
    cluster.wait(plain)
    cluster.side.joinpath("chosen-go").touch()
    cluster.wait(run)

    assert saw(cluster, "chosen")[0] == "3" or {"3", "1"} == set(saw(cluster, "chosen"))
    assert sorted(saw(cluster, "chosen")) == ["1", "3"]
    assert shown(cluster, "none")[0][0]["CUDA_VISIBLE_DEVICES"] == ""


def test_logical_devices_and_other_vendors(cluster: Cluster, start: Start) -> None:
    """No driver here: two devices are declared, and the worker's HIP_VISIBLE_DEVICES names them."""
    start("cpu=8,gpu=2", HIP_VISIBLE_DEVICES="6,7")
    run = cluster.submit(trains(VARIABLES.replace("NAME", "'logical'"), resources="{'gpu': 2}"))
    cluster.wait(run)

    ((variables, devices, resources),) = shown(cluster, "logical")
    assert (variables["CUDA_VISIBLE_DEVICES"], variables["HIP_VISIBLE_DEVICES"]) == ("0,1", "6,7")
    assert devices == ["0", "1"] and resources == {"gpu": 2}


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_card_goes_on_only_when_the_driver_has_let_go(
    cluster: Cluster, gpus: StandIn, start: Start, is_killed: bool
) -> None:
    """The driver still lists the process of the first trial after its end: the second one waits. So it does when it is
    the guardian that was killed.
    """
    gpus.write(card(A))
    worker = start()
    options = {"param_space": "{'i': grid([0, 1])}", "resources": "{'gpu': 1}", "max_worker_losses": "-1"}
    run = cluster.submit(trains(SEEN.replace("NAME", "'next'"), **options))
    cluster.until(lambda: cluster.lines("next"), what="the first trial")
    pid = int(cluster.lines("next")[0].split()[0])
    gpus.write(card(A, used=8000, pids=[pid]))

    if is_killed:
        guardian = psutil.Process(pid).parent()
        assert guardian is not None and guardian.pid in worker.guardians()
        guardian.kill()
    else:
        cluster.side.joinpath("next-go").touch()
    cluster.until(lambda: not psutil.pid_exists(pid), what="the end of its process")
    cluster.wait(cluster.submit(trains("pass", resources="{'cpu': 1}")))  # time enough for the card to go on, if it did
    begun, held = len(saw(cluster, "next")), cluster.used()
    gpus.write(card(A))
    cluster.side.joinpath("next-go").touch()
    cluster.wait(run)

    assert begun == 1 and any(dims.get(f"gpu:{A}") == 10000 for dims in held.values())
    assert "goes back" not in worker.text()


def test_a_card_that_stays_listed_goes_on_after_ten_seconds_with_a_warning(
    cluster: Cluster, gpus: StandIn, start: Start
) -> None:
    gpus.write(card(A))
    worker = start()
    run = cluster.submit(trains(SEEN.replace("NAME", "'stuck'"), resources="{'gpu': 1}"))
    cluster.until(lambda: cluster.lines("stuck"), what="the trial")
    pid = int(cluster.lines("stuck")[0].split()[0])
    gpus.write(card(A, pids=[pid]))
    cluster.side.joinpath("stuck-go").touch()
    cluster.wait(run)

    assert f"GPU {A} goes back 10 s after its end, though the driver still lists process {pid}" in worker.text()


def test_where_processes_are_not_told_memory_decides(cluster: Cluster, gpus: StandIn, start: Start) -> None:
    gpus.write(card(A, used=1000, extra=["pids 3"]))
    worker = start()
    run = cluster.submit(trains(SEEN.replace("NAME", "'memory'"), resources="{'gpu': 1}"))
    cluster.until(lambda: cluster.lines("memory"), what="the trial")
    pid = int(cluster.lines("memory")[0].split()[0])
    gpus.write(card(A, used=8000, extra=["pids 3"]))
    cluster.side.joinpath("memory-go").touch()
    cluster.until(lambda: not psutil.pid_exists(pid), what="the end of its process")
    cluster.wait(cluster.submit(trains("pass", resources="{'cpu': 1}")))
    state = cluster.state(run)
    gpus.write(card(A, used=1100, extra=["pids 3"]))
    cluster.wait(run)

    assert state == "running"
    assert "goes back" not in worker.text()


WAITS = """
import time as clock
began = clock.monotonic()
mark("began")
result = wait_for_gpu(ARGS)
report({"result": int(result is True), "took": clock.monotonic() - began})
"""


def test_a_trial_waits_for_all_its_cards(cluster: Cluster, gpus: StandIn, start: Start) -> None:
    """Row 65: busy cards are waited for, and once they are free it goes on; the worker's other card does not matter."""
    gpus.write(card(A, used=9000), card(B, used=9000), card(C, used=9000))
    start(CUDA_VISIBLE_DEVICES="0,1")
    run = cluster.submit(trains(WAITS.replace("ARGS", "retry=600, delay_s=0.1"), resources="{'gpu': 2}"))
    cluster.until(lambda: cluster.lines("began"), what="the trial")
    gpus.write(card(A), card(B, used=9000), card(C, used=9000))
    is_waiting = cluster.state(run) == "running"
    gpus.write(card(A), card(B), card(C, used=9000))
    cluster.wait(run)

    assert is_waiting
    assert cluster.results(run)[0]["metrics"]["result"] == 1


def test_a_card_that_stays_busy_fails_the_trial(cluster: Cluster, gpus: StandIn, start: Start) -> None:
    """Row 65: it waits retry × delay, raises, and the trial's cause names the card."""
    gpus.write(card(A, used=9000))
    start()
    run = cluster.submit(trains(WAITS.replace("ARGS", "retry=2, delay_s=0.1"), resources="{'gpu': 1}"))
    cluster.wait(run, state="failed")

    cause = cluster.trial(run, 0)["history"][0]["cause"]
    assert cause["type"] == "RuntimeError"
    assert cause["text"].startswith("wait_for_gpu: still more than 1.0% of the memory in use") and A in cause["text"]


def test_a_part_of_a_card_is_not_waited_for(cluster: Cluster, gpus: StandIn, start: Start) -> None:
    gpus.write(card(A, used=9000))
    start()
    run = cluster.submit(trains(WAITS.replace("ARGS", ""), resources="{'gpu': 0.5}"))
    cluster.wait(run)

    assert cluster.results(run)[0]["metrics"]["result"] == 1
    assert "holds a part of it" in cluster.flowctl("logs", f"{run}/0").stdout


def test_a_worker_registers_its_labels_and_devices(cluster: Cluster, gpus: StandIn) -> None:
    gpus.write(card(A), card(B))
    env = {**gpus.env, "FLOWCTL_LABELS": "zone=a, spot", "CUDA_VISIBLE_DEVICES": "1,0"}
    worker = cluster.worker(resources="cpu=1,gpu=1", env=env)

    record = cluster.client.hgetall(f"fc:boot:{worker.boot}")
    detected = json.loads(record["detected"])

    assert json.loads(record["labels"]) == ["spot", "zone=a"]
    assert json.loads(record["devices"]) == [
        {"id": B, "name": "Stand-in 16G", "memory_mib": 16384, "visible": "1"},
        {"id": A, "name": "Stand-in 16G", "memory_mib": 16384, "visible": "0"},
    ]
    assert record["gpu_limit"] == "1"
    assert detected[f"gpu:{A}"] == detected[f"gpu:{B}"] == 10000 and detected["memory"] > 0 and "cpu" not in detected


def test_a_second_worker_of_the_machine_says_who_offers_its_cards(
    cluster: Cluster, gpus: StandIn, start: Start
) -> None:
    gpus.write(card(A))
    start()
    second = start()

    assert "GPU 0 of this machine is offered by w0; this worker offers it when that ends" in second.text()
    assert "all memory of this machine is offered by w0; this worker offers it when that ends" in second.text()
