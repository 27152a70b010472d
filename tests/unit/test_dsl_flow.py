"""Flows: calls become steps, outputs edges; what an output is not is an error at the user's line."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from flowctl.dsl.compile import compile_target
from flowctl.dsl.errors import DeclarationError, NotYetError, ScriptError
from flowctl.dsl.experiment import experiment
from flowctl.dsl.flow import Flow, flow
from flowctl.dsl.graph import describe_text, mermaid, shapes
from flowctl.dsl.plan import Plan, Step
from flowctl.dsl.space import grid, uniform
from flowctl.dsl.stage import stage


@stage
def prepare(rows: int = 3) -> Any:
    return list(range(rows))


@experiment(param_space={"lr": uniform(0, 1), "b": grid([1, 2])}, num_samples=2, metric="acc", mode="max")
def train(config: Any, data: Any) -> Any:
    return None


@stage(resources={"cpu": 2})
def evaluate(best: Any, *, data: Any = None) -> Any:
    return None


@stage
def combine(*parts: Any, **named: Any) -> Any:
    return None


@flow
def pipeline(rows: int = 10, label: str = "x", deep: bool = False) -> Any:
    data = prepare(rows)
    sweep = train(data)
    return evaluate({"config": sweep.best.config, "all": [sweep.results, {"m": sweep.best.metrics}]}, data=data)


def steps_of(target: Any, **options: Any) -> dict[str, Step]:
    return {step.name: step for step in compile_target(target, **options).plan.steps}


def edge(step: str, *path: str) -> dict[str, Any]:
    return {"$output": step, "path": list(path)}


def test_outputs_at_any_depth_become_edges() -> None:
    steps = steps_of(pipeline)

    assert list(steps) == ["prepare", "train", "evaluate"]
    assert steps["prepare"].inputs == (10,) and steps["prepare"].after == ()
    assert steps["train"].inputs == (edge("prepare"),) and steps["train"].after == ("prepare",)
    assert steps["train"].total == 4
    assert steps["evaluate"].inputs == (
        {
            "config": edge("train", "best", "config"),
            "all": [edge("train", "results"), {"m": edge("train", "best", "metrics")}],
        },
    )
    assert steps["evaluate"].keyword_inputs == {"data": edge("prepare")}
    assert steps["evaluate"].after == ("prepare", "train")


def test_flow_is_usable_bare_and_with_a_name() -> None:
    named = flow(name="nightly")(pipeline.function)

    assert isinstance(pipeline, Flow) and pipeline.name == "pipeline"
    plan = compile_target(named).plan
    assert (plan.name, plan.flow) == ("nightly", "nightly")
    with pytest.raises(DeclarationError, match="no keyword 'nam'; known keywords: name"):
        flow(nam="x")(pipeline.function)  # type: ignore[call-overload]
    with pytest.raises(DeclarationError, match="1 to 200"):
        flow(name="")(pipeline.function)


def test_the_same_leaf_twice_gets_numbered_names_and_one_code() -> None:
    @flow
    def twice() -> None:
        first, second = train(1), train(2)
        combine(first.best, second.best, named=train.options(name="third", num_samples=5)(3).results)

    compiled = compile_target(twice)

    assert [step.name for step in compiled.plan.steps] == ["train", "train-2", "third", "combine"]
    assert [step.code for step in compiled.plan.steps] == ["train", "train", "train", "combine"]
    assert list(compiled.code) == ["train", "combine"]
    assert compiled.code["train"].function is train.function
    assert compiled.plan.step("third").total == 10


def test_two_equal_explicit_names_are_refused() -> None:
    @flow
    def clash() -> None:
        prepare.options(name="a")()
        prepare.options(name="a")()

    with pytest.raises(
        DeclarationError, match=r"^test_dsl_flow\.py:\d+: two steps are named 'a', the other at test_dsl"
    ):
        compile_target(clash)


def use(output: Any, how: Callable[[Any], Any]) -> Any:
    @flow
    def wrong() -> None:
        how(train(prepare()) if output == "experiment" else prepare())

    return compile_target(wrong)


@pytest.mark.parametrize(
    ("how", "verb"),
    [
        (lambda out: list(out), "iterated"),
        (lambda out: dict.fromkeys(out), "iterated"),
        (lambda out: [*out], "iterated"),
        (lambda out: 1 if out else 2, "used as a condition"),
        (lambda out: not out, "used as a condition"),
        (lambda out: len(out), "measured"),
        (lambda out: out[0], "indexed with [0]"),
        (lambda out: out["a"], "indexed with ['a']"),
        (lambda out: 3 in out, "searched"),
        (lambda out: out + 1, "calculated"),
        (lambda out: 1 - out, "calculated"),
        (lambda out: -out, "calculated"),
        (lambda out: out % 2, "calculated"),
        (lambda out: out == 1, "compared"),
        (lambda out: out < 1, "compared"),
        (lambda out: f"{out}", "made into text"),
        (lambda out: str(out), "made into text"),
        (lambda out: print(out), "made into text"),
        (lambda out: int(out), "made into a number"),
        (lambda out: range(out), "made into a number"),
        (lambda out: out(), "called"),
    ],
)
@pytest.mark.parametrize("kind", ["experiment", "stage"])
def test_an_output_is_not_a_value_and_says_so_at_the_users_line(
    kind: str, how: Callable[[Any], Any], verb: str
) -> None:
    with pytest.raises(DeclarationError) as caught:
        use(kind, how)

    line = inspect.unwrap(how).__code__.co_firstlineno
    assert str(caught.value).startswith(f"test_dsl_flow.py:{line}: the output ")
    assert verb in str(caught.value) and "while the flow is compiled" in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "how", "words"),
    [
        ("experiment", lambda out: out.bset, "no part 'bset'; did you mean 'best'?"),
        ("experiment", lambda out: out.best.checkpoin, "did you mean 'checkpoint'?"),
        ("experiment", lambda out: out.best.config.lr, "no part 'lr'; pass it to a stage"),
        ("stage", lambda out: out.rows, "the output prepare has no part 'rows'; pass it to a stage"),
        ("experiment", lambda out: combine(out), "pass its .best or its .results"),
    ],
)
def test_only_the_parts_of_an_output_can_be_named(kind: str, how: Callable[[Any], Any], words: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        use(kind, how)

    assert words in str(caught.value) and str(caught.value).startswith("test_dsl_flow.py:")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: evaluate(), "missing a required argument: 'best'; its arguments are best, data"),
        (lambda: evaluate(1, 2), "too many positional arguments"),
        (lambda: prepare(row=1), "unexpected keyword argument 'row'; its arguments are rows"),
        (lambda: train(), "missing a required argument: 'data'; its arguments after the configuration are data"),
        (lambda: train(1, 2), "too many positional"),
        (lambda: prepare(object()), "prepare(argument 1): not a JSON value: object"),
        (lambda: prepare({"a": [1, {2}]}), "prepare(argument 1).a[1]: not a JSON value: set"),
        (lambda: combine(x={1: 2}), "combine(x=): the key 1 is not text"),
        (lambda: prepare({"$output": "x"}), "reserved"),
        (lambda: prepare(uniform(0, 1)), "not a JSON value"),
    ],
)
def test_wrong_arguments_are_errors_of_compilation(call: Callable[[], Any], words: str) -> None:
    @flow
    def wrong() -> None:
        call()

    with pytest.raises(DeclarationError) as caught:
        compile_target(wrong)

    assert words in str(caught.value) and str(caught.value).startswith("test_dsl_flow.py:")


def test_an_output_belongs_to_one_flow() -> None:
    kept: list[Any] = []

    @flow
    def first() -> None:
        kept.append(prepare())

    @flow
    def second() -> None:
        evaluate(kept[0])

    compile_target(first)

    with pytest.raises(DeclarationError, match="the output prepare belongs to another flow"):
        compile_target(second)
    with pytest.raises(DeclarationError, match="outside of its flow"):
        evaluate(kept[0])


def test_a_flow_is_not_called_nested_empty_or_a_place_to_submit() -> None:
    @flow
    def outer() -> None:
        pipeline()

    @flow
    def empty() -> None:
        pass

    @flow
    def submits() -> None:
        prepare.submit()

    with pytest.raises(DeclarationError, match=r"not run by calling it; use pipeline\.run\(\)"):
        pipeline()
    with pytest.raises(NotYetError, match="flow inside a flow"):
        compile_target(outer)
    with pytest.raises(DeclarationError, match="calls no stage"):
        compile_target(empty)
    with pytest.raises(ScriptError, match="a flow does not submit"):
        compile_target(submits)


def test_the_best_of_an_experiment_without_a_metric_is_refused() -> None:
    @flow
    def no_metric() -> None:
        evaluate(train.options(metric=None, mode=None)(1).best)

    with pytest.raises(DeclarationError, match="train has no metric"):
        compile_target(no_metric)


def test_a_users_own_error_in_a_flow_passes_and_ends_the_tracing() -> None:
    @flow
    def broken() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        compile_target(broken)
    assert prepare(2) == [0, 1]


@pytest.mark.parametrize(
    ("given", "rows", "label", "deep"),
    [
        ({}, 10, "x", False),
        ({"rows": "7", "label": "7", "deep": "yes"}, 7, "7", True),
        ({"rows": 7, "deep": True}, 7, "x", True),
    ],
)
def test_parameters_are_read_by_their_type(given: dict[str, Any], rows: int, label: str, deep: bool) -> None:
    plan = compile_target(pipeline, parameters=given).plan

    assert plan.parameters == {"rows": rows, "label": label, "deep": deep}
    assert plan.steps[0].inputs == (rows,)


def test_parameters_of_other_types() -> None:
    @flow
    def typed(
        lr: float = 1,
        names: list[str] = [],  # noqa: B006
        limit: int | None = None,
        opts: dict[str, int] = {},  # noqa: B006
        free: Any = None,
    ) -> None:
        prepare()

    def read(**given: str) -> Any:
        return compile_target(typed, parameters=given).plan.parameters

    assert read() == {"lr": 1, "names": [], "limit": None, "opts": {}, "free": None}
    assert read(lr="1e-3", names='["a"]', limit="5", opts='{"a": 1}', free="[1]") == {
        "lr": 0.001,
        "names": ["a"],
        "limit": 5,
        "opts": {"a": 1},
        "free": [1],
    }
    assert read(limit="none", free="text")["free"] == "text"
    for name, text in {"lr": "x", "names": "a", "limit": "1.5", "opts": "[1]"}.items():
        with pytest.raises(DeclarationError, match=f"^-p {name}: is '"):
            read(**{name: text})


def test_unknown_parameters_and_those_without_a_default_are_refused() -> None:
    with pytest.raises(DeclarationError, match="no parameter 'row'; did you mean 'rows'"):
        compile_target(pipeline, parameters={"row": "1"})
    with pytest.raises(DeclarationError, match="-p deep: is 'maybe', not true or false"):
        compile_target(pipeline, parameters={"deep": "maybe"})
    with pytest.raises(DeclarationError, match="has no parameters"):
        compile_target(prepare, parameters={"rows": "1"})

    def no_default(rows: int) -> None: ...
    def variable(*rows: int) -> None: ...
    def not_json(rows: Any = object) -> None: ...

    for wrong, words in ((no_default, "no default"), (variable, "no name to set"), (not_json, "parameter rows")):
        with pytest.raises(DeclarationError, match=words):
            flow(wrong)


def test_a_plan_is_described_as_text_and_as_a_diagram() -> None:
    plan = compile_target(pipeline).plan

    text = describe_text(plan)
    assert text.splitlines()[0] == "flow pipeline: 4 trials, 2 stages"
    assert "parameters: deep=False, label=x, rows=10" in text
    assert "train (experiment, test_dsl_flow.py:" in text and "4 trials, cpu=1, after prepare" in text
    assert "2 grid points × 2 samples, seed " in text and "max acc" in text
    assert "5 × cpu=1" in text and "1 × cpu=2" in text and plan.digest in text
    assert [(shape.count, shape.request) for shape in shapes(plan)] == [(5, "cpu=1"), (1, "cpu=2")]
    diagram = mermaid(plan)
    assert diagram.splitlines()[0] == "flowchart TD"
    assert 's1[["train<br/>4 trials<br/>cpu=1"]]' in diagram
    assert "s0 --> s1" in diagram and "s1 -->|best.config, best.metrics, results| s2" in diagram
    assert describe_text(Plan.parse(plan.canonical())) == text
