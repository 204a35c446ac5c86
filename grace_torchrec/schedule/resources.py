"""Resources: which operators may not run beside each other, for they use one cache or weight.

Flow: OpGraph -> *groups*, one stream each -> pins of a static schedule, decisions online.
Source: RecOS, IJCAI'25, section 3.4, keeps an embedding operator on the stream that holds its cache.
Derived: resources that share an operator are one group, so that one stream orders them all.
Shapes: n operators.
"""

from grace_torchrec.schedule.op_graph import OpGraph
from grace_torchrec.schedule.op_stats import OpStats


def resource_groups(graph: OpGraph) -> list[int]:
    """Return the group of each operator, by the place of its first one; -1 where it uses nothing.

    >>> two = OpGraph.from_needs([[], [], []]).with_resources({}, {"v1": "c", "v3": "c"})
    >>> resource_groups(two)
    [0, -1, 0]
    """
    head_n = list(range(len(graph.ops)))

    def head(place: int) -> int:
        """Return the first operator of a group."""
        while head_n[place] != place:
            place = head_n[place]
        return place

    first: dict[str, int] = {}
    for place, op in enumerate(graph.ops):
        for name in (*op.reads, *op.writes):
            one, other = sorted((head(place), head(first.setdefault(name, place))))
            head_n[other] = one
    return [head(place) if op.reads or op.writes else -1 for place, op in enumerate(graph.ops)]


def resource_pins(graph: OpGraph, stats: OpStats, streams: int) -> dict[str, int]:
    """Return the stream of every operator that uses a resource, the same for a whole group.

    The heaviest groups are spread first.

    Args:
        graph: Operators.
        stats: Their costs.
        streams: Streams to spread them over.
    """
    groups = resource_groups(graph)
    weight: dict[int, float] = {}
    for group, stat in zip(groups, stats.stats, strict=True):
        if group >= 0:
            weight[group] = weight.get(group, 0.0) + stat.time_us
    load = [0.0] * streams
    chosen: dict[int, int] = {}
    for heaviest in sorted(weight, key=lambda group: -weight[group]):
        chosen[heaviest] = min(range(streams), key=load.__getitem__)
        load[chosen[heaviest]] += weight[heaviest]
    return {
        op.name: chosen[group] for op, group in zip(graph.ops, groups, strict=True) if group >= 0
    }
