"""The chain as a pure decision, compared with a trial that simply remembers what counts."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from run_folders import nonce, row

from flowctl.storage import chain
from flowctl.storage.manifest import ManifestRef
from flowctl.storage.segment import Row
from flowctl.storage.trial_files import Fence
from flowctl.storage.trial_records import Claim

# Per attempt: how many rows it reports, after which of them it commits, and which known checkpoint the next one takes.
ATTEMPT = st.tuples(st.integers(0, 5), st.sets(st.integers(1, 5)), st.integers(-1, 3))


def claim_of(fence: Fence, number: int, base: ManifestRef | None) -> Claim:
    return Claim(fence, number, "w", "b", number, base, (), None)


@given(st.lists(ATTEMPT, min_size=1, max_size=6), st.booleans())
@settings(max_examples=200, deadline=None)
def test_rows_are_those_a_trial_would_remember(attempts: list[tuple[int, set[int], int]], is_rewound: bool) -> None:
    claims: list[Claim] = []
    rows: list[Row] = []
    remembered: list[Row] = []
    base: ManifestRef | None = None
    checkpoints: list[ManifestRef] = []
    for number, (count, commits, choice) in enumerate(attempts, 1):
        fence = Fence(1 if is_rewound else number, nonce(number * 7 % 13))
        claims.append(claim_of(fence, number, base))
        start = base.iteration if base else 0
        remembered = remembered[:start]
        checkpoints = [one for one in checkpoints if base is not None and one.iteration <= base.iteration]
        for seq in range(1, count + 1):
            one = {**row(start + seq, seq=seq, attempt=number), "epoch": fence.epoch, "nonce": fence.nonce}
            rows.append(one)
            remembered.append(one)
            if seq in commits:
                checkpoints.append(ManifestRef(fence.epoch, fence.nonce, seq, start + seq))
        base = checkpoints[-1 - choice] if 0 <= choice < len(checkpoints) else None

    found = chain.links(reversed(claims), [], None, {})

    assert chain.merge(found, reversed(rows)) == remembered


def test_circle_of_bases_ends() -> None:
    one, two = Fence(1, nonce(1)), Fence(2, nonce(2))
    claims = [claim_of(one, 1, ManifestRef(*two, 1, 1)), claim_of(two, 2, ManifestRef(*one, 1, 1))]

    assert [link.fence for link in chain.links(claims, [], None, {})] == [two, one]
