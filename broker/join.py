"""The token that a second machine pastes: where the server is, the signing key, and where runs are stored.

It holds two secrets, so it travels in an environment variable, never in a command's arguments.
"""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass, field

from flowctl.broker.broker_url import BrokerURL
from flowctl.broker.errors import BrokerURLError, SettingError

PREFIX = "fc1"
CURE = "copy the whole line that `flowctl up --listen` printed"


@dataclass(frozen=True)
class JoinToken:
    """`storage` is empty when the token was made without one: its holder can reach the server, but run nothing."""

    broker: str = field(repr=False)
    key: str = field(repr=False)
    storage: str = ""

    def encode(self) -> str:
        """One word of [A-Za-z0-9_-], so that no shell changes it."""
        text = json.dumps({"b": self.broker, "k": self.key, "s": self.storage}, separators=(",", ":"))
        return PREFIX + base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")

    @classmethod
    def decode(cls, text: str) -> JoinToken:
        """Reads a token; SettingError if it is cut, from another version, or names no usable server."""
        place, body = "FLOWCTL_JOIN", text.strip()
        if not body.startswith(PREFIX):
            raise SettingError("this is no join token of this version", place=place, cure=CURE)
        body = body[len(PREFIX) :]
        try:
            record = json.loads(base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True))
            token = cls(broker=record["b"], key=record["k"], storage=record["s"])
        except (binascii.Error, ValueError, KeyError, TypeError) as error:
            raise SettingError("the join token is damaged", place=place, cure=CURE) from error
        if not all(isinstance(part, str) for part in (token.broker, token.key, token.storage)):
            raise SettingError("the join token is damaged", place=place, cure=CURE)
        try:
            BrokerURL.parse(token.broker)
        except BrokerURLError as error:
            raise SettingError(
                f"the join token names no usable server ({error.what})", place=place, cure=CURE
            ) from error
        return token
