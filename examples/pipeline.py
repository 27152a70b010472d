"""A flow on real data: prepare -> sweep -> retrain the best -> evaluate on a part that nothing else has seen.

    flowctl plan examples/pipeline.py                    the graph, without a server
    flowctl run examples/pipeline.py                     all of it
    flowctl run examples/pipeline.py -p held_out=0.3     with another parameter of the flow

Inside the flow, calling a stage or an experiment runs nothing: it returns the output-to-be, and handing that on
makes an edge of the graph.
"""

from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier
from sklearn.model_selection import train_test_split

from flowctl import Checkpoint, experiment, flow, grid, loguniform, report, stage


def fit(images, labels, config, epochs):
    """Yield (epoch, model) after each pass over the images."""
    model = SGDClassifier(loss=config["loss"], learning_rate="constant", eta0=config["lr"], random_state=0)
    for epoch in range(1, epochs + 1):
        model.partial_fit(images, labels, classes=np.arange(10))
        yield epoch, model


def load(checkpoint, name):
    """Return the arrays that a stage left in its checkpoint, by name."""
    with checkpoint.as_directory() as folder, np.load(Path(folder) / name) as arrays:
        return dict(arrays)


def keep(name, **arrays):
    """Save arrays as a checkpoint; a unit starts in an empty folder of its own, so a plain name is enough."""
    folder = Path("out")
    folder.mkdir(exist_ok=True)
    np.savez(folder / name, **arrays)
    return Checkpoint.from_directory(folder)


@stage()
def prepare(held_out):
    """Split the digits into three parts: to fit, to choose by, and to judge by at the very end."""
    digits = load_digits()
    rest, x_test, y_rest, y_test = train_test_split(
        digits.data / 16.0, digits.target, test_size=held_out, random_state=0, stratify=digits.target
    )
    x_fit, x_valid, y_fit, y_valid = train_test_split(rest, y_rest, test_size=0.25, random_state=0, stratify=y_rest)
    return keep("parts.npz", x_fit=x_fit, y_fit=y_fit, x_valid=x_valid, y_valid=y_valid, x_test=x_test, y_test=y_test)


@experiment(
    param_space={"loss": grid(["log_loss", "hinge"]), "lr": loguniform(1e-3, 1e-1)},
    num_samples=3,
    metric="accuracy",
    mode="max",
)
def sweep(config, data):
    parts = load(data, "parts.npz")
    for epoch, model in fit(parts["x_fit"], parts["y_fit"], config, epochs=5):
        report({"accuracy": float(model.score(parts["x_valid"], parts["y_valid"])), "epoch": epoch})


@stage()
def retrain(data, config):
    """Fit the best configuration on everything but the held-out part."""
    parts = load(data, "parts.npz")
    images = np.concatenate([parts["x_fit"], parts["x_valid"]])
    labels = np.concatenate([parts["y_fit"], parts["y_valid"]])
    *_, (_, model) = fit(images, labels, config, epochs=20)
    return keep("model.npz", coef=model.coef_, intercept=model.intercept_)


@stage()
def evaluate(data, model):
    """Judge the model once, on images that neither the sweep nor the retraining saw."""
    parts, weights = load(data, "parts.npz"), load(model, "model.npz")
    guess = np.argmax(parts["x_test"] @ weights["coef"].T + weights["intercept"], axis=1)
    return {"accuracy": float(np.mean(guess == parts["y_test"])), "images": len(guess)}


@flow(name="pipeline")
def pipeline(held_out=0.25):
    data = prepare(held_out)
    trials = sweep(data)
    model = retrain(data, trials.best.config)
    return evaluate(data, model)
