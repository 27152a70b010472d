"""The errors of the storage: what lasts cannot be reached, is refused, or is damaged.

    FlowctlError
    ├── StorageError                the common name, to catch any of these
    │   ├── StorageUnreachable  4   it does not answer now; trying again may help
    │   ├── StorageRefused      5   it will not do this; trying again is useless
    │   │   ├── AlreadyExists   5   something of this name is there, and was left as it is
    │   │   └── NotFound        5   nothing of this name is there
    │   └── DamagedRecord       5   what is there is not what was written
    │       ├── BadSignature    5   its signature is missing or wrong
    │       └── UnknownKey      5   it was signed with a key that is not here
    ├── CheckpointError         2   a folder cannot be a checkpoint
    └── PayloadError            2   code cannot be pickled (a ScriptError)

The number is the exit code of the command line.
"""

from __future__ import annotations

from flowctl.dsl.errors import FlowctlError, RefusedError, ScriptError, UnreachableError


class StorageError(FlowctlError):
    """Anything that storage can refuse or fail to do."""


class StorageUnreachable(StorageError, UnreachableError):
    """The storage does not answer, is full, or broke off; the same call may work later."""

    exit_code = 4


class StorageRefused(StorageError, RefusedError):
    """The storage cannot do this: an address that is none, a folder that is not writable, a name that is unsafe."""

    exit_code = 5


class AlreadyExists(StorageRefused):
    """An exclusive write found something of that name, and left it as it was."""


class NotFound(StorageRefused):
    """Nothing of that name is on the storage."""


class DamagedRecord(StorageError, RefusedError):
    """A record or file is short, unreadable, of another place, or not what its digest says."""

    exit_code = 5


class BadSignature(DamagedRecord):
    """A record's signature is missing, or does not fit its content."""


class UnknownKey(DamagedRecord):
    """A record was signed with a key that this machine does not hold, or there is no key at all."""


class CheckpointError(FlowctlError):
    """A folder cannot be a checkpoint; the message names it."""

    exit_code = 2


class PayloadError(ScriptError):
    """User code cannot be pickled; the message names the step and what in it is at fault."""
