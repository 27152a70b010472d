"""Sweep a classifier over scikit-learn's handwritten digits, one report and one checkpoint per epoch.

    flowctl run examples/digits.py              the sweep: 2 losses x 6 random draws = 12 trials
    python examples/digits.py CHECKPOINT_DIR    the accuracy of a checkpoint, computed again from its files

A trial that is killed goes on from its last checkpoint and ends with the same numbers as one that was not.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier

from flowctl import Checkpoint, experiment, get_checkpoint, grid, loguniform, report

EPOCHS = 8
SPLIT_SEED = 0
HELD_OUT = 450


def load_split():
    """Return (training images, training labels, held-out images, held-out labels); always the same split."""
    digits = load_digits()
    order = np.random.default_rng(SPLIT_SEED).permutation(len(digits.target))
    images, labels = digits.data[order] / 16.0, digits.target[order]
    return images[HELD_OUT:], labels[HELD_OUT:], images[:HELD_OUT], labels[:HELD_OUT]


def accuracy(coef, intercept, images, labels):
    """Return the share of images that a linear model with these weights gets right."""
    return float(np.mean(np.argmax(images @ coef.T + intercept, axis=1) == labels))


def save(folder, model, epoch):
    """Write what is needed to go on from here, and to compute the accuracy again: plain arrays, no pickle."""
    np.savez(Path(folder) / "model.npz", coef=model.coef_, intercept=model.intercept_, t=model.t_, epoch=epoch)


def restore(folder, model):
    """Set the model to the saved weights; return the epoch that they are from."""
    with np.load(Path(folder) / "model.npz") as saved:
        model.coef_, model.intercept_, model.t_ = saved["coef"], saved["intercept"], float(saved["t"])
        return int(saved["epoch"])


@experiment(
    param_space={"loss": grid(["log_loss", "hinge"]), "lr": loguniform(1e-3, 1e-1), "alpha": loguniform(1e-6, 1e-3)},
    num_samples=6,
    metric="accuracy",
    mode="max",
    resources={"cpu": 1},
    max_failures=1,
)
def train(config):
    images, labels, held_images, held_labels = load_split()
    model = SGDClassifier(
        loss=config.loss, alpha=config.alpha, learning_rate="constant", eta0=config.lr, random_state=0
    )
    model.partial_fit(images[:1], labels[:1], classes=np.arange(10))  # gives the weights their shape
    done = 0
    if checkpoint := get_checkpoint():
        with checkpoint.as_directory() as folder:
            done = restore(folder, model)

    for epoch in range(done + 1, EPOCHS + 1):
        order = np.random.default_rng(epoch).permutation(len(labels))
        model.partial_fit(images[order], labels[order])
        score = accuracy(model.coef_, model.intercept_, held_images, held_labels)
        with tempfile.TemporaryDirectory() as folder:
            save(folder, model, epoch)
            report({"accuracy": score, "epoch": epoch}, checkpoint=Checkpoint.from_directory(folder))


def main(folder):
    _, _, held_images, held_labels = load_split()
    with np.load(Path(folder) / "model.npz") as saved:
        print(accuracy(saved["coef"], saved["intercept"], held_images, held_labels))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python digits.py CHECKPOINT_DIR (to run the sweep: flowctl run digits.py)")
    main(sys.argv[1])
