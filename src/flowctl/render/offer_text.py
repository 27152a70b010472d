"""What a worker would offer, as `flowctl worker --print-resources` shows it: a table, plain lines, or JSON."""

from __future__ import annotations

from typing import Any

from flowctl.dsl.resources import SLOT, format_amount
from flowctl.render.table import table
from flowctl.workers.offers import GPU, Offers


def offer_table(found: Offers) -> str:
    """For a terminal: each resource with where it comes from, then the devices."""
    rows = [[name, format_amount(name, units), _source(name, found)] for name, units in _ordered(found)]
    parts = [table(["resource", "offered", "from"], rows)]
    if found.devices:
        devices = [[d.visible, d.id, d.name, _memory(d.memory_mib)] for d in found.devices]
        parts.append(table(["seen as", "device", "name", "memory"], devices))
    if found.labels:
        parts.append(f"labels  {', '.join(found.labels)}")
    return "\n\n".join(parts)


def offer_lines(found: Offers) -> str:
    """For a pipe: `NAME=AMOUNT` per line, then `device=SEEN-AS ID` and `label=LABEL`."""
    lines = [f"{name}={format_amount(name, units)}" for name, units in _ordered(found)]
    lines += [f"device={device.visible} {device.id}" for device in found.devices]
    lines += [f"label={label}" for label in found.labels]
    return "\n".join(lines)


def offer_body(found: Offers) -> dict[str, Any]:
    """For `--json`: amounts as in `flowctl workers --json`."""
    offer = {name: units if name == "memory" else units / 10_000 for name, units in _ordered(found)}
    return {
        "offer": offer,
        "detected": sorted({name.partition(":")[0] for name in found.detected}),
        "labels": list(found.labels),
        "devices": [device.to_json() for device in found.devices],
        "notes": list(found.notes),
    }


def _ordered(found: Offers) -> list[tuple[str, int]]:
    """cpu, gpu and memory first, the slot last."""
    total = {"cpu": 0, GPU: 0, **found.total}
    return sorted(total.items(), key=lambda item: (item[0] == SLOT, item[0] not in ("cpu", GPU, "memory"), item[0]))


def _source(name: str, found: Offers) -> str:
    if name == SLOT:
        return "--slots, or 2 for each core"
    if name == GPU:
        if not found.devices:
            return ""
        return "declared" if found.devices[0].is_logical else "detected"
    return "declared" if name in found.declared else "detected"


def _memory(mib: int) -> str:
    return format_amount("memory", mib) if mib else ""
