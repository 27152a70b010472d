"""The decorators: one pinned signature, every refusal with place and nearest name, and what a call means (B129)."""

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from flowctl.dsl import launcher
from flowctl.dsl.config import Config
from flowctl.dsl.errors import DeclarationError, NotYetError, RefusedError, ScriptError
from flowctl.dsl.experiment import Experiment, experiment
from flowctl.dsl.policy import CheckpointConfig, Retry
from flowctl.dsl.resources import Bundle, Request
from flowctl.dsl.space import grid
from flowctl.dsl.stage import Stage, stage

any_experiment: Any = experiment
any_stage: Any = stage


def train(config: Any) -> Any:
    return config.lr


EXPERIMENT_KEYWORDS: dict[str, Any] = {
    "param_space": {},
    "num_samples": 1,
    "seed": None,
    "metric": None,
    "mode": None,
    "resources": {"cpu": 1},
    "labels": None,
    "stop": None,
    "where": None,
    "repeat": None,
    "points_to_evaluate": (),
    "max_concurrent_trials": None,
    "priority": 0,
    "pending_timeout_s": None,
    "max_failures": 0,
    "max_worker_losses": 3,
    "retry": Retry(delay_s=0, backoff=2, max_delay_s=300, jitter=0.1, only=(), never=()),
    "on_oom": None,
    "fail_fast": False,
    "max_failed_trials": None,
    "timeout_s": None,
    "no_report_timeout_s": None,
    "time_budget_s": None,
    "checkpoint": CheckpointConfig(),
    "count_preemption_as_failure": False,
    "on_bundle_loss": "fail",
    "strict_single_run": False,
    "enforce": None,
    "env": {},
    "working_dir": None,
    "storage_path": None,
}
STAGE_KEYWORDS: dict[str, Any] = {
    "resources": {"cpu": 1},
    "labels": None,
    "priority": 0,
    "pending_timeout_s": None,
    "max_failures": 0,
    "max_worker_losses": 3,
    "retry": Retry(),
    "timeout_s": None,
    "no_report_timeout_s": None,
    "when": None,
    "env": {},
}


@pytest.mark.parametrize(("decorator", "keywords"), [(experiment, EXPERIMENT_KEYWORDS), (stage, STAGE_KEYWORDS)])
def test_the_signature_is_the_one_of_the_design(decorator: Any, keywords: dict[str, Any]) -> None:
    parameters = list(inspect.signature(decorator).parameters.values())

    assert parameters[0].name == "function" and parameters[0].kind is inspect.Parameter.POSITIONAL_ONLY
    assert parameters[-1].kind is inspect.Parameter.VAR_KEYWORD
    assert [each.name for each in parameters[1:-1]] == list(keywords)
    assert {each.name: each.default for each in parameters[1:-1]} == keywords


def test_the_typed_overload_lists_the_same_keywords() -> None:
    source = inspect.getsource(inspect.getmodule(experiment) or pytest.fail("no module"))
    overload = source.split("@overload")[2]

    assert [line.split(":")[0].strip() for line in overload.splitlines() if line.strip().endswith("= ...,")] == list(
        EXPERIMENT_KEYWORDS
    )


def test_decorators_work_bare_and_with_parentheses() -> None:
    for decorated in (experiment(train), experiment()(train)):
        assert isinstance(decorated, Experiment) and decorated.__name__ == "train"
        assert decorated.function is train and decorated.step_name == "train"
    for one in (stage(train), stage()(train)):
        assert isinstance(one, Stage) and one.__name__ == "train"


def test_a_call_outside_a_flow_just_calls_the_function() -> None:
    decorated = experiment(train)

    assert decorated({"lr": 0.1}) == 0.1
    assert decorated(Config(lr=0.2)) == 0.2
    assert stage(lambda_free)(2, by=3) == 6


def lambda_free(value: int, *, by: int) -> int:
    return value * by


def test_all_built_keywords_are_kept_as_checked_values(tmp_path: Path) -> None:
    declared = experiment(
        param_space={"lr": grid([1, 2])},
        num_samples=3,
        seed=7,
        metric="acc",
        mode="max",
        resources={"cpu": 0.5, "license": 1, "memory": "2GiB"},
        labels={"zone": "a"},
        max_concurrent_trials=2,
        priority=-5,
        pending_timeout_s=0.5,
        enforce={"memory", "cpu"},
        on_bundle_loss="repair",
        stop={"epoch": 5},
        max_failures=-1,
        max_worker_losses=None,
        storage_path=tmp_path,
    )(train).declaration

    assert (declared.num_samples, declared.seed, declared.metric, declared.mode) == (3, "7", "acc", "max")
    need = {"cpu": 5000, "license": 10000, "memory": 2048, "slot": 10000}
    assert declared.request == Request((Bundle(need, ("zone=a",)),))
    assert (declared.max_concurrent_trials, declared.priority, declared.pending_timeout_s) == (2, -5, 0.5)
    assert (declared.policy.enforce, declared.policy.on_bundle_loss) == (("cpu", "memory"), "repair")
    assert declared.stop.limits == {"epoch": 5}
    assert (declared.policy.max_failures, declared.policy.max_worker_losses) == (-1, None)
    assert declared.storage_path == str(tmp_path)


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"max_retries": 4}, "no keyword 'max_retries'; did you mean 'max_failures'?"),
        ({"space": {}}, "did you mean 'param_space'?"),
        ({"resoruces": {"gpu": 1}}, "did you mean 'resources'?"),
        ({"samples": 4}, "did you mean 'num_samples'?"),
        ({"zzz": 1}, "known keywords: checkpoint"),
        ({"resources": {"GPU": 1}}, "resources: unknown name 'GPU'; write 'gpu'"),
        ({"resources": {"cpu": -1}}, "resources.cpu: is -1, must not be negative"),
        ({"num_samples": 0}, "num_samples: is 0, must be at least 1"),
        ({"num_samples": -1}, "num_samples"),
        ({"num_samples": True}, "num_samples: is True (bool)"),
        ({"num_samples": 2.0}, "num_samples: is 2.0 (float)"),
        ({"metric": "acc"}, "metric: 'acc' is given without mode"),
        ({"mode": "max"}, "mode: 'max' is given without metric"),
        ({"metric": "acc", "mode": "best"}, "mode: is 'best'"),
        ({"metric": 3, "mode": "max"}, "metric: is 3"),
        ({"max_failures": 1.5}, "max_failures: is 1.5"),
        ({"max_failures": "3"}, "max_failures: is '3'"),
        ({"max_worker_losses": -2}, "max_worker_losses: is -2"),
        ({"seed": 1.5}, "seed: is 1.5"),
        ({"seed": True}, "seed: is True"),
        ({"seed": ""}, "seed: is ''"),
        ({"stop": {"epoch": "x"}}, "stop.epoch: is 'x'"),
        ({"param_space": [1]}, "param_space: is list"),
        ({"param_space": {"layers": {0: 64}}}, "param_space.layers: the key 0"),
        ({"storage_path": 3}, "storage_path: is 3"),
        ({"labels": 3}, "labels: is 3 (int), not a list of labels"),
        ({"labels": ["spot", "!spot"]}, "labels: 'spot' is wanted and not wanted"),
        ({"resources": {"cpu": 1, "labels": ["spot"]}, "labels": ["!spot"]}, "labels: 'spot' is wanted and not wanted"),
        ({"max_concurrent_trials": -1}, "max_concurrent_trials: is -1, must be at least 0"),
        ({"max_concurrent_trials": 1.5}, "max_concurrent_trials: is 1.5 (float)"),
        ({"max_concurrent_trials": True}, "max_concurrent_trials: is True"),
        ({"priority": 1.5}, "priority: is 1.5"),
        ({"priority": 1001}, "priority: is 1001, must be at most 1000"),
        ({"priority": -1001}, "priority: is -1001, must be at least -1000"),
        ({"pending_timeout_s": 0}, "pending_timeout_s: is 0, must be above 0"),
        ({"pending_timeout_s": -1}, "pending_timeout_s: is -1"),
        ({"pending_timeout_s": "5"}, "pending_timeout_s: is '5'"),
        ({"pending_timeout_s": float("inf")}, "pending_timeout_s: is inf"),
        ({"enforce": {"memroy"}}, "enforce: 'memroy' cannot be enforced; did you mean 'memory'?"),
        ({"enforce": {"gpu"}}, "enforce: 'gpu' cannot be enforced"),
        ({"enforce": 3}, "enforce: is 3 (int)"),
        ({"enforce": {"memory"}}, "enforce: 'memory' is to be enforced and is not asked for"),
        ({"on_bundle_loss": "restart"}, 'on_bundle_loss: is \'restart\'; write "fail" or "repair"'),
        ({"on_bundle_loss": None}, "on_bundle_loss: is None"),
    ],
)
def test_what_cannot_be_is_refused_with_file_line_and_keyword(keywords: dict[str, Any], words: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        any_experiment(**keywords)(train)

    assert words in str(caught.value)
    line = train.__code__.co_firstlineno
    assert str(caught.value).startswith(f"test_dsl_experiment.py:{line}: ")
    assert "\n" not in str(caught.value)


NOT_YET: dict[str, Any] = {
    "where": lambda config: True,
    "repeat": 2,
    "points_to_evaluate": [{"lr": 1}],
    "retry": Retry(delay_s=1),
    "on_oom": lambda config: config,
    "fail_fast": True,
    "max_failed_trials": 3,
    "timeout_s": 5,
    "no_report_timeout_s": 5,
    "time_budget_s": 5,
    "checkpoint": CheckpointConfig(num_to_keep=1),
    "count_preemption_as_failure": True,
    "strict_single_run": True,
    "env": {"A": "1"},
    "working_dir": ".",
}


def test_every_keyword_that_is_not_built_is_refused_unless_it_is_its_default() -> None:
    assert Experiment.built == frozenset(EXPERIMENT_KEYWORDS) - frozenset(NOT_YET)
    experiment(**{key: EXPERIMENT_KEYWORDS[key] for key in NOT_YET})(train)
    for keyword, value in NOT_YET.items():
        with pytest.raises(NotYetError, match=f": {keyword}: is not yet supported"):
            any_experiment(**{keyword: value})(train)
    for keyword in sorted(set(STAGE_KEYWORDS) - Stage.built - {"when"}):
        with pytest.raises(NotYetError, match=f": {keyword}: is not yet supported"):
            any_stage(**{keyword: NOT_YET[keyword]})(train)
    with pytest.raises(NotYetError, match="when"):
        any_stage(when=lambda: True)(train)


@pytest.mark.parametrize("limit", [None, 0])
def test_no_limit_on_trials_at_once_is_said_in_two_ways(limit: int | None) -> None:
    assert experiment(max_concurrent_trials=limit)(train).declaration.max_concurrent_trials is None


def test_a_stage_has_a_request_an_order_and_a_patience() -> None:
    declared = stage(resources={"gpu": 1}, labels=["!spot"], priority=3, pending_timeout_s=60)(lambda_free).declaration

    assert declared.request == Request((Bundle({"gpu": 10000, "slot": 10000}, ("!spot",)),))
    assert (declared.priority, declared.pending_timeout_s, declared.max_concurrent_trials) == (3, 60, None)


def test_only_a_plain_function_of_the_configuration_is_decorated() -> None:
    def no_arguments() -> None: ...
    def keyword_only(*, config: Any) -> None: ...
    async def coroutine(config: Any) -> None: ...
    def generator(config: Any) -> Any:
        yield 1

    for wrong in (no_arguments, keyword_only):
        with pytest.raises(DeclarationError, match="must take the configuration as its first argument"):
            experiment(wrong)
    for not_yet in (coroutine, generator, Config):
        with pytest.raises(NotYetError):
            experiment(not_yet)
    with pytest.raises(DeclarationError, match="decorates a function, not dict"):
        any_experiment({"lr": 1})


def test_options_gives_a_new_object_and_leaves_the_original_unchanged() -> None:
    original = experiment(param_space={"lr": grid([1])}, num_samples=2)(train)

    other = original.options(num_samples=5, name="sweep", on_failure="stop", min_completed=None)

    assert type(other) is Experiment and other.function is train
    assert (original.declaration.num_samples, original.step_name) == (2, "train")
    assert (other.declaration.num_samples, other.step_name) == (5, "sweep")
    assert other.declaration.space == original.declaration.space
    assert other.options(seed=1).step_name == "sweep"
    with pytest.raises(DeclarationError, match="did you mean 'num_samples'"):
        original.options(num_sample=5)
    with pytest.raises(DeclarationError, match="num_samples: is 0"):
        original.options(num_samples=0)
    with pytest.raises(NotYetError, match="min_completed"):
        original.options(min_completed=2)
    with pytest.raises(NotYetError, match="map"):
        original.map([1])
    with pytest.raises(DeclarationError, match="name a step"):
        original.options(name="a.b")


def test_a_decorated_function_travels_by_value() -> None:
    decorated = experiment(param_space={"lr": grid([1])}, stop=[{"epoch": 3}])(train)

    twin = cloudpickle.loads(cloudpickle.dumps(decorated))

    assert twin.declaration == decorated.declaration and twin({"lr": 3}) == 3


class Recorder:
    """A launcher that answers with what it was asked."""

    def submit(self, target: Any, *, name: str | None = None, **options: Any) -> Any:
        return ("submit", target, name, options)

    def submit_or_resume(self, target: Any, *, name: str, **options: Any) -> Any:
        return ("submit_or_resume", target, name, options)

    def run(self, target: Any, *, name: str | None = None, **options: Any) -> Any:
        return ("run", target, name, options)


def test_submitting_goes_to_the_launcher_unless_it_is_refused_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "_provided", [])
    decorated = experiment(train)
    with pytest.raises(RefusedError, match="import flowctl"):
        decorated.run()

    launcher.provide(Recorder())

    assert decorated.submit(name="a") == ("submit", decorated, "a", {})
    assert decorated.submit_or_resume(name="a") == ("submit_or_resume", decorated, "a", {})
    assert decorated.run(timeout_s=1) == ("run", decorated, None, {"timeout_s": 1})
    with (
        launcher.refusing("submitting inside a trial can deadlock", cure="use a flow"),
        pytest.raises(ScriptError, match=r"^test_dsl_experiment\.py:\d+: submitting inside a trial"),
    ):
        decorated.submit()


def test_mappings_of_any_kind_are_configurations() -> None:
    space: Mapping[str, Any] = Config(lr=grid([1, 2]))

    assert experiment(param_space=space)(train).declaration.space == {"$dict": [["lr", {"$grid": [1, 2]}]]}
