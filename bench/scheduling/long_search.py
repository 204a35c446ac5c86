"""Long search: the best schedule that ten minutes find, for cells far above their bound.

    python -m bench.scheduling.long_search SECONDS      (a cell; writes searched.json)

Flow: cells above 1.15 -> many seeds of the search -> *searched.json* (streams and order).  The
makespan is computed anew from these wherever it is used.
"""

import json
import sys
import time

from bench.scheduling.cells import cells
from bench.scheduling.costs import FOLDER, load_costs
from grace_torchrec.schedule.op_stats import CostFile
from grace_torchrec.schedule.schedule import Machine, lower_bound, predicted_starts
from grace_torchrec.schedule.search import make_schedule

SEARCHED = FOLDER / "searched.json"
WORST = 1.15  # makespan over bound: what lies above is searched


def searched_makespan(costs: CostFile, streams: int) -> float | None:
    """Return the makespan of the committed long search, computed from its streams and order."""
    document = json.loads(SEARCHED.read_text(encoding="utf-8")) if SEARCHED.is_file() else {}
    entry = document.get(f"{costs.graph.name}/{streams}")
    if entry is None or entry["fingerprint"] != costs.graph.fingerprint():
        return None
    order, stream_n = entry["order"], entry["streams"]
    if sorted(order) != list(range(len(costs.graph.ops))):
        return None
    rank = {op: place for place, op in enumerate(order)}
    if any(rank[need] > rank[op] for op in order for need in costs.graph.ops[op].needs):
        return None
    times = costs.stats.times_us
    begin = predicted_starts(costs.graph, times, stream_n, order, Machine(streams))
    return max(b + t for b, t in zip(begin, times, strict=True))


def long_search(seconds: float) -> None:
    """Search every cell above 1.15 for ``seconds`` and write the best of each."""
    document = {}
    for name, schedule in cells().items():
        if schedule.makespan_us / schedule.bound_us <= WORST:
            continue
        model, _, streams = name.partition("/")
        costs = load_costs(model)
        best, end, rounds = schedule, time.monotonic() + seconds, 0
        while time.monotonic() < end:
            rounds += 1
            found = make_schedule(
                costs.graph, costs.stats, Machine(int(streams)),
                starts=2000, steps=4000, seed=rounds,
            )  # fmt: skip
            best = min(best, found, key=lambda s: s.makespan_us)
        document[name] = {
            "fingerprint": costs.graph.fingerprint(),
            "seconds": seconds,
            "rounds": rounds,
            "makespan_us": best.makespan_us,
            "over_bound": best.makespan_us / lower_bound(best.graph, best.times_us, int(streams)),
            "streams": best.stream_n,
            "order": best.order_n,
        }
        SEARCHED.write_text(json.dumps(document) + "\n", encoding="utf-8")
        print(name, schedule.makespan_us, best.makespan_us, rounds)


if __name__ == "__main__":
    long_search(float(sys.argv[1]))
