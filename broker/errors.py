"""What can go wrong between flowctl and its server, each with its own class, exit code and cure.

FlowctlError (dsl)
├── SettingError (2)              a FLOWCTL_ variable holds something that cannot be used
│   └── BrokerURLError (2)        the server's address is malformed; names the part
├── UnreachableError (dsl, 4)
│   └── BrokerError (4)           the server cannot be used now
│       ├── ServerUnreachable     nothing answers at the address
│       │   └── ServerSilent      something takes the connection, but gives no answer in time
│       ├── ServerLoading         it still reads its data
│       ├── WrongPassword         it wants another password, or user
│       ├── NoPermission          the user may not run a command that flowctl needs
│       ├── ServerTooOld          the version lacks what the scripts need
│       ├── ServerUnsuited        cluster mode
│       ├── EvictingPolicy        it may drop keys when memory is short
│       ├── ReadOnlyServer        it is a replica
│       ├── ServerFull            its memory or disk is full
│       ├── NoServerBinary        no server program for the embedded server
│       ├── ServerStartFailed     the embedded server did not start or stop
│       └── StateFolderUnwritable the state folder's disk is full, or takes no writes
└── RefusedError (dsl, 5)
    ├── StateFolderRefused (5)    the folder belongs to another user or another machine
    ├── DowngradeRefused (5)      an older server would not read the folder's data
    └── OtherSchema (5)           another flowctl wrote the data on this server
"""

from __future__ import annotations

from flowctl.dsl.errors import FlowctlError, RefusedError, UnreachableError


class SettingError(FlowctlError):
    """A setting cannot be used; `place` is the variable's or option's name."""

    exit_code = 2


class BrokerURLError(SettingError):
    """An address of a server is malformed; the text names the part that is wrong, never the password."""


class BrokerError(UnreachableError):
    """The server cannot be used now; `place` is its address without the password."""


class ServerUnreachable(BrokerError):
    """Nothing answers at the address."""


class ServerSilent(ServerUnreachable):
    """No answer in time; the command may have been done all the same."""


class ServerLoading(BrokerError):
    """The server still reads its data from disk."""


class WrongPassword(BrokerError):
    """The server refuses the user or the password."""


class NoPermission(BrokerError):
    """The user may not run a command, or touch a key, that flowctl needs."""


class ServerTooOld(BrokerError):
    """The server's version lacks what the scripts need."""


class ServerUnsuited(BrokerError):
    """The server runs in a mode that flowctl cannot use."""


class EvictingPolicy(BrokerError):
    """The server may drop keys when its memory is short."""


class ReadOnlyServer(BrokerError):
    """The server is a replica and takes no writes."""


class ServerFull(BrokerError):
    """The server takes no writes: its memory or its disk is full."""


class NoServerBinary(BrokerError):
    """No server program was found for the embedded server."""


class ServerStartFailed(BrokerError):
    """The embedded server did not start, or did not stop, in time."""


class StateFolderUnwritable(BrokerError):
    """The disk of the state folder takes no writes: it is full, read-only or broken."""


class StateFolderRefused(RefusedError):
    """The state folder belongs to another user, or its server to another machine."""


class DowngradeRefused(RefusedError):
    """The server found is older than, or another product than, the one that wrote the folder's data."""


class OtherSchema(RefusedError):
    """The data on this server was written in a format that this flowctl does not know."""
