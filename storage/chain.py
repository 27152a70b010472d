"""The chain: which attempts of a trial count, and which rows and checkpoints of them; pure decisions over records.

From the newest attempt back along each claim's base. What is not on the chain is garbage: an attempt that a later claim
passed over, and rows beyond the base of a later attempt.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from flowctl.storage.segment import Row
from flowctl.storage.trial_files import Fence
from flowctl.storage.trial_records import Claim, Outcome


@dataclass(frozen=True)
class Link:
    """An attempt on the chain and the last `training_iteration` of it that counts (None: all)."""

    fence: Fence
    through: int | None


def in_order(claims: Iterable[Claim]) -> list[Claim]:
    """Claims, oldest first: by epoch; after a rewind gave out one epoch twice, by the server's time, then nonce."""
    return sorted(claims, key=lambda one: (one.fence.epoch, one.server_ms, one.fence.nonce))


def final_outcome(claims: Iterable[Claim], outcomes: Iterable[Outcome]) -> Outcome | None:
    """The outcome that ends the trial: the newest final one that counts.

    One counts if no later claim exists, or if the next one names it; a claim made without seeing it makes it void.
    """
    ordered = in_order(claims)
    positions = {one.fence: i for i, one in enumerate(ordered)}
    best: tuple[tuple[int, int, str], Outcome] | None = None
    for outcome in outcomes:
        if not outcome.is_final:
            continue
        later = _after(ordered, positions, outcome.fence)
        if later is not None and outcome.fence not in later.outcomes_seen:
            continue
        rank = (outcome.fence.epoch, outcome.server_ms, outcome.fence.nonce)
        if best is None or rank > best[0]:
            best = (rank, outcome)
    return best[1] if best else None


def _after(ordered: list[Claim], positions: Mapping[Fence, int], fence: Fence) -> Claim | None:
    position = positions.get(fence)
    if position is not None:
        return ordered[position + 1] if position + 1 < len(ordered) else None
    return next((one for one in ordered if one.fence.epoch > fence.epoch), None)


def links(claims: Iterable[Claim], known: Iterable[Fence], tip: Fence | None, first: Mapping[Fence, int]) -> list[Link]:
    """The chain from `tip` (None: the newest attempt) back to the first, newest first.

    `known` are all fences that any file names; of an attempt whose claim is lost, the base is taken to be the attempt
    before it, up to the iteration before the first row that it wrote (`first`, where it is known).
    """
    by_fence = {one.fence: one for one in claims}
    order = _order(by_fence, known)
    if not order:
        return []
    at = order.index(tip) if tip in order else len(order) - 1
    found = [Link(order[at], None)]
    seen = {order[at]}
    while True:
        fence, through = found[-1].fence, found[-1].through
        claim = by_fence.get(fence)
        if claim is not None:
            if claim.base is None:
                return found
            before: Fence = claim.base.fence
            cut: int | None = claim.base.iteration
        else:
            place = order.index(fence) if fence in order else 0
            if place == 0:
                return found
            before = order[place - 1]
            cut = first[fence] - 1 if fence in first else None
        if before in seen:
            return found
        seen.add(before)
        found.append(Link(before, min((one for one in (cut, through) if one is not None), default=None)))


def _order(by_fence: Mapping[Fence, Claim], known: Iterable[Fence]) -> list[Fence]:
    def rank(fence: Fence) -> tuple[int, int, str]:
        claim = by_fence.get(fence)
        return (fence.epoch, claim.server_ms if claim else -1, fence.nonce)

    return sorted({*known, *by_fence}, key=rank)


def merge(chain: Iterable[Link], rows: Iterable[Row]) -> list[Row]:
    """The rows that count, by `training_iteration`, each once; of equal ones the newer attempt's, newer `seq`."""
    by_fence: dict[Fence, dict[int, Row]] = {}
    for row in rows:
        by_fence.setdefault(Fence(row["epoch"], row["nonce"]), {})[row["seq"]] = row
    merged: dict[int, Row] = {}
    for link in chain:
        mine: dict[int, Row] = {}
        for _, row in sorted(by_fence.get(link.fence, {}).items()):
            if link.through is None or row["training_iteration"] <= link.through:
                mine[row["training_iteration"]] = row
        merged = {**mine, **merged}
    return [merged[iteration] for iteration in sorted(merged)]
