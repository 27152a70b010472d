"""The run folder: everything of a run that lasts, below `<storage>/<run id>`.

A folder without `run.json` is no run: it is written last and exclusively, and its signature covers plan, payload and
place. Records of the plan, the payload and the trials never change after that, so they are cached per process by
digest or by the run's signature; `run.json` itself is read each time.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from flowctl.dsl import jsonvalue, names
from flowctl.storage.errors import AlreadyExists, DamagedRecord, NotFound, StorageError, StorageRefused
from flowctl.storage.location import Location
from flowctl.storage.records import Damage, decode_record, encode_record, strict
from flowctl.storage.signing import Keyring
from flowctl.storage.trial_files import SHARD, shard_file

if TYPE_CHECKING:
    from flowctl.dsl.plan import Plan

_CODE_KEY = re.compile(r"(?=[^.])[A-Za-z0-9._-]{1,120}")
_JOURNAL = re.compile(r"(\d{8,})\.json", re.ASCII)


@dataclass(frozen=True)
class TrialShard:
    """The configurations of a step's trials from `number` × 1000 on, and what each asks for where that was computed
    from it: `{"request": …}`, or `{"failed": cause}`.
    """

    step: str
    number: int
    configs: Sequence[Mapping[str, Any]]
    asks: Sequence[Mapping[str, Any]]


class RunFolder:
    """The folder of the run `run` below `location`. Making one touches nothing.

    `warnings` collects what was damaged and passed over.
    """

    def __init__(self, location: Location, run: str, keyring: Keyring) -> None:
        self.location = location
        self.run = names.check_run_id(run)
        self.keyring = keyring
        self.folder = location.child(run)
        self.warnings: list[Damage] = []
        self._record: dict[str, Any] | None = None

    # ---- the run as submitted

    def create(
        self,
        run_record: Mapping[str, Any],
        plan: Plan,
        payload: Mapping[str, bytes],
        *,
        shards: Iterable[TrialShard] = (),
    ) -> dict[str, Any]:
        """Write payload, plan, shards and, exclusively and last, `run.json`; returns that record.

        `shards` are those of the steps whose requests were computed at submission: nobody else can make them. Raises
        `AlreadyExists` if the run exists. A failure leaves no run, and nothing of it where that is possible.
        """
        files: dict[str, bytes] = {}
        entries: dict[str, Any] = {}
        for key, data in payload.items():
            if not _CODE_KEY.fullmatch(key):
                raise StorageRefused(f"{key!r} cannot name a piece of code", place=self.folder.url)
            path = f"payload/{key}.pkl"
            files[path] = data
            entries[key] = {"path": path, "size": len(data), "digest": _digest(data)}
        files["plan.json"] = plan.canonical()
        fields = {**run_record, "plan_digest": plan.digest, "payload": entries, "location": self.location.url}
        fields = {key: value for key, value in fields.items() if key not in ("format", "kind", "run", "sig")}
        data = encode_record(self.keyring, kind="run", run=self.run, fields=strict(fields, "run.json"))
        if self.exists():
            raise self._in_use()
        try:
            for path, content in files.items():
                self.folder.write(path, content)
            for shard in shards:
                self._put_shard(shard.step, shard.number, shard.configs, asks=shard.asks, plan_digest=plan.digest)
            self.folder.write("run.json", data, exclusive=True)
        except AlreadyExists as error:
            raise self._in_use() from error
        except StorageError:
            with suppress(StorageError):
                if not self.exists():
                    self.folder.delete("payload")
                    self.folder.delete("plan.json")
                    self.folder.delete("steps")
                    if not self.folder.list():
                        self.location.delete(self.run)
            raise
        return self.load_run()

    def exists(self) -> bool:
        """Whether the run exists, which is whether `run.json` does."""
        return self.folder.exists("run.json")

    def load_run(self) -> dict[str, Any]:
        """`run.json`, verified and read anew. Raises `NotFound`, `DamagedRecord`, `BadSignature`, `UnknownKey`."""
        try:
            data = self.folder.read("run.json")
        except NotFound as error:
            cure = "check the run's name and the storage address"
            raise NotFound(f"there is no run {self.run!r} here", place=self.location.url, cure=cure) from error
        self._record = self._decode(data, kind="run", path="run.json")
        return self._record

    def load_plan(self) -> Plan:
        """The plan, which is the one that `run.json` names. Raises `DamagedRecord`."""
        digest = self._run_record()["plan_digest"]
        return _plan(self.folder, str(digest))

    def load_payload(self, key: str) -> bytes:
        """The pickled code `key`, which is what `run.json` names. Raises `DamagedRecord`; nothing is unpickled here."""
        entry = self._run_record()["payload"].get(key)
        if not isinstance(entry, Mapping):
            raise NotFound(f"the run has no code {key!r}", place=self.folder.url)
        data = self.folder.read(str(entry["path"]))
        if len(data) != entry["size"] or _digest(data) != entry["digest"]:
            cure = "nothing of it was run; submit again"
            raise DamagedRecord(
                "the code is not what was signed", place=f"{self.folder.url}/{entry['path']}", cure=cure
            )
        return data

    # ---- configurations, 1000 trials to a file

    def write_shard(self, step: str, shard: int, configs: Sequence[Mapping[str, Any]]) -> None:
        """Write the configurations of the trials from `shard` × 1000 on; the same ones again are harmless."""
        self._put_shard(step, shard, configs)

    def _put_shard(
        self,
        step: str,
        shard: int,
        configs: Sequence[Mapping[str, Any]],
        *,
        asks: Sequence[Mapping[str, Any]] | None = None,
        plan_digest: str | None = None,
    ) -> None:
        names.check_step_name(step)
        if not 0 < len(configs) <= SHARD:
            raise StorageRefused(f"a shard holds 1 to {SHARD} trials, not {len(configs)}", place=self.folder.url)
        fields = {
            "step": step,
            "shard": shard,
            "first": shard * SHARD,
            "configs": [
                strict(dict(config), f"config of {step}/{shard * SHARD + i}") for i, config in enumerate(configs)
            ],
        }
        if asks is not None:
            fields |= {"plan_digest": plan_digest, **_packed(asks)}
        data = encode_record(self.keyring, kind="trials", run=self.run, fields=fields)
        self.folder.write(shard_file(step, shard), data)

    def read_shard(self, step: str, shard: int) -> list[dict[str, Any]]:
        """The configurations of a shard, as new dictionaries. Raises `NotFound`, `DamagedRecord`."""
        return [jsonvalue.decode(config) for config in self._shard(step, shard).configs]

    def read_asks(self, step: str, shard: int) -> list[dict[str, Any]]:
        """What each trial of a shard asks for, as `{"request": …}` or `{"failed": cause}`.

        Raises `NotFound`, also for a shard that holds configurations alone, and `DamagedRecord`.
        """
        found = self._shard(step, shard)
        if found.asks is None:
            raise NotFound(f"the requests of {step!r} are not recorded", place=self.folder.url, cure="submit again")
        return [found.answers[number] for number in found.asks]

    def read_config(self, step: str, index: int) -> dict[str, Any]:
        """The configuration of a trial, as a new dictionary. Raises `NotFound`, `DamagedRecord`."""
        configs = self._shard(step, index // SHARD).configs
        if not 0 <= index % SHARD < len(configs):
            raise NotFound(f"step {step!r} has no trial {index}", place=self.folder.url)
        config: dict[str, Any] = jsonvalue.decode(configs[index % SHARD])
        return config

    def _shard(self, step: str, shard: int) -> _Shard:
        names.check_step_name(step)
        record = self._run_record()
        return _shard(_Source(self, str(record["sig"]["hmac"]), str(record["plan_digest"])), step, shard)

    # ---- the journal

    def journal_write(self, number: int, events: Sequence[Mapping[str, Any]]) -> None:
        """Write the events of journal segment `number`; the same ones again are harmless.

        Raises `AlreadyExists` if other events stand there: whoever holds the journal now takes the next number, and
        `journal_read` drops events that stand twice (by their `id`).
        """
        fields = {"number": number, "events": [strict(dict(event), "event") for event in events]}
        data = encode_record(self.keyring, kind="journal", run=self.run, fields=fields)
        path = f"journal/{number:08d}.json"
        try:
            self.folder.write(path, data, exclusive=True)
        except AlreadyExists:
            if self.folder.read(path) != data:
                raise

    def journal_numbers(self) -> list[int]:
        """The numbers of the journal's segments, ascending."""
        matches = (_JOURNAL.fullmatch(name) for name in self.folder.list("journal"))
        return sorted(int(match[1]) for match in matches if match)

    def journal_read(self) -> list[dict[str, Any]]:
        """All events in order, each once; damaged segments are passed over and noted in `warnings`."""
        events: list[dict[str, Any]] = []
        seen: set[str] = set()
        for number in self.journal_numbers():
            path = f"journal/{number:08d}.json"
            try:
                data = self.folder.read(path)
                record = self._decode(data, kind="journal", path=path, expect={"number": number})
            except (DamagedRecord, NotFound) as error:
                self.warnings.append(Damage(path, str(error)))
                continue
            for event in record["events"]:
                name = event.get("id")
                if name is None or name not in seen:
                    seen.add(name)
                    events.append(jsonvalue.decode(event))
        return events

    # ---- inside

    def _run_record(self) -> dict[str, Any]:
        return self._record if self._record is not None else self.load_run()

    def _decode(self, data: bytes, *, kind: str, path: str, expect: Mapping[str, Any] | None = None) -> dict[str, Any]:
        place = f"{self.folder.url}/{path}"
        return decode_record(data, keyring=self.keyring, kind=kind, run=self.run, path=place, expect=expect)

    def _in_use(self) -> AlreadyExists:
        cure = "choose another --name"
        return AlreadyExists(f"a run {self.run!r} exists already", place=self.location.url, cure=cure)


class _Source:
    """Where a shard is read from; equal for one run as signed, so that a cache never outlives it."""

    def __init__(self, folder: RunFolder, identity: str, plan_digest: str) -> None:
        self.folder = folder
        self.identity = identity
        self.plan_digest = plan_digest

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Source) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[str, str, tuple[str, ...]]:
        return (self.folder.folder.url, self.identity, self.folder.keyring.ids)


@dataclass(frozen=True)
class _Shard:
    configs: tuple[dict[str, Any], ...]
    answers: tuple[dict[str, Any], ...] = ()
    asks: tuple[int, ...] | None = None
    """Per trial the number of its answer; None where nothing was computed per trial."""


@lru_cache(maxsize=8)
def _shard(source: _Source, step: str, shard: int) -> _Shard:
    path = shard_file(step, shard)
    folder = source.folder
    expect = {"step": step, "shard": shard}
    record = folder._decode(folder.folder.read(path), kind="trials", path=path, expect=expect)
    configs = tuple(record["configs"])
    if "asks" not in record:
        return _Shard(configs)
    if record.get("plan_digest") != source.plan_digest:  # left by a submission that never got as far as run.json
        raise NotFound(f"there is no {path} of this run", place=folder.folder.url)
    answers, asks = tuple(record["answers"]), tuple(record["asks"])
    if len(asks) != len(configs) or any(type(each) is not int or not 0 <= each < len(answers) for each in asks):
        raise DamagedRecord("the requests do not fit the configurations", place=path, cure="submit again")
    return _Shard(configs, answers, asks)


def _packed(asks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Each different answer once, and per trial its number."""
    numbers: dict[bytes, int] = {}
    answers: list[Mapping[str, Any]] = []
    of: list[int] = []
    for each in asks:
        text = jsonvalue.canonical(each)
        if text not in numbers:
            numbers[text] = len(answers)
            answers.append(each)
        of.append(numbers[text])
    return {"answers": answers, "asks": of}


@lru_cache(maxsize=8)
def _plan(folder: Location, digest: str) -> Plan:
    from flowctl.dsl.plan import Plan

    data = folder.read("plan.json")
    if _digest(data) != digest:
        raise DamagedRecord("the plan is not what was signed", place=f"{folder.url}/plan.json", cure="submit again")
    return Plan.parse(data)


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"
