"""Keys and signatures: what is made, what is believed, and what is not."""

from __future__ import annotations

import json
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from run_folders import KEY, keyring

from flowctl.storage.errors import BadSignature, DamagedRecord, StorageRefused, UnknownKey
from flowctl.storage.records import decode_record, encode_record
from flowctl.storage.signing import Keyring


def test_key_is_made_once_and_private(tmp_path: Path) -> None:
    first = Keyring.from_env({}, tmp_path / "state", create=True)
    second = Keyring.from_env({}, tmp_path / "state", create=True)

    file = tmp_path / "state" / "secret.key"
    assert first.ids == second.ids == (first.key_id,)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert len(bytes.fromhex(file.read_text().strip())) == 32
    assert [one.name for one in file.parent.iterdir()] == ["secret.key"]


def test_processes_that_make_it_at_once_agree(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: Keyring.from_env({}, tmp_path, create=True).key_id, range(24)))

    assert len(set(made)) == 1


def test_variable_signs_and_the_file_still_verifies(tmp_path: Path) -> None:
    of_file = Keyring.from_env({}, tmp_path, create=True)
    both = Keyring.from_env({"FLOWCTL_SECRET_KEY": f"{'a' * 32},{'b' * 32}"}, tmp_path, create=False)

    assert len(both.ids) == 3
    assert both.key_id == both.ids[0] != of_file.key_id
    both.verify(of_file.sign({"a": 1}), what="record")


def test_variable_makes_no_file(tmp_path: Path) -> None:
    Keyring.from_env({"FLOWCTL_SECRET_KEY": KEY}, tmp_path, create=True)

    assert list(tmp_path.iterdir()) == []


def test_no_key_is_said_with_the_cure(tmp_path: Path) -> None:
    with pytest.raises(UnknownKey, match="flowctl up"):
        Keyring.from_env({}, tmp_path, create=False)


def test_weak_or_open_keys_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageRefused, match="at least 32") as caught:
        Keyring.from_env({"FLOWCTL_SECRET_KEY": "hunter2"}, tmp_path, create=False)
    assert "hunter2" not in str(caught.value)

    Keyring.from_env({}, tmp_path, create=True)
    (tmp_path / "secret.key").chmod(0o644)
    with pytest.raises(StorageRefused, match="chmod 600"):
        Keyring.from_env({}, tmp_path, create=False)


def test_unwritable_state_folder_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(StorageRefused, match="cannot be made"):
        Keyring.from_env({}, tmp_path / "file" / "state", create=True)


def test_signature_does_not_depend_on_order_and_survives_json() -> None:
    keys = keyring()
    signed = keys.sign({"b": [1.0, 2**80, "ünï"], "a": {"y": None, "x": True}})
    again = json.loads(json.dumps(dict(reversed(signed.items()))))

    keys.verify(again, what="record")
    assert keys.sign(signed) == signed


@pytest.mark.parametrize("change", [{"a": 2}, {"b": 1}, {"sig": None}, {"sig": {"key_id": "x"}}, {"a": 1.0}])
def test_changed_record_is_not_believed(change: dict[str, object]) -> None:
    signed = {**keyring().sign({"a": 1}), **change}

    with pytest.raises(BadSignature) as caught:
        keyring().verify(signed, what="the claim")
    assert "the claim" in str(caught.value)
    assert caught.value.exit_code == 5


def test_foreign_key_is_named_with_the_cure() -> None:
    other = keyring("o" * 40)

    with pytest.raises(UnknownKey, match=other.key_id) as caught:
        keyring().verify(other.sign({"a": 1}), what="the claim")
    assert "FLOWCTL_SECRET_KEY" in str(caught.value)


def test_record_says_what_and_where_it_is() -> None:
    data = encode_record(keyring(), kind="claim", run="r", fields={"epoch": 1})

    assert decode_record(data, keyring=keyring(), kind="claim", run="r", path="p", expect={"epoch": 1})["epoch"] == 1
    for wrong in ({"kind": "outcome"}, {"run": "other"}, {"expect": {"epoch": 2}}):
        with pytest.raises(DamagedRecord):
            decode_record(data, **{"keyring": keyring(), "kind": "claim", "run": "r", "path": "p", **wrong})  # type: ignore[arg-type]


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"format": 2}', b'{"kind": "claim"}'])
def test_cut_record_is_damage(data: bytes) -> None:
    with pytest.raises(DamagedRecord):
        decode_record(data, keyring=keyring(), kind="claim", run="r", path="p")


def test_every_cut_of_a_record_is_damage() -> None:
    data = encode_record(keyring(), kind="claim", run="r", fields={"epoch": 1, "text": "ünï"})

    for length in range(len(data) - 1):
        with pytest.raises(DamagedRecord):
            decode_record(data[:length], keyring=keyring(), kind="claim", run="r", path="p")


def test_undecodable_text_is_escaped_and_still_verifies() -> None:
    data = encode_record(keyring(), kind="outcome", run="r", fields={"text": "file \udcff"})

    assert decode_record(data, keyring=keyring(), kind="outcome", run="r", path="p")["text"] == "file \\udcff"
