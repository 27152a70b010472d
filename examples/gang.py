"""Code on several workers at once: one trial that measures a function on each bundle of its placement group.

    flowctl run examples/gang.py           here; all bundles on this machine
    flowctl logs RUN/0 --bundle 1          what the code on bundle 1 printed

Code on a bundle runs in a process of its own on the worker that holds the bundle, and ends with the trial.
"""

import random

from flowctl import HostFailed, experiment, get_context, placement_group, report


def count_inside(seed, points):
    """Count random points of the unit square that lie inside the circle; runs on a bundle."""
    print(f"{points} points with seed {seed} on {get_context().worker}")
    draw = random.Random(seed).random
    return sum(draw() ** 2 + draw() ** 2 < 1 for _ in range(points))


@experiment(
    param_space={"points": 100_000},
    metric="error",
    mode="min",
    resources=placement_group([{}, {"cpu": 0.5}, {"cpu": 0.5}]),
)
def pi(config):
    bundles = get_context().bundles[1:]  # number 0 is where this function runs
    hosts = [bundle.start(count_inside, bundle.index, config.points) for bundle in bundles]
    try:
        inside = sum(host.result(timeout_s=120) for host in hosts)
    except HostFailed as failed:  # an exception there, a signal, a lost worker: failed.cause says which
        print("gave up:", failed.cause["kind"], failed)
        for host in hosts:
            host.cancel()  # harmless if it has ended
        raise
    estimate = 4 * inside / (config.points * len(hosts))
    report({"pi": estimate, "error": abs(estimate - 3.14159265), "workers": [bundle.worker for bundle in bundles]})
