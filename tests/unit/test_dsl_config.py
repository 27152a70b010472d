"""Config: a dictionary that also reads as attributes."""

import copy
import json
import pickle

import pytest

from flowctl.dsl.config import Config


def test_attributes_reach_any_depth() -> None:
    config = Config({"lr": 0.1, "opt": {"name": "sgd", "steps": [{"at": 3}]}})

    assert config.lr == config["lr"] == 0.1
    assert config.opt.name == "sgd"
    assert config.opt.steps[0].at == 3
    assert config == {"lr": 0.1, "opt": {"name": "sgd", "steps": [{"at": 3}]}}


def test_assigned_values_are_the_same_both_ways() -> None:
    config = Config(a=1)
    config.b = {"c": 2}
    config["d"] = [{"e": 3}]
    config.update({"f": {"g": 4}})
    del config.a

    assert (config.b.c, config.d[0].e, config.f.g, "a" in config) == (2, 3, 4, False)
    assert config.setdefault("h", {"i": 5}).i == 5
    assert (config | {"j": {"k": 6}}).j.k == 6


def test_a_missing_attribute_names_the_nearest_key() -> None:
    with pytest.raises(AttributeError, match=r"'learning_rat'.*did you mean 'learning_rate'"):
        _ = Config(learning_rate=1).learning_rat
    with pytest.raises(AttributeError, match="'x'"):
        del Config().x
    with pytest.raises(KeyError):
        Config()["x"]


def test_it_is_a_plain_dictionary_to_everything_else() -> None:
    config = Config({"a": {"b": [1]}})

    assert json.dumps(config) == '{"a": {"b": [1]}}'
    for twin in (pickle.loads(pickle.dumps(config)), copy.deepcopy(config), config.copy()):
        assert type(twin) is Config and type(twin.a) is Config and twin == config
    assert dict(**config) == config
