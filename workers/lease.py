"""The right to run one attempt: claimed once with a nonce of its own, renewed by its guardian, lost by time."""

import logging
import secrets
import time

from flowctl.broker.calls import Fence
from flowctl.broker.contact import NoContact
from flowctl.broker.store import Broker
from flowctl.workers.preparation import BundleGrant, Claimed

RETRY_S = 1.0
log = logging.getLogger("flowctl")


class Lease:
    """One attempt's lease. `renew_at` is the monotonic time of the next renewal: every quarter of its term."""

    def __init__(self, broker: Broker, *, unit: str, epoch: int) -> None:
        self.broker = broker
        self.fence = Fence(unit, epoch, secrets.token_hex(8))
        self.renew_at = 0.0
        self.note = ""
        """What a person should know of it while it runs; told with each renewal."""
        self._period_s = broker.calls.times.lease_ms / 4000
        self._clock = (0, 0.0)

    def claim(self, *, boot: str) -> Claimed | None:
        """The attempt, or None if it is not ours to run. A lost reply is asked for again with the same nonce."""
        deadline = time.monotonic() + self.broker.calls.times.dispatch_ms / 1000
        while True:
            try:
                reply = self.broker.calls.trial_claim(self.fence, boot=boot)
                break
            except NoContact:
                if time.monotonic() > deadline:
                    return None
                time.sleep(0.2)
        if reply.word != "OK":
            said = " ".join((reply.word, *reply.rest))
            log.info("not ours: %s epoch %s (%s)", self.fence.unit, self.fence.epoch, said)
            return None
        value = reply.value
        self._seen(int(value["now_ms"]))
        return Claimed(
            fence=self.fence,
            attempt=int(value["attempt"]),
            fails=int(value["fails"]),
            now_ms=int(value["now_ms"]),
            location=str(value["location"]),
            token=str(value["token"]),
            is_first=self.fence.epoch == 1 and value["attempt"] == 1,
            tokens={str(name): int(n) for name, n in (value.get("tokens") or {}).items()},
            bundles=tuple(BundleGrant.from_reply(bundle) for bundle in value.get("bundles") or ()),
        )

    def renew(self) -> str:
        """What is wanted: CONTINUE, CANCEL, LOST, or SILENT when the server does not answer now."""
        try:
            reply = self.broker.calls.trial_renew(self.fence, note=self.note)
        except NoContact:
            self.renew_at = time.monotonic() + min(RETRY_S, self._period_s)
            return "SILENT"
        self.renew_at = time.monotonic() + self._period_s
        if reply.word != "LOST":
            self._seen(int(reply.rest[0]))
        return reply.word

    def now_ms(self) -> int:
        """The server's time, from its last answer and this process' steady clock."""
        return self._clock[0] + int((time.monotonic() - self._clock[1]) * 1000)

    def _seen(self, now_ms: int) -> None:
        self._clock = (now_ms, time.monotonic())
        self.renew_at = max(self.renew_at, time.monotonic() + self._period_s)
