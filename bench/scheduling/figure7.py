"""fig7: latency under pulse, bimodal and unimodal traffic, RecOS and one stream.

Flow: A30 cost files -> capacity of one stream in a closed loop -> arrivals whose peak is at it ->
simulated latencies, of queries that came while traffic was low and while it was high.
Derived: the shapes and the rate; the paper's text names the shapes only.
"""

from typing import Any

import numpy as np

from bench.scheduling.figure6 import gain, workload
from grace_torchrec.models.bundled import MODELS
from grace_torchrec.schedule.arrivals import PATTERNS, arrivals
from grace_torchrec.schedule.simulator import POLICIES, Calibration, simulate

SHAPES = ("pulse", "bimodal", "unimodal")
PEAK = 1.0  # share of the capacity of one stream
CLIENTS, QUERIES = 30, 600
HIGH = 0.8  # share of the peak from which traffic is high; low: below half of it


def figure7(queries: int = QUERIES) -> dict[str, Any]:
    """Return mean latencies in microseconds by model and shape, and RecOS's gain over TSSS."""
    calibration = Calibration.named()
    return {
        "peak_share_of_capacity_of_one_stream": PEAK,
        "gain_percent": {
            name: {shape: _gains(name, shape, calibration, queries) for shape in SHAPES}
            for name in MODELS
        },
        "source": "shapes and rates are derived; a simulation is no evidence about a GPU",
    }


def _gains(name: str, shape: str, calibration: Calibration, queries: int) -> dict[str, float]:
    """Return the gain of RecOS at low and at high traffic."""
    model = workload(name)
    full = simulate(model, POLICIES["TSSS"], calibration, clients=CLIENTS)
    share = np.linspace(0, 1, 1001)
    weights = PATTERNS[shape](share)
    peak = weights.max() / weights.mean()
    rate = PEAK * CLIENTS / (full.mean_us * 1e-6) / peak
    times = arrivals(shape, rate, queries)
    now = np.interp(np.array(times) / (queries / rate * 1e6), share, weights) / weights.max()
    latency = {
        policy: simulate(model, POLICIES[policy], calibration, arrivals_us=times).latency_us
        for policy in ("RecOS", "TSSS")
    }
    return {
        when: gain(*(float(latency[policy][chosen].mean()) for policy in ("RecOS", "TSSS")))
        for when, chosen in (("low", now < 0.5), ("high", now >= HIGH))
    }
