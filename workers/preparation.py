"""What a guardian reads before user code may run: the run as signed, the configuration, the inputs, where to go on
from.

Runs in the storage thread. Ends with the claim record on storage: until it is written, nothing runs.
"""

import contextlib
import hashlib
import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from flowctl.broker.calls import Fence
from flowctl.broker.store import Broker
from flowctl.dsl.errors import RefusedError, UnreachableError
from flowctl.dsl.names import parse_unit
from flowctl.dsl.plan import EXPERIMENT, Step
from flowctl.storage.attempt import AttemptFolder
from flowctl.storage.errors import NotFound, StorageUnreachable
from flowctl.storage.location import Location
from flowctl.storage.manifest import ManifestRef
from flowctl.storage.run_folder import RunFolder
from flowctl.storage.signing import Keyring
from flowctl.storage.trial_reader import TrialReader
from flowctl.storage.trial_records import Outcome
from flowctl.workers.devices import Device
from flowctl.workers.grant import Grant
from flowctl.workers.runs.inputs import NoInput, resolve

log = logging.getLogger("flowctl")
PATIENCE_S = 60.0
"""How long a claimed attempt waits for a storage that was seen before it is handed back."""


class CannotSee(UnreachableError):
    """This machine does not see the run's folder: another one may, so nothing is waited for."""


@dataclass(frozen=True)
class BundleGrant:
    """One bundle of the attempt's placement group: where it is, and what is booked for it there."""

    worker: str
    machine: str
    grant: Grant

    @classmethod
    def from_reply(cls, value: Mapping[str, Any]) -> "BundleGrant":
        """As the claim's answer says it."""
        offered = tuple(Device.from_json(device) for device in json.loads(value["devices"] or "[]"))
        return cls(value["worker"] or "", value["machine"] or "", Grant(value["tokens"], offered))

    def to_json(self) -> dict[str, Any]:
        """As the trial process is told."""
        return {"worker": self.worker, "machine": self.machine, **self.grant.context}


@dataclass(frozen=True)
class Claimed:
    """What the claim's answer said."""

    fence: Fence
    attempt: int
    fails: int
    now_ms: int
    location: str
    token: str
    """Drawn at submission: tells this run from an earlier one of the same name."""
    is_first: bool
    """No earlier attempt can have left anything: nothing need be read of it."""
    tokens: Mapping[str, int] = field(default_factory=dict)
    """What is booked for it on this worker, in exact units; devices each on their own (`gpu:<id>`)."""
    bundles: tuple[BundleGrant, ...] = ()
    """Those of its placement group, the first being its own; empty for a request of one bundle."""


@dataclass(frozen=True)
class Prepared:
    """An attempt that may begin; or `adopted`, the outcome of an earlier attempt that already decided the trial."""

    folder: AttemptFolder
    reader: TrialReader
    step: Step
    payload: Path
    config: Mapping[str, Any]
    inputs: list[Any]
    keyword_inputs: dict[str, Any]
    base: ManifestRef | None
    base_folder: Path | None
    """The checkpoint that it goes on from, restored and verified on this machine."""
    rows_before: tuple[Mapping[str, Any], ...]
    """The rows up to that checkpoint."""
    adopted: Outcome | None
    missing: str | None = None
    """Why an input of it does not exist and never will: it fails without running."""

    @property
    def time_before_s(self) -> float:
        """How long the trial had run at that checkpoint."""
        return float(self.rows_before[-1]["time_total_s"]) if self.rows_before else 0.0


@dataclass(frozen=True)
class Bench:
    """Where an attempt is prepared: who prepares it, with which keys, in which local folders."""

    broker: Broker
    keyring: Keyring
    worker: str
    boot: str
    cache: Path
    folder: Path


def prepare(claimed: Claimed, bench: Bench, *, is_wanted: Callable[[], bool]) -> Prepared:
    """Reads, then writes the claim record. Raises StorageUnreachable after PATIENCE_S, all other errors at once."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return _prepare(claimed, bench)
        except StorageUnreachable:
            if time.monotonic() > deadline or not is_wanted():
                raise
            time.sleep(0.5)


def _prepare(claimed: Claimed, bench: Bench) -> Prepared:
    fence, broker = claimed.fence, bench.broker
    unit = parse_unit(fence.unit)
    run_folder = _open_run(claimed.location, unit.run, claimed.token, bench.keyring)
    step = run_folder.load_plan().step(unit.step)
    folder = AttemptFolder(run_folder, unit.step, unit.index, fence.epoch, fence.nonce)
    reader = TrialReader(run_folder, unit.step, unit.index)
    before = _Before() if claimed.is_first else _look_back(claimed, bench, run_folder, reader)
    inputs, keyword_inputs, missing = [], {}, None
    try:
        inputs = resolve(list(step.inputs), broker=broker, run=unit.run, run_folder=run_folder)
        keyword_inputs = resolve(dict(step.keyword_inputs), broker=broker, run=unit.run, run_folder=run_folder)
    except NoInput as error:
        missing = str(error)
    prepared = Prepared(
        folder=folder,
        reader=reader,
        step=step,
        payload=_payload(run_folder, step.code, bench.cache),
        config=run_folder.read_config(unit.step, unit.index) if step.kind == EXPERIMENT else {},
        inputs=inputs,
        keyword_inputs=keyword_inputs,
        base=before.base,
        base_folder=before.folder,
        rows_before=before.rows,
        adopted=before.adopted,
        missing=missing,
    )
    folder.write_claim(
        attempt=claimed.attempt,
        worker=bench.worker,
        boot=bench.boot,
        server_ms=claimed.now_ms,
        base=before.base,
        outcomes_seen=before.outcomes,
        inputs=_small([inputs, keyword_inputs]),
    )
    return prepared


@dataclass(frozen=True)
class _Before:
    """What earlier attempts left."""

    outcomes: tuple[tuple[int, str], ...] = ()
    adopted: Outcome | None = None
    base: ManifestRef | None = None
    folder: Path | None = None
    rows: tuple[Mapping[str, Any], ...] = ()


def _look_back(claimed: Claimed, bench: Bench, run_folder: RunFolder, reader: TrialReader) -> _Before:
    """What lost attempts left in the server is written first; then the newest checkpoint that is whole is the base."""
    unit = claimed.fence.unit
    keep_tail(bench.broker, unit, run_folder, reader.step, reader.index, before_epoch=claimed.fence.epoch)
    outcomes = tuple((outcome.fence.epoch, outcome.fence.nonce) for outcome in reader.outcomes())
    adopted = reader.final_outcome()
    if adopted is not None:
        return _Before(outcomes, adopted)
    target = bench.folder / "checkpoint-base"
    shutil.rmtree(target, ignore_errors=True)
    base = reader.restore_newest(target)
    for damage in reader.warnings:
        log.warning("%s: %s", unit, damage)
    if base is None:
        return _Before(outcomes)
    rows = tuple(row for row in reader.rows() if row["training_iteration"] <= base.iteration)
    return _Before(outcomes, None, base, target, rows)


def open_run(location: str, run: str, token: str, keyring: Keyring) -> RunFolder:
    """The folder of the run that was submitted with this token. Raises CannotSee if it is not there."""
    try:
        folder = RunFolder(Location.open(location, create=False), run, keyring)
        record = folder.load_run()
    except (StorageUnreachable, NotFound) as error:
        raise CannotSee(error.what, place=error.place, cure=error.cure) from error
    if record.get("token") != token:
        raise RefusedError(
            f"the run folder at {folder.folder.url} is another run's of the same name", cure="give the run another name"
        )
    return folder


_open_run = lru_cache(maxsize=16)(open_run)


def _payload(run_folder: RunFolder, code: str, cache: Path) -> Path:
    """The verified code as a local file. Its name is its digest, so that a changed file on storage is another one."""
    path = _verified.get((run_folder, code))
    if path is None or not path.exists():
        data = run_folder.load_payload(code)
        path = cache / (hashlib.sha256(data).hexdigest() + ".pkl")
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = path.with_suffix(f".{os.getpid()}")
        fresh.write_bytes(data)
        fresh.rename(path)
        _verified[run_folder, code] = path
    return path


_verified: dict[tuple[RunFolder, str], Path] = {}


def keep_tail(broker: Broker, unit: str, run_folder: RunFolder, step: str, index: int, *, before_epoch: int) -> None:
    """Writes the tail rows of attempts below `before_epoch` to storage and cuts them from the server; repeating it is
    harmless.
    """
    rows = [json.loads(text) for text in broker.client.lrange(f"fc:tail:{unit}", 0, -1)]
    fences = sorted({(int(row["epoch"]), str(row["nonce"])) for row in rows if int(row["epoch"]) < before_epoch})
    for epoch, nonce in fences:
        mine = sorted(
            (row for row in rows if row["epoch"] == epoch and row["nonce"] == nonce), key=lambda row: int(row["seq"])
        )
        AttemptFolder(run_folder, step, index, epoch, nonce).write_rows(int(mine[0]["seq"]), mine)
        broker.calls.tail_trim(Fence(unit, epoch, nonce), seq=int(mine[-1]["seq"]))


def _small(inputs: Any) -> Any:
    """Resolved inputs as the claim keeps them; large ones by their digest."""
    text = json.dumps(inputs, sort_keys=True)
    if len(text) <= 4096:
        return inputs
    return {"digest": "sha256:" + hashlib.sha256(text.encode()).hexdigest(), "size": len(text)}


def forget_payloads(cache: Path, *, keep: int = 200) -> None:
    """Keeps the newest `keep` files of the cache."""
    with contextlib.suppress(OSError):
        files = sorted(cache.glob("*.pkl"), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in files[keep:]:
            path.unlink(missing_ok=True)
