"""The names that a person imports: short, sorted, pinned, and free until they are used."""

import subprocess
import sys

import pytest

import flowctl
from flowctl.dsl.errors import RefusedError

NAMES = [
    "Checkpoint",
    "CheckpointConfig",
    "Config",
    "FlowctlError",
    "HostFailed",
    "Retry",
    "RunFailed",
    "TrialStopped",
    "attach",
    "choice",
    "experiment",
    "flow",
    "get_checkpoint",
    "get_context",
    "grid",
    "lograndint",
    "loguniform",
    "placement_group",
    "qlograndint",
    "qloguniform",
    "qrandint",
    "qrandn",
    "quniform",
    "randint",
    "randn",
    "report",
    "stage",
    "uniform",
    "wait_for_gpu",
    "with_resources",
]


def test_exported_names_are_these_in_this_order() -> None:
    assert flowctl.__all__ == NAMES
    assert sorted(NAMES) == NAMES
    assert dir(flowctl) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_exported_name_resolves(name: str) -> None:
    assert getattr(flowctl, name) is getattr(flowctl, name)


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'experimant'"):
        _ = flowctl.experimant


def loaded_by(statement: str) -> set[str]:
    """Top-level modules that a fresh interpreter holds after a statement."""
    code = f"{statement}\nimport sys\nprint(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_import_loads_none_of_the_heavy_parts() -> None:
    assert not loaded_by("import flowctl") & {
        "redis",
        "celery",
        "kombu",
        "fsspec",
        "click",
        "rich",
        "cloudpickle",
        "psutil",
    }


def test_declaring_loads_neither_server_nor_storage_libraries() -> None:
    statement = "from flowctl import experiment, report, grid, Checkpoint, get_checkpoint"

    assert not loaded_by(statement) & {"redis", "celery", "kombu", "fsspec", "click", "rich"}


def test_submit_inside_a_trial_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOWCTL_ATTEMPT", "boot/r:s:0/1/abc")

    @flowctl.experiment(param_space={"x": 1})
    def train(config: flowctl.Config) -> None: ...

    with pytest.raises(RefusedError, match="a trial or stage cannot submit"):
        train.submit()
