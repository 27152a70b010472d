"""What a person asks for, end to end: functions of the configuration, wrapping, limits (rows 60, 64, 66)."""

from __future__ import annotations

from cluster import Cluster
from script import script, trains


def test_each_trial_gets_what_the_function_says_and_an_error_is_its_own(shared: Cluster) -> None:
    """Row 60; the request is the same at a retry, and what the function prints does not disturb the output."""
    body = """
    me = get_context()
    mark(f"asked-{config.i}", f"{me.resources['cpu']} {os.environ['OMP_NUM_THREADS']}")
    if me.attempt == 1:
        raise ValueError("again")
    report({"cpu": me.resources["cpu"]})
    """
    text = trains(
        body,
        param_space="{'i': grid([0, 1, 2, 3])}",
        resources="lambda config: print('asking') or {'cpu': 6 / (config.i * 2)}",
        max_failures=1,
    )
    run = shared.submit(text)
    shared.wait(run)

    trials = shared.results(run)
    assert [trial["status"] for trial in trials] == ["failed", "completed", "completed", "completed"]
    assert trials[0]["attempts"] == 0 and trials[0]["cause"]["type"] == "ZeroDivisionError"
    assert trials[0]["cause"]["place"].split(":")[0].endswith(".py") and trials[0]["config"] == {"i": 0}
    assert [trial["metrics"] for trial in trials[1:]] == [{"cpu": 3.0}, {"cpu": 1.5}, {"cpu": 1.0}]
    assert [line.split()[2:] for line in shared.lines("asked-1")] == [["3.0", "3"]] * 2


def test_a_wrapped_experiment_asks_for_more_and_the_original_for_what_it_did(shared: Cluster) -> None:
    """Row 64: both run in one flow."""
    text = script(
        """
        from flowctl import with_resources

        @experiment(resources={"cpu": 1}, metric="cpu", mode="max")
        def train(config):
            report({"cpu": get_context().resources["cpu"]})

        twice = with_resources(train, {"cpu": 2})
        thrice = with_resources(train, {"cpu": 3})

        @flow
        def pipeline():
            train()
            twice.options(name="twice")()
            thrice.options(name="thrice")()
        """
    )
    run = shared.submit(text)
    shared.wait(run)

    found = {step: shared.results(f"{run}/{step}")[0]["metrics"]["cpu"] for step in ("train", "twice", "thrice")}
    assert found == {"train": 1.0, "twice": 2.0, "thrice": 3.0}


def test_never_more_trials_at_once_than_the_limit_says(shared: Cluster) -> None:
    """Row 66: 2 → never more than two, on four free cores."""
    body = "mark('limited', 'start')\ntime.sleep(0.2)\nmark('limited', 'end')"
    text = trains(body, param_space="{'i': grid(range(6))}", max_concurrent_trials=2)
    run = shared.submit(text)
    shared.wait(run)

    lines = [line.split() for line in shared.lines("limited")]
    running = most = 0
    for _, _, what in sorted(lines, key=lambda line: float(line[1])):
        running += 1 if what == "start" else -1
        most = max(most, running)
    assert (len(lines), running, most) == (12, 0, 2)
