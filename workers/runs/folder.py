"""Opening the folder of a run that the server knows, with the keys of this machine."""

from __future__ import annotations

import os

from flowctl.broker.settings import Settings, expand_join
from flowctl.storage.location import Location
from flowctl.storage.run_folder import RunFolder
from flowctl.storage.signing import Keyring


def open_folder(location: str, run: str, settings: Settings) -> RunFolder:
    """The folder of `run` below `location`, for reading. Raises errors of storage, also if this machine has no key."""
    keyring = Keyring.from_env(expand_join(os.environ), settings.home, create=False)
    return RunFolder(Location.open(location, create=False), run, keyring)
