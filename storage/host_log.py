"""What code printed that an attempt ran on the further bundles of its placement group.

The names of these files say attempt, bundle and host, so that they are found when no server knows of the host any more.
"""

from __future__ import annotations

from dataclasses import dataclass

from flowctl.storage.attempt import AttemptFolder
from flowctl.storage.chain import in_order
from flowctl.storage.log_pieces import joined
from flowctl.storage.trial_files import HostPart, TrialFile, host_log_name
from flowctl.storage.trial_reader import TrialReader


def write_host_log(folder: AttemptFolder, host: HostPart, offset: int, data: bytes) -> None:
    """Writes a piece, from byte `offset` on, to the folder of the attempt that the host belongs to. Survives any
    process, not a power cut.
    """
    where = folder.run_folder.folder.child(folder.path)
    where.write(host_log_name(folder.fence, host, offset), data, durable=False)


@dataclass(frozen=True)
class HostLog:
    """The log of one host: number `number` of attempt `attempt` on a bundle, which had `of` hosts that printed."""

    attempt: int
    number: int
    of: int
    text: bytes


def bundles_with_log(reader: TrialReader, attempt: int | None = None) -> list[int]:
    """The bundles whose code printed, in that attempt or in any."""
    return sorted({file.host.bundle for n, file in _files(reader) if file.host and attempt in (None, n)})


def read_host_log(reader: TrialReader, bundle: int, attempt: int | None = None) -> HostLog | None:
    """What the newest host on this bundle printed, in that attempt or in the newest that has one; None if none did."""
    found = [(n, file) for n, file in _files(reader) if file.host and file.host.bundle == bundle]
    found = [(n, file) for n, file in found if attempt in (None, n)]
    if not found:
        return None
    newest = max(n for n, _ in found)
    mine = [(file.host, file) for n, file in found if n == newest and file.host]
    last = max(host for host, _ in mine)
    text = joined(reader.folder, [file for host, file in mine if host == last])
    return HostLog(newest, last.number, len({host.number for host, _ in mine}), text)


def _files(reader: TrialReader) -> list[tuple[int, TrialFile]]:
    """Each piece with the number of its attempt; those of an attempt whose claim cannot be read are left out."""
    files = [file for file in reader.files() if file.kind == "hostlog"]
    if not files:
        return []
    numbers = {claim.fence: claim.attempt for claim in in_order(reader.claims())}
    return [(numbers[file.fence], file) for file in files if file.fence in numbers]
