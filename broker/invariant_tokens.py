"""Invariants of tokens: rows are the truth, sums follow them, nothing is booked beyond an offer, gangs are whole."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from flowctl.broker.invariant_data import ACTIVE, Data

WHOLE = 10_000
DEVICE = "gpu:"


def split_row(name: str) -> tuple[str, str, int]:
    """A row's unit, epoch and bundle, from `unit@epoch` or `unit@epoch#2`."""
    unit, _, rest = name.rpartition("@")
    epoch, _, bundle = rest.partition("#")
    return unit, epoch, int(bundle or 0)


def offers(client: Any, data: Data) -> Iterator[str]:
    """Per boot: sums equal their rows, nothing is held beyond the offer (devices each for itself), fc:free says the
    same.
    """
    free = {boot: json.loads(text) for boot, text in client.hgetall("fc:free").items()}
    for boot, record in data.boots.items():
        offer = _numbers(client.hgetall(f"fc:offer:{boot}"))
        used = {dim: n for dim, n in _numbers(client.hgetall(f"fc:used:{boot}")).items() if n}
        total: Counter[str] = Counter()
        held: Counter[str] = Counter()
        for row in data.rows[boot].values():
            total.update(row["v"])
            if row["s"] == "held":
                held.update(row["v"])
        if used != {dim: n for dim, n in total.items() if n}:
            yield f"boot {boot}: fc:used says {used}, its rows sum to {dict(total)}"
        # orphans may exceed the offer: they are what really runs there, whatever was offered since
        for dim, n in sorted(held.items()):
            if n > offer.get(dim, 0):
                yield f"boot {boot}: {n} of {dim} are held, {offer.get(dim, 0)} are offered"
        if boot not in free:
            yield f"boot {boot}: no row in fc:free"
            continue
        yield from _free(boot, free[boot], {dim: n - total.get(dim, 0) for dim, n in offer.items()})
        accepting = int(record.get("state") == "up" and record.get("accepting") == "1")
        if free[boot]["a"] != accepting:
            yield f"boot {boot}: fc:free says accepting {free[boot]['a']}, its record says {accepting}"
    for boot in sorted(free.keys() - data.boots.keys()):
        yield f"boot {boot}: a row in fc:free, but it is not known"


def _free(boot: str, row: Mapping[str, Any], left: Mapping[str, int]) -> Iterator[str]:
    devices = {dim: n for dim, n in left.items() if dim.startswith(DEVICE)}
    said = {f"{DEVICE}{name}": n for name, n in row.get("d") or ()}
    if said != devices:
        yield f"boot {boot}: fc:free says {said} of its devices, offer minus used is {devices}"
    plain = {dim: n for dim, n in left.items() if not dim.startswith(DEVICE)}
    if devices:
        plain["gpu.part"] = max(0, *devices.values())
        plain["gpu.whole"] = sum(n >= WHOLE for n in devices.values())
    if row["f"] != plain and (plain or row["f"]):
        yield f"boot {boot}: fc:free says {row['f']}, offer minus used is {plain}"


def sums(client: Any, data: Data) -> Iterator[str]:
    """What is summed over boots: offers, pools in use, shares of runs."""
    total: Counter[str] = Counter()
    for boot in data.boots:
        for dim, n in _numbers(client.hgetall(f"fc:offer:{boot}")).items():
            total["gpu" if dim.startswith(DEVICE) else dim] += n
    pools: Counter[str] = Counter()
    shares: Counter[str] = Counter()
    for named in data.rows.values():
        for name, row in named.items():
            pools.update(row.get("p") or {})
            shares[name.split(":", 1)[0]] += row.get("w") or 0
    for key, true in (("fc:total", total), ("fc:poolused", pools), ("fc:shares", shares)):
        said = {name: n for name, n in _numbers(client.hgetall(key)).items() if n}
        if said != {name: n for name, n in true.items() if n}:
            yield f"{key} says {said}, the rows sum to {dict(true)}"


def rows(_: Any, data: Data) -> Iterator[str]:
    """Every held row belongs to a placed or running unit at its epoch; an orphan to none."""
    for boot, named in data.rows.items():
        for name, row in named.items():
            unit_id, epoch, bundle = split_row(name)
            unit = data.units.get(unit_id)
            is_its = (
                unit is not None
                and unit.state in ACTIVE
                and boot == _boot_of(unit.fields, bundle)
                and unit.fields.get("epoch") == epoch
            )
            if row["s"] == "held" and not is_its:
                yield f"row {name} on {boot} is held, but no placed or running unit has it"
            if row["s"] == "orphan" and is_its:
                yield f"row {name} on {boot} is an orphan, but its unit is {unit.state if unit else ''} with it"


def gangs(client: Any, data: Data) -> Iterator[str]:
    """A placed or running unit holds exactly its shape, one row per bundle, each on the boot that it names."""
    held: dict[tuple[str, str], dict[int, tuple[str, dict[str, Any]]]] = {}
    for boot, named in data.rows.items():
        for name, row in named.items():
            unit_id, epoch, bundle = split_row(name)
            mine = held.setdefault((unit_id, epoch), {})
            if bundle in mine:
                yield f"row {name} stands on {boot} and on {mine[bundle][0]}"
            mine[bundle] = (boot, row)
    for unit in data.units.values():
        if unit.state not in ACTIVE:
            continue
        bundles = data.shapes.get(unit.fields["shape"], {}).get("bundles", [])
        mine = held.get((unit.id, unit.fields["epoch"]), {})
        lost = _lost(unit.fields)
        for i in lost:
            if client.zscore("fc:repairs", f"{unit.id}@{unit.fields['epoch']}#{i}") is None:
                yield f"unit {unit.id} lost bundle {i}, which nobody is asked to replace"
        if sorted({*mine, *lost}) != list(range(len(bundles))) or lost & mine.keys():
            yield f"unit {unit.id} is {unit.state} with {len(bundles)} bundles, its rows are of bundles {sorted(mine)}"
            continue
        for i, bundle in enumerate(bundles):
            if i in lost:
                continue
            boot, row = mine[i]
            if boot != _boot_of(unit.fields, i):
                yield f"unit {unit.id} says that bundle {i} is on {_boot_of(unit.fields, i)}, its row is on {boot}"
            got, need = as_request(row["v"]), dict(bundle["need"])
            for pool in mine[0][1].get("p") or {}:  # booked with the first row, for all bundles
                need.pop(pool, None)
            if got != need:
                yield f"unit {unit.id} holds {got} for bundle {i}, which is not its shape"


def as_request(vector: Mapping[str, int]) -> dict[str, int]:
    """A booked vector as it was asked for: its devices summed up as gpu."""
    got: Counter[str] = Counter()
    for dim, n in vector.items():
        got["gpu" if dim.startswith(DEVICE) else dim] += n
    return dict(got)


def _boot_of(fields: Mapping[str, str], bundle: int) -> str | None:
    gang = json.loads(fields.get("gang") or "[]")
    if not gang:
        return fields.get("boot") if bundle == 0 else None
    return str(gang[bundle]) if bundle < len(gang) else None


def _lost(fields: Mapping[str, str]) -> set[int]:
    return {i for i, boot in enumerate(json.loads(fields.get("gang") or "[]")) if not boot}


def _numbers(fields: Mapping[str, str]) -> dict[str, int]:
    return {name: int(value) for name, value in fields.items()}
