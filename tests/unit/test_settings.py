"""Settings: what the FLOWCTL_ variables mean, what is refused, and that the page about them is whole."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

import pytest

from flowctl.broker.calls import Times
from flowctl.broker.errors import SettingError, StateFolderRefused
from flowctl.broker.join import JoinToken
from flowctl.broker.settings import SECRETS, VARIABLES, Settings, expand_join, unknown_variables
from flowctl.broker.state_folder import make_private, state_folder
from flowctl.broker.store import times_of

ROOT = Path(__file__).resolve().parents[2]
TOKEN = JoinToken(broker="redis://:p@h:6379/0", key="ab" * 32, storage="s3://bucket/runs")


def test_state_folder_is_looked_for_in_order(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path)}

    assert state_folder({**home, "FLOWCTL_HOME": "/a/b", "XDG_STATE_HOME": "/x"}) == Path("/a/b")
    assert state_folder({**home, "XDG_STATE_HOME": "/x"}) == Path("/x/flowctl")
    assert state_folder({**home, "XDG_STATE_HOME": "relative"}) == tmp_path / ".local/state/flowctl"
    assert state_folder(home) == tmp_path / ".local/state/flowctl"


def test_state_folder_is_made_private(tmp_path: Path) -> None:
    settings = Settings.from_env({"FLOWCTL_HOME": str(tmp_path / "a" / "b")})

    assert stat.S_IMODE(settings.home.stat().st_mode) == 0o700


def test_state_folder_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)

    with pytest.raises(StateFolderRefused, match=f"chmod 700 {tmp_path}"):
        make_private(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_state_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    os.chown(tmp_path, 12345, -1)

    with pytest.raises(StateFolderRefused, match="belongs to user 12345"):
        Settings.from_env({"FLOWCTL_HOME": str(tmp_path)})


def test_defaults(tmp_path: Path) -> None:
    settings = Settings.from_env({"HOME": str(tmp_path)})

    assert settings == Settings(home=tmp_path / ".local/state/flowctl", storage=str(tmp_path / "flowctl_results"))
    assert (settings.broker_url, settings.lease_ttl_s, settings.dispatch_timeout_s) == (None, 15, 15)


def test_variables_are_read_and_empty_ones_count_as_unset(tmp_path: Path) -> None:
    env = {
        "FLOWCTL_HOME": str(tmp_path),
        "FLOWCTL_BROKER_URL": "redis://h",
        "FLOWCTL_STORAGE": "s3://b",
        "FLOWCTL_LEASE_TTL_S": "7.5",
        "FLOWCTL_DISPATCH_TIMEOUT_S": "2",
        "FLOWCTL_RESERVE_AFTER_S": "30",
        "FLOWCTL_RESOURCES": "cpu=2",
        "FLOWCTL_JOIN": "",
    }

    settings = Settings.from_env(env)

    assert (settings.broker_url, settings.storage, settings.resources) == ("redis://h", "s3://b", "cpu=2")
    assert (settings.lease_ttl_s, settings.dispatch_timeout_s, settings.join) == (7.5, 2, None)
    assert times_of(settings) == Times(lease_ms=7_500, dispatch_ms=2_000, boot_gone_ms=75_000, reserve_ms=30_000)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("FLOWCTL_LEASE_TTL_S", "4.9"),
        ("FLOWCTL_LEASE_TTL_S", "nan"),
        ("FLOWCTL_LEASE_TTL_S", "inf"),
        ("FLOWCTL_LEASE_TTL_S", "soon"),
        ("FLOWCTL_DISPATCH_TIMEOUT_S", "0"),
        ("FLOWCTL_RESERVE_AFTER_S", "0.5"),
        ("FLOWCTL_BROKER_URL", "ftp://h"),
        ("FLOWCTL_JOIN", "hello"),
    ],
)
def test_unusable_values_are_refused_by_the_variables_name(tmp_path: Path, name: str, text: str) -> None:
    with pytest.raises(SettingError) as caught:
        Settings.from_env({"FLOWCTL_HOME": str(tmp_path / "home"), name: text})

    assert str(caught.value).startswith(f"{name}: ")
    assert caught.value.exit_code == 2
    assert not (tmp_path / "home").exists()


def test_join_token_is_one_plain_word_and_reads_back() -> None:
    text = TOKEN.encode()

    assert re.fullmatch(r"[A-Za-z0-9_-]+", text)
    assert JoinToken.decode(text) == TOKEN
    assert "redis" not in repr(TOKEN)


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_join_token_that_was_cut_is_refused_and_shows_no_secret(cut: int) -> None:
    with pytest.raises(SettingError) as caught:
        JoinToken.decode(TOKEN.encode()[:-cut])

    assert "flowctl up --listen" in str(caught.value)
    assert TOKEN.key not in str(caught.value)


def test_join_alone_gives_server_key_and_storage(tmp_path: Path) -> None:
    env = {"FLOWCTL_HOME": str(tmp_path), "FLOWCTL_JOIN": TOKEN.encode()}

    settings = Settings.from_env(env)

    assert (settings.broker_url, settings.storage, settings.join) == (TOKEN.broker, TOKEN.storage, TOKEN)
    assert expand_join(env)["FLOWCTL_SECRET_KEY"] == TOKEN.key


def test_variables_win_over_the_same_part_of_join(tmp_path: Path) -> None:
    env = {"FLOWCTL_HOME": str(tmp_path), "FLOWCTL_JOIN": TOKEN.encode(), "FLOWCTL_BROKER_URL": "redis://other"}

    assert Settings.from_env(env).broker_url == "redis://other"


def test_settings_show_no_secret(tmp_path: Path) -> None:
    settings = Settings.from_env({"FLOWCTL_HOME": str(tmp_path), "FLOWCTL_JOIN": TOKEN.encode()})

    assert TOKEN.key not in repr(settings)
    assert ":p@" not in repr(settings)


def test_unknown_variables_are_named_with_the_nearest_known_one() -> None:
    env = {"FLOWCTL_STORGE": "x", "FLOWCTL_XYZZY": "1", "FLOWCTL_HOME": "/h", "PATH": "/bin"}

    assert unknown_variables(env) == {"FLOWCTL_STORGE": "FLOWCTL_STORAGE", "FLOWCTL_XYZZY": None}


def test_every_variable_is_documented_and_nothing_else() -> None:
    page = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")

    assert set(re.findall(r"^\| `(FLOWCTL_[A-Z_]+)`", page, re.MULTILINE)) == {variable.name for variable in VARIABLES}


def test_secrets_are_those_that_open_something() -> None:
    assert set(SECRETS) == {"FLOWCTL_BROKER_URL", "FLOWCTL_JOIN", "FLOWCTL_PASSWORD", "FLOWCTL_SECRET_KEY"}
