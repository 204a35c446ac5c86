"""parts: what each of RecOS's five parts and each number of the calibration does to figure 6.

Flow: simulated latencies at 30 clients, whole and without a part, or with one number changed.
"""

from dataclasses import replace

from bench.scheduling.figure6 import gain, mean_us
from grace_torchrec.models.bundled import MODELS
from grace_torchrec.schedule.simulator import ABLATIONS, POLICIES, RECOS, Calibration

SENSITIVE: dict[str, tuple[float, ...]] = {
    "streams": (2, 4, 8, 16),
    "locks": (0, 2, 4, 8, 16),
    "lock_factor": (1.0, 4.0, 8.0),
    "framework_us": (6.0, 20.0, 80.0),
    "driver_us": (0.5, 1.5, 3.0),
    "sync_us": (15.0, 80.0, 160.0),
    "interference": (0.0, 0.1, 0.2),
    "threshold": (0.5, 1.0, 2.0, 4.0),
    "start_rule": (0, 1, 2, 3, 4),
}


def ablation(queries: int = 14, clients: int = 30) -> dict[str, dict[str, float]]:
    """Return, for each model, by how many percent RecOS is slower without each part."""
    calibration = Calibration.named()
    found: dict[str, dict[str, float]] = {}
    for name in MODELS:
        whole = mean_us(name, RECOS, calibration, queries, clients)
        found[name] = {
            part: 100 * (mean_us(name, policy, calibration, queries, clients) / whole - 1)
            for part, policy in ABLATIONS.items()
        }
    return found


def sensitivity(queries: int = 6, clients: int = 30) -> dict[str, dict[str, dict[str, float]]]:
    """Return DIN's gains over TSSS and MSSS while one number of the calibration changes."""
    calibration = Calibration.named()
    table: dict[str, dict[str, dict[str, float]]] = {}
    for field, values in SENSITIVE.items():
        table[field] = {}
        for value in values:
            changed = replace(calibration, **{field: value})  # type: ignore[arg-type]
            ours = mean_us("din", RECOS, changed, queries, clients)
            table[field][str(value)] = {
                rival: gain(ours, mean_us("din", POLICIES[rival], changed, queries, clients))
                for rival in ("TSSS", "MSSS")
            }
    return table
