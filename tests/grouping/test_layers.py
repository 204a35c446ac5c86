"""Layers: what repeats and weights leave of a bag for sums to merge."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from grace_torchrec.grouping.layers import layered_bags
from grace_torchrec.traces.trace import Trace


def bags(trace):
    return [part.tolist() for part in np.split(trace.ids_L, trace.offsets_B1[1:-1])]


def test_layer_l_holds_the_items_with_l_or_more_copies():
    layers = layered_bags(Trace.from_bags([[3, 1, 3, 3, 1, 0], [2]]))
    assert bags(layers) == [[0, 1, 3], [2], [1, 3], [3]]


def test_bags_without_repeats_are_their_own_layer():
    assert bags(layered_bags(Trace.from_bags([[2, 0], [], [1]]))) == [[0, 2], [], [1]]


def test_copies_past_those_that_rewriting_merges_make_no_layer():
    assert layered_bags(Trace.from_bags([[0, 1] * 70])).num_bags == 64


def test_items_of_different_weight_are_in_different_layers():
    weights = np.array([1.0, 0.5, 1.0, 0.5, 1.0], np.float32)
    trace = Trace(np.array([0, 4, 5]), np.array([0, 1, 2, 3, 0]), weights_L=weights)
    assert sorted(bags(layered_bags(trace))) == [[0], [0, 2], [1, 3]]


@given(st.lists(st.lists(st.integers(0, 4), max_size=9), max_size=5))
def test_every_layer_is_what_is_left_after_the_layers_before(held):
    layers = bags(layered_bags(Trace.from_bags(held, 5)))[: None if held else 0]
    expected = [sorted(set(bag)) for bag in held]
    for layer in range(2, 10):
        counted = [[i for i in range(5) if bag.count(i) >= layer] for bag in held]
        expected += [items for items in counted if items]
    assert layers == expected


def test_an_empty_trace_has_no_layer():
    assert layered_bags(Trace.from_bags([])).num_ids == 0
    assert layered_bags(Trace.from_bags([[], []])).num_ids == 0
