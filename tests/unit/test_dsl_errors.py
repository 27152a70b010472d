"""Errors: one line, picklable, the exit codes of the command line."""

import pickle

import pytest

from flowctl.dsl import errors
from flowctl.dsl.errors import DeclarationError, FlowctlError, NotYetError, RunFailed, ValueRefused
from flowctl.dsl.output import OutputError


def test_error_reads_as_place_what_and_cure_in_one_line() -> None:
    error = DeclarationError("is -1,\nmust be at least 1", place="digits.py:12: num_samples", cure="leave it out")

    assert str(error) == "digits.py:12: num_samples: is -1, must be at least 1; leave it out"
    assert str(FlowctlError("alone")) == "alone"


@pytest.mark.parametrize("kind", [DeclarationError, NotYetError, ValueRefused, errors.RefusedError, OutputError])
def test_error_survives_pickling(kind: type[FlowctlError]) -> None:
    error = pickle.loads(pickle.dumps(kind("what", place="here", cure="cure")))

    assert type(error) is kind
    assert (error.what, error.place, error.cure, str(error)) == ("what", "here", "cure", "here: what; cure")


def test_run_failed_keeps_its_causes_through_pickling() -> None:
    error = pickle.loads(pickle.dumps(RunFailed("run a failed", run="a", causes=["x", "y"], cause_type="ValueError")))

    assert (error.run, error.causes, error.cause_type) == ("a", ("x", "y"), "ValueError")


def test_exit_codes_are_those_of_the_design() -> None:
    codes = {
        name: kind.exit_code
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, FlowctlError)
    }

    assert codes == {
        "FlowctlError": 1,
        "DeclarationError": 2,
        "NotYetError": 2,
        "ScriptError": 2,
        "ValueRefused": 2,
        "RefusedError": 5,
        "UnreachableError": 4,
        "RunFailed": 1,
    }
