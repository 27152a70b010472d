"""The README's first program, run as the README says, in an environment that knows nothing yet."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import pytest
from cluster import Cluster

README = Path(__file__).parents[2] / "README.md"


@pytest.mark.timeout(300)
def test_smallest_program_of_the_readme_does_what_is_shown(cluster: Cluster) -> None:
    """Acceptance 13, its part that a machine can try: the program, `run`, `results`, `best`, `logs`, `plan`."""
    text = README.read_text(encoding="utf-8")
    found = re.search(r"```python\n# sweep.py\n(.*?)```", text, re.DOTALL)
    assert found is not None
    cluster.root.joinpath("sweep.py").write_text(found[1])

    planned = cluster.flowctl("plan", "sweep.py", check=True).stdout
    done = cluster.flowctl("run", "sweep.py", check=True, timeout_s=240).stdout
    table = list(csv.DictReader(io.StringIO(cluster.flowctl("results", "--csv", check=True).stdout)))
    best = cluster.flowctl("best", check=True).stdout
    log = cluster.flowctl("logs", "1")

    assert "8 trials" in planned
    assert "8 completed of 8" in done and "best loss" in done
    assert [row["status"] for row in table] == ["completed"] * 8
    assert {"config.x", "config.power", "metrics.loss"} <= set(table[0])
    assert "loss" in best and "power" in best
    assert log.returncode == 0
    changed = cluster.flowctl(
        "run", "sweep.py", "--set", "num_samples=1", "--set", "param_space.x=0.5", check=True, timeout_s=240
    )
    assert "2 completed of 2" in changed.stdout
