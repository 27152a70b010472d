"""How long user code waits in `report` without a checkpoint, beside a bare round trip from the same process."""

import json
from statistics import median

from measurement import ROUNDS, Measurement, note, spread
from private_home import private_home, worker
from trials import reporting

from flowctl.broker.store import Broker
from flowctl.storage.trial_reader import TrialReader
from flowctl.workers.runs.folder import open_folder

BLOCKS, CALLS = 10, 100
ROUND_TRIPS = 5.0
BUDGET_MS = 0.5


def main() -> None:
    found: dict[str, list[float]] = {"report": [], "ping": [], "evalsha": []}
    everything: list[float] = []
    with private_home() as settings:
        broker = Broker.connect(settings)
        address = settings.home / "address"
        address.write_text(str(broker.url.kombu_url()))
        with worker(settings, "--resources", "cpu=1", "--slots", "1"):
            for number in range(ROUNDS):
                name = f"round-{number}"
                config = {"url_file": str(address), "blocks": BLOCKS, "calls": CALLS}
                handle = reporting.options(param_space=config).submit(name=name)
                handle.wait(timeout_s=120)
                folder = open_folder(handle.status().location, name, settings)
                times = json.loads(TrialReader(folder, "reporting", 0).log())
                for kind, seconds in times.items():
                    found[kind].append(median(seconds) * 1000)
                everything += [second * 1000 for second in times["report"]]
                note(f"round {number}: " + ", ".join(f"{kind} {values[-1]:.3f} ms" for kind, values in found.items()))
    value, floor = median(found["report"]), median(found["ping"])
    Measurement(
        "report_latency",
        value,
        "ms per report, median",
        floor,
        ROUND_TRIPS * floor,
        others={"absolute_ms": (value, BUDGET_MS)},
        details={"reports": len(everything), "evalsha_ms": median(found["evalsha"]), "report_ms": spread(everything)},
    ).say()


if __name__ == "__main__":
    main()
