"""The digits sweep, as `make demo` runs it, judged from what `flowctl results --json` says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from cluster import Cluster

from flowctl.storage.location import Location
from flowctl.storage.manifest import ManifestRef
from flowctl.storage.run_folder import RunFolder
from flowctl.storage.signing import Keyring
from flowctl.storage.trial_reader import TrialReader

pytestmark = pytest.mark.xdist_group("flows")

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits.py"


@pytest.mark.timeout(300)
def test_digits_sweep_finds_a_model_whose_accuracy_its_checkpoint_confirms(cluster: Cluster, tmp_path: Path) -> None:
    """Acceptance 1."""
    done = cluster.flowctl("run", str(EXAMPLE), "--name", "digits", timeout_s=240)

    assert done.returncode == 0, done.stdout + done.stderr
    trials = cluster.results("digits", "--verify")
    completed = [trial for trial in trials if trial["status"] == "completed"]
    assert len(completed) >= 12
    assert all(trial["reports"] >= 3 and trial["verified"] for trial in completed)
    spans = [(trial["started_ms"], trial["ended_ms"]) for trial in completed]
    assert any(a[0] < b[1] and b[0] < a[1] for i, a in enumerate(spans) for b in spans[i + 1 :])
    best = cluster.json("best", "digits")["best"]
    value = best["best"]["value"]
    assert value >= 0.9
    assert value == max(trial["best"]["value"] for trial in trials)
    assert best["checkpoint"]["of"] == "best" and best["checkpoint"]["iteration"] == best["iteration"]

    run = RunFolder(Location.open(cluster.storage), "digits", Keyring.from_env({}, cluster.home, create=False))
    fields = {key: best["checkpoint"][key] for key in ("epoch", "nonce", "seq", "iteration")}
    folder = TrialReader(run, "train", best["index"]).restore(ManifestRef.from_json(fields), tmp_path / "best")
    again = subprocess.run(
        [sys.executable, str(EXAMPLE), str(folder)], capture_output=True, text=True, check=True, timeout=60
    )
    assert float(again.stdout) == value

    rows = cluster.results("digits", "--rows")
    per_trial = {trial["index"]: [row for row in rows if row["index"] == trial["index"]] for trial in trials}
    assert all(len(per_trial[trial["index"]]) == trial["reports"] for trial in trials)
