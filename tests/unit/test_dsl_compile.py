"""Plans: the same bytes from the same script and seed in every process, seeds, overrides, limits (row 76)."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flowctl.dsl.compile import TASK, compile_target
from flowctl.dsl.errors import DeclarationError, NotYetError, RefusedError
from flowctl.dsl.experiment import experiment
from flowctl.dsl.flow import flow
from flowctl.dsl.overrides import parse_assignments
from flowctl.dsl.plan import Plan
from flowctl.dsl.policy import Policy
from flowctl.dsl.request import placement_group
from flowctl.dsl.resources import Bundle, Request
from flowctl.dsl.sample import config_at, configs, sampler
from flowctl.dsl.space import choice, grid, loguniform, uniform
from flowctl.dsl.stage import stage


def at_five(result: Any) -> bool:
    return bool(result["epoch"] >= 5)


@experiment(
    param_space={"lr": loguniform(1e-4, 1), "opt": {"name": "sgd", "mom": [0.1, uniform(0, 1)]}, "b": grid([1, 2, 3])},
    num_samples=4,
    metric="acc",
    mode="max",
    resources={"cpu": 0.5, "license": 1},
    stop=[{"epoch": 50}, at_five],
    max_failures=2,
)
def train(config: Any) -> None: ...


def asks(config: Any) -> Any:
    return {"cpu": config.b}


@experiment(param_space={"b": grid([1, 2])}, resources=asks, labels=["spot"])
def asking(config: Any) -> None: ...


@experiment(resources=placement_group([{"cpu": 1}, {"gpu": 0.5}], strategy="SPREAD"), pending_timeout_s=5)
def grouped(config: Any) -> None: ...


@stage
def prepare(rows: int = 3) -> None: ...


@flow
def both() -> None:
    prepare()
    train()


@flow
def sweeps() -> None:
    train()
    train()


def test_an_experiment_compiles_to_one_step_with_all_it_declared() -> None:
    compiled = compile_target(train)

    (step,) = compiled.plan.steps
    assert (compiled.plan.name, compiled.plan.flow, compiled.plan.parameters) == ("train", None, {})
    assert (step.name, step.kind, step.code, step.total, step.num_samples) == ("train", "experiment", "train", 12, 4)
    assert step.place == f"test_dsl_compile.py:{train.function.__code__.co_firstlineno}"
    assert step.request == Request((Bundle({"cpu": 5000, "license": 10000, "slot": 10000}),))
    assert not step.has_resource_function and compiled.asking == {}
    assert step.policy == Policy(max_failures=2, max_worker_losses=3)
    assert (step.stop, step.stop_functions) == ({"epoch": 50}, 1)
    assert compiled.code["train"].function is train.function and compiled.code["train"].stop == (at_five,)
    assert step.signature["task"] == TASK and step.signature["immutable"] is True
    assert step.signature["args"] == ["RUN:STEP:INDEX", "EPOCH"]
    assert step.signature["options"] == {"queue": "fcq.BOOT"}
    assert compiled.storage_path is None


def test_a_stage_alone_compiles_to_one_unit() -> None:
    (step,) = compile_target(prepare).plan.steps

    assert (step.kind, step.total, step.space, step.stop, step.inputs) == ("stage", 1, None, None, ())


@pytest.mark.parametrize("target", [asking, grouped])
def test_requests_of_every_form_stand_in_the_plan(target: Any) -> None:
    compiled = compile_target(target)
    (step,) = compiled.plan.steps

    assert Plan.parse(compiled.plan.canonical()) == compiled.plan
    if target is asking:
        assert (step.request, step.has_resource_function, step.labels) == (None, True, ("spot",))
        assert (compiled.asking["asking"].function, compiled.asking["asking"].labels) == (asks, ("spot",))
    else:
        assert step.request is not None and step.request.strategy == "SPREAD"
        assert not step.has_resource_function and compiled.asking == {}
    assert compile_target(target).plan.digest == compiled.plan.digest


def test_a_plan_reads_back_equal_and_samples_the_same() -> None:
    plan = compile_target(train).plan

    again = Plan.parse(plan.canonical())

    assert again == plan and again.digest == plan.digest and again.canonical() == plan.canonical()
    assert json.loads(plan.canonical())["format"] == 1
    assert sampler(plan.steps[0]) is sampler(plan.steps[0])
    assert list(configs(again.steps[0], 0, 99)) == [config_at(plan.steps[0], index) for index in range(12)]
    assert plan.total == 12 and plan.step("train") is plan.steps[0]
    with pytest.raises(RefusedError, match="no trial 12"):
        config_at(plan.steps[0], 12)
    with pytest.raises(RefusedError, match="is a stage"):
        config_at(compile_target(prepare).plan.steps[0], 0)
    with pytest.raises(RefusedError, match="it has: train"):
        plan.step("x")


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: {**data, "format": 2},
        lambda data: {key: value for key, value in data.items() if key != "steps"},
        lambda data: {**data, "steps": [{"name": "x"}]},
        lambda data: {**data, "steps": [{**data["steps"][0], "more": 1}]},
        lambda data: {**data, "steps": [{**data["steps"][0], "name": "../x"}]},
        lambda data: {**data, "steps": [{**data["steps"][0], "code": "../x"}]},
        lambda data: {**data, "steps": [{**data["steps"][0], "total": -1}]},
        lambda data: {**data, "steps": [{**data["steps"][0], "request": None}]},
        lambda data: {**data, "steps": [{**data["steps"][0], "request": {"bundles": [], "strategy": "PACK"}}]},
        lambda data: {**data, "steps": [{**data["steps"][0], "policy": {"enforce": ["gpu"]}}]},
        lambda data: [],
    ],
)
def test_a_damaged_plan_or_another_format_is_refused(damage: Any) -> None:
    data = json.loads(compile_target(train).plan.canonical())

    with pytest.raises(RefusedError):
        Plan.from_json(damage(data))
    with pytest.raises(RefusedError, match="damaged"):
        Plan.parse(b"{")


SCRIPT = """
from flowctl.dsl.compile import compile_target
from flowctl.dsl.experiment import experiment
from flowctl.dsl.flow import flow
from flowctl.dsl.sample import configs
from flowctl.dsl.space import *
from flowctl.dsl.stage import stage

@stage
def prepare(a={"z": 1, "a": 2}): return a

@experiment(param_space={"x": uniform(0, 1), "c": choice(["a", "b"]), "g": grid([float("nan"), 1]), "n": randn(),
                         "l": loguniform(1e-3, 1)},
            num_samples=2, resources={"cpu": 1, "b": 1, "a": 1}, stop={"q": 1, "b": 2}, metric="m", mode="min")
def train(config, data): pass

@flow
def pipeline(n=3):
    data = prepare({"b": n, "a": [n]})
    prepare([train(data).best.config, train(data).results])

plan = compile_target(pipeline).plan
print(plan.digest)
print([repr(list(configs(step, 0, 99))) for step in plan.steps if step.space])
"""


def test_the_same_script_gives_the_same_plan_in_every_process(tmp_path: Path) -> None:
    script = tmp_path / "digits.py"
    script.write_text(SCRIPT)

    outputs = set()
    for hash_seed in ("0", "1", "4242"):
        env = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run([sys.executable, script], env=env, capture_output=True, text=True, check=True, timeout=60)
        outputs.add(done.stdout)

    assert len(outputs) == 1
    assert outputs.pop().startswith("sha256:")


def test_a_seed_is_kept_derived_or_drawn_and_always_recorded() -> None:
    def seed_of(seed: Any) -> str:
        return compile_target(train.options(seed=seed), draw_seed=lambda: "drawn").plan.steps[0].seed

    assert (seed_of(7), seed_of("7"), seed_of("x"), seed_of("random")) == ("7", "7", "x", "drawn")
    derived = seed_of(None)
    assert derived == seed_of(None) and len(derived) == 16
    assert compile_target(train.options(num_samples=5, stop={"loss": 1})).plan.steps[0].seed == derived
    first, second = compile_target(sweeps).plan.steps
    assert first.seed != second.seed
    assert compile_target(train.options(seed="random")).plan != compile_target(train.options(seed="random")).plan


def test_the_same_seed_gives_the_same_configurations_and_another_does_not() -> None:
    def sampled(seed: int) -> list[Any]:
        return list(configs(compile_target(train.options(seed=seed)).plan.steps[0], 0, 12))

    assert sampled(1) == sampled(1) != sampled(2)


def keywords(target: Any, overrides: dict[str, str]) -> Any:
    return compile_target(target, overrides=overrides).plan


def test_an_override_replaces_a_keyword_or_a_key_of_it() -> None:
    plan = keywords(
        train,
        {
            "num_samples": "1",
            "param_space.lr": "0.5",
            "param_space.opt.name": "adam",
            "param_space.opt.mom.1": "null",
            "param_space.b": "[7, 8]",
            "resources.cpu": "2",
            "resources.gpu": "0.5",
            "labels": "spot",
            "max_concurrent_trials": "2",
            "priority": "-3",
            "pending_timeout_s": "1.5",
            "enforce": "cpu",
            "on_bundle_loss": "repair",
            "metric": "loss",
            "mode": "min",
            "seed": "3",
            "max_failures": "-1",
            "stop": '{"epoch": 3}',
        },
    )

    (step,) = plan.steps
    assert config_at(step, 0) == {"lr": 0.5, "opt": {"name": "adam", "mom": [0.1, None]}, "b": [7, 8]}
    assert (step.total, step.metric, step.mode, step.seed) == (1, "loss", "min", "3")
    assert step.request == Request((Bundle({"cpu": 20000, "gpu": 5000, "license": 10000, "slot": 10000}, ("spot",)),))
    assert (step.max_concurrent_trials, step.priority, step.pending_timeout_s) == (2, -3, 1.5)
    assert (step.policy.enforce, step.policy.on_bundle_loss) == (("cpu",), "repair")
    assert (step.policy.max_failures, step.stop, step.stop_functions) == (-1, {"epoch": 3}, 0)
    assert train.declaration.num_samples == 4


def test_an_override_without_a_step_means_the_only_experiment() -> None:
    assert keywords(both, {"num_samples": "1", "max_failures": "5"}).step("train").policy.max_failures == 5
    assert keywords(both, {"prepare.max_failures": "1"}).step("prepare").policy.max_failures == 1
    assert keywords(prepare, {"max_failures": "1"}).steps[0].policy.max_failures == 1
    plan = keywords(sweeps, {"train-2.num_samples": "1"})
    assert (plan.step("train").total, plan.step("train-2").total) == (12, 3)


def test_a_stop_key_is_set_where_none_was_declared_and_checked_where_some_were() -> None:
    assert keywords(train.options(stop=None), {"stop.epoch": "3"}).steps[0].stop == {"epoch": 3}
    assert keywords(train.options(stop={"epoch": 9, "a/b": 1}), {"stop.a/b": "3"}).steps[0].stop == {
        "a/b": 3,
        "epoch": 9,
    }
    with pytest.raises(DeclarationError, match="stop has no key 'epcoh'; did you mean 'epoch'"):
        keywords(train.options(stop={"epoch": 9}), {"stop.epcoh": "3"})


@pytest.mark.parametrize(
    ("target", "path", "text", "words"),
    [
        (train, "max_step", "5", "there is no keyword 'max_step'"),
        (train, "num_sample", "5", "did you mean 'num_samples'"),
        (train, "num_samples", "0", "is 0, must be at least 1"),
        (train, "num_samples", "many", "is 'many' (str), not a whole number"),
        (train, "param_space.lrr", "1", "param_space has no key 'lrr'; did you mean 'lr'"),
        (train, "param_space.opt.nam", "1", "param_space.opt has no key 'nam'; did you mean 'name'"),
        (train, "param_space.opt.mom.5", "1", "has entries 0 to 1"),
        (train, "param_space.lr.x", "1", "replace it whole"),
        (train, "param_space.b.0", "1", "param_space.b is a grid"),
        (train, "stop.epoch", "1", "stop has no entry 'epoch'"),
        (train, "resources.GPU", "1", "resources has no key 'GPU'"),
        (train, "resources.gpu", "1.5", "is 1.5; above 1"),
        (train, "resources", "[1]", "write placement_group"),
        (train, "max_concurrent_trials", "-1", "is -1, must be at least 0"),
        (train, "labels", "a b", "'a b' is not a label"),
        (grouped, "resources.cpu", "2", "replace it whole: --set resources="),
        (asking, "resources.cpu", "2", "replace it whole: --set resources="),
        (both, "prepare.max_concurrent_trials", "2", "has no keyword 'max_concurrent_trials'"),
        (train, "train", "1", "'train' is a step"),
        (train, "train.x", "1", "has no keyword 'x'"),
        (both, "prepare.num_samples", "1", "the step 'prepare' has no keyword 'num_samples'"),
        (both, "when", "1", "the step 'train' has no keyword 'when'"),
        (both, "trian.num_samples", "1", "did you mean 'train'"),
        (sweeps, "num_samples", "1", "write --set train.num_samples="),
    ],
)
def test_an_override_that_means_nothing_is_refused(target: Any, path: str, text: str, words: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        compile_target(target, overrides={path: text})

    assert words in str(caught.value)
    assert str(caught.value).startswith(f"--set {path}={text}: ")


def test_an_override_of_what_is_not_built_is_refused_as_such() -> None:
    with pytest.raises(NotYetError, match=r"^--set timeout_s=5: is not yet"):
        compile_target(train, overrides={"timeout_s": "5"})


def test_assignments_are_read_from_a_command_line() -> None:
    assert parse_assignments(["a=1", "b.c=x=y", "d="], option="--set") == {"a": "1", "b.c": "x=y", "d": ""}
    for wrong in (["a"], ["=1"], ["a=1", "a=2"]):
        with pytest.raises(DeclarationError, match=r"^--set: "):
            parse_assignments(wrong, option="--set")


def test_more_trials_than_the_limit_are_refused_without_listing_them() -> None:
    many = experiment(param_space={f"g{i}": grid(range(100)) for i in range(5)})(train.function)

    with pytest.raises(DeclarationError, match=r"10,000,000,000 grid points × 1 samples are more than 10,000,000"):
        compile_target(many)
    assert compile_target(train.options(num_samples=10**6)).plan.total == 3 * 10**6


def test_what_cannot_run_alone_is_refused() -> None:
    @experiment
    def needs_data(config: Any, data: Any) -> None: ...

    with pytest.raises(DeclarationError, match=r"needs_data needs inputs.*'data'.*call it in a @flow"):
        compile_target(needs_data)
    with pytest.raises(DeclarationError, match="a dict cannot be run"):
        compile_target({})
    with pytest.raises(DeclarationError, match="cannot name a step"):
        compile_target(experiment(lambda config: None))


def test_a_run_has_one_storage() -> None:
    @flow
    def two() -> None:
        train.options(storage_path="/a")()
        train.options(storage_path="/b")()

    assert compile_target(train.options(storage_path="/a")).storage_path == "/a"
    with pytest.raises(DeclarationError, match="a run has one storage"):
        compile_target(two)


def test_a_parameter_value_may_be_any_path_like_text() -> None:
    values = ["a/b", "../../etc", "c:d*?", "x" * 300, "ключ"]
    step = compile_target(
        train.options(param_space={"path": grid(values), "k": choice([1])}, num_samples=1)
    ).plan.steps[0]

    assert [config["path"] for config in configs(step, 0, 5)] == values


def test_the_digest_covers_every_field() -> None:
    plan = compile_target(train).plan

    assert replace(plan, name="other").digest != plan.digest
    assert replace(plan, steps=(replace(plan.steps[0], seed="other"),)).digest != plan.digest
