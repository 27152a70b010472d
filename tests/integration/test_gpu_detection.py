"""GPUs through the real pynvml on the stand-in for NVML: what a worker finds, and what `wait_for_gpu` waits for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from cluster import FLOWCTL
from nvml_standin import StandIn, card

ROOT = Path(__file__).resolve().parents[2]
A, B, C, D = (f"GPU-{letter * 8}-0000-0000-0000-{letter * 12}" for letter in "abcd")
PROBE = """
import json, sys
from flowctl.workers import nvml
try:
    cards = nvml.cards_of_machine()
    print(json.dumps([[c.index, c.uuid, c.name, c.memory_mib, [s.uuid for s in c.slices]] for c in cards]))
    print(json.dumps("pynvml" in sys.modules))
except nvml.NvmlFailed as error:
    print(json.dumps([str(error), error.is_absent]))
"""


@pytest.fixture
def gpus(tmp_path: Path) -> StandIn:
    return StandIn(tmp_path)


def python(code: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **env}, capture_output=True, text=True, timeout=60, check=False
    )


def offered(gpus: StandIn, *options: str, home: Path, **variables: str) -> dict[str, Any]:
    """What `flowctl worker --print-resources --json` says, checked against its schema."""
    done = print_resources(gpus, *options, "--json", home=home, **variables)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    schema = ROOT / "src/flowctl/render/schemas/offer.json"
    jsonschema.validate(found, json.loads(schema.read_text()))
    return found


def print_resources(gpus: StandIn, *options: str, home: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    return subprocess.run(
        [FLOWCTL, "worker", "--print-resources", *options],
        env={**clean, **gpus.env, "FLOWCTL_HOME": str(home), **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_cards_are_found_with_uuid_name_memory_and_slices(gpus: StandIn) -> None:
    slices = [f"MIG-{n}" for n in range(2)]
    gpus.write(card(A, total=81920, name="Stand-in H 80G"), card(B), card(C, slices=slices))

    cards, loads_it = map(json.loads, python(PROBE, gpus.env).stdout.splitlines())

    assert cards == [
        [0, A, "Stand-in H 80G", 81920, []],
        [1, B, "Stand-in 16G", 16384, []],
        [2, C, "Stand-in 16G", 16384, slices],
    ]
    assert loads_it is False, "a process that forks must not load NVML"


def test_a_card_that_does_not_answer_is_left_out_and_the_others_keep_their_numbers(gpus: StandIn) -> None:
    gpus.write(card(A, extra=["broken"]), card(B))

    assert json.loads(python(PROBE, gpus.env).stdout.splitlines()[0]) == [[1, B, "Stand-in 16G", 16384, []]]


def test_without_library_or_driver_there_are_no_cards(gpus: StandIn, tmp_path: Path) -> None:
    no_driver = json.loads(python(PROBE, gpus.env).stdout)
    no_library = json.loads(python(PROBE, {"LD_LIBRARY_PATH": ""}).stdout.splitlines()[0])

    assert no_driver == ["NVML: Driver Not Loaded", False]
    assert no_library == ["NVML: NVML Shared Library Not Found", True] or Path("/dev/nvidiactl").exists()


@pytest.mark.parametrize(
    ("preset", "visible"),
    [
        (None, ["0", "1", "2", "3"]),
        ("3,1", ["3", "1"]),
        ("0,-1,2", ["0"]),
        ("", []),
        ("1,1", []),
        ("GPU-d,GPU-b", [D, B]),
    ],
)
def test_preset_of_the_operator_is_honoured_as_cuda_does(
    gpus: StandIn, tmp_path: Path, preset: str | None, visible: list[str]
) -> None:
    """B35: order kept; entries after an invalid one do not count."""
    gpus.write(card(A), card(B), card(C), card(D))
    variables = {} if preset is None else {"CUDA_VISIBLE_DEVICES": preset}

    found = offered(gpus, "--resources", "cpu=1,gpu=auto", home=tmp_path / "h", **variables)

    assert [device["visible"] for device in found["devices"]] == visible
    assert found["offer"]["gpu"] == len(visible)
    assert not (tmp_path / "h").exists(), "it starts nothing and makes nothing"


@pytest.mark.parametrize(("resources", "count"), [("cpu=1", 2), ("gpu=1", 1), ("gpu=0", 0), ("gpu=5", 2)])
def test_a_number_of_gpus_limits_what_is_offered(gpus: StandIn, tmp_path: Path, resources: str, count: int) -> None:
    gpus.write(card(A), card(B))

    found = offered(gpus, "--resources", resources, home=tmp_path)

    assert found["offer"]["gpu"] == count
    assert len(found["devices"]) == (2 if count else 0)
    assert bool(found["notes"]) == (resources == "gpu=5")


def test_plain_text_in_a_pipe(gpus: StandIn, tmp_path: Path) -> None:
    gpus.write(card(A), card(B))
    text = "cpu=2,memory=16GiB,license=1,gpu=2"

    done = print_resources(gpus, "--resources", text, "--slots", "7", "--labels", "zone=a,spot", home=tmp_path)

    assert done.stdout.splitlines() == [
        "cpu=2",
        "gpu=2",
        "memory=16GiB",
        "license=1",
        "slot=7",
        f"device=0 {A}",
        f"device=1 {B}",
        "label=spot",
        "label=zone=a",
    ]
    assert done.stderr == ""


def test_a_table_on_a_terminal(gpus: StandIn, tmp_path: Path) -> None:
    gpus.write(card(A))
    leader, follower = os.openpty()
    command = [FLOWCTL, "worker", "--print-resources", "--resources", "cpu=3"]
    env = {**os.environ, **gpus.env, "FLOWCTL_HOME": str(tmp_path)}
    process = subprocess.Popen(command, env=env, stdout=follower)
    assert process.wait(60) == 0
    os.close(follower)

    text = b""
    while part := _read(leader):
        text += part
    lines = [line.split() for line in text.decode().splitlines()]

    assert ["resource", "offered", "from"] in lines
    assert ["cpu", "3", "declared"] in lines and ["gpu", "1", "detected"] in lines
    assert ["0", A, "Stand-in", "16G", "16GiB"] in lines


def _read(fd: int) -> bytes:
    try:
        return os.read(fd, 4096)
    except OSError:
        return b""


def test_a_driver_that_fails_is_said_and_the_rest_is_offered(gpus: StandIn, tmp_path: Path) -> None:
    gpus.write("init 999")

    found = offered(gpus, home=tmp_path)

    assert found["offer"]["cpu"] >= 1 and found["offer"]["gpu"] == 0
    assert [note.startswith("no GPU is offered: NVML: ") for note in found["notes"]] == [True]


def test_wrong_options_are_refused_before_anything_starts(gpus: StandIn, tmp_path: Path) -> None:
    for option, value, words in (
        ("--labels", "a b", "--labels: 'a b' is not a label"),
        ("--resources", "gpu=0.5", "a worker offers whole devices"),
        ("--resources", "memory=lots", "is not an amount of memory"),
    ):
        done = print_resources(gpus, option, value, home=tmp_path / "h")
        assert done.returncode == 2 and words in done.stderr, done.stderr
    assert not (tmp_path / "h").exists()


# wait_for_gpu, outside of a trial

WAIT = """
import sys, time
from flowctl import wait_for_gpu
began = time.monotonic()
try:
    print(wait_for_gpu({arguments}))
except Exception as error:
    print(type(error).__name__, error)
print(time.monotonic() - began)
"""


def wait(gpus: StandIn, arguments: str, **variables: str) -> tuple[str, float]:
    """What it returned or raised, and how long that took."""
    done = python(WAIT.format(arguments=arguments), {**gpus.env, **variables})
    assert done.returncode == 0, done.stderr
    said, took = done.stdout.splitlines()
    return said, float(took)


def test_a_free_device_is_not_waited_for(gpus: StandIn) -> None:
    gpus.write(card(A, used=100), card(B, used=16000))

    assert wait(gpus, "0")[0] == wait(gpus, "'0'")[0] == wait(gpus, f"'{A}'")[0] == wait(gpus, "'GPU-a'")[0] == "True"


def test_a_busy_device_is_waited_for_and_then_raises(gpus: StandIn) -> None:
    gpus.write(card(A, used=4096))

    said, took = wait(gpus, "0, retry=3, delay_s=0.2")

    assert said.startswith("RuntimeError wait_for_gpu: still more than 1.0% of the memory in use after 4 looks")
    assert f"{A} (25.0% in use)" in said
    assert 0.6 <= took < 30
    assert wait(gpus, "0, target_util=0.25")[0] == "True"


def test_all_visible_devices_are_waited_for_and_no_other(gpus: StandIn) -> None:
    gpus.write(card(A), card(B, used=9000), card(C))

    assert wait(gpus, "retry=0", CUDA_VISIBLE_DEVICES="2,0")[0] == "True"
    assert B in wait(gpus, "retry=0", CUDA_VISIBLE_DEVICES="0,1")[0]


def test_a_device_that_becomes_free_ends_the_wait(gpus: StandIn) -> None:
    gpus.write(card(A, used=9000))
    code = WAIT.format(arguments="0, retry=600, delay_s=0.1").replace("began", "print('on', flush=True)\nbegan", 1)
    process = subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, **gpus.env}, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "on\n"

    gpus.write(card(A))

    assert process.communicate(timeout=60)[0].splitlines()[0] == "True"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("7", "ValueError wait_for_gpu: there is no GPU 7 on this machine; there are: 0 (GPU-a"),
        ("'GPU-x'", "ValueError wait_for_gpu: there is no GPU 'GPU-x'"),
        ("1.5", "ValueError wait_for_gpu: gpu_id must be an index or a uuid, not 1.5 (float)"),
        ("True", "ValueError wait_for_gpu: gpu_id must be"),
        ("0, target_util=-1", "ValueError wait_for_gpu: target_util is -1"),
        ("0, target_util=float('nan')", "ValueError wait_for_gpu: target_util is nan"),
        ("0, retry=-1", "ValueError wait_for_gpu: retry must be"),
        ("0, delay_s='x'", "ValueError wait_for_gpu: delay_s is 'x'"),
    ],
)
def test_what_cannot_be_is_a_value_error(gpus: StandIn, arguments: str, words: str) -> None:
    gpus.write(card(A))

    assert wait(gpus, arguments)[0].startswith(words)


def test_without_a_device_or_a_driver_it_is_a_runtime_error(gpus: StandIn) -> None:
    gpus.write(card(A))
    assert wait(gpus, "", CUDA_VISIBLE_DEVICES="")[0].startswith("RuntimeError wait_for_gpu: no GPU is assigned here")

    gpus.write("init 9")
    assert wait(gpus, "")[0] == "RuntimeError wait_for_gpu: GPUs cannot be looked at: NVML: Driver Not Loaded"
