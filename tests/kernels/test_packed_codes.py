"""Packed codes: a bit for each item, and the rank among the bits finds the code that was packed."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from grace_kernels.packed_codes import ITEMS_A_WORD, PackedCodes, pack_codes, rank_in_word

CODE_TYPES = st.sampled_from([np.int32, np.int64])


def unpacked(packed: PackedCodes) -> list[int]:
    """Return the code of every item, -1 where it has none, by the rule of the module."""
    codes = []
    for item in range(packed.num_items):
        word = int(packed.words_W[item // ITEMS_A_WORD]) if packed.words_W.size else 0
        bits, rank = word & 0xFFFFFFFF, word >> ITEMS_A_WORD
        bit = item % ITEMS_A_WORD
        below = (bits & ((1 << bit) - 1)).bit_count()
        codes.append(int(packed.codes_C[rank + below]) if bits >> bit & 1 else -1)
    return codes


@given(st.lists(st.just(-1) | st.integers(0, 2**31 - 1), max_size=150), CODE_TYPES)
@example([], np.int32)
@example([5], np.int64)
@example([-1] * 31 + [7], np.int32)  # the highest bit of a word
@example([-1] * 32 + [7], np.int32)  # the lowest bit of the next
@example(list(range(32)), np.int32)
@example(list(range(97)), np.int64)
@example([-1] * 64, np.int32)
def test_every_item_finds_its_own_code(codes, code_type) -> None:
    packed = pack_codes(np.array(codes, code_type))
    assert packed.num_items == len(codes)
    assert unpacked(packed) == codes


@given(st.lists(st.booleans(), min_size=1, max_size=100), CODE_TYPES)
def test_the_compiled_rank_is_the_place_of_the_code(is_clustered, code_type) -> None:
    codes = np.where(is_clustered, np.arange(len(is_clustered)) * 8, -1).astype(code_type)
    packed = pack_codes(codes)
    for item in np.flatnonzero(is_clustered):
        word = packed.words_W[item // ITEMS_A_WORD]
        assert packed.codes_C[rank_in_word(word, item)] == codes[item]


@pytest.mark.parametrize("code_type", [np.int32, np.int64])
def test_a_table_without_clusters_has_no_words(code_type) -> None:
    """Address 0 tells the kernels that there is nothing to look for."""
    for codes in (np.zeros(0, code_type), np.full(70, -1, code_type)):
        packed = pack_codes(codes)
        assert packed.words_W.size == packed.codes_C.size == packed.num_bytes == 0
        assert packed.addresses[0] == 0
        assert packed.num_items == codes.size


@pytest.mark.parametrize("code_type", [np.int32, np.int64])
def test_codes_keep_their_width_and_cost_a_quarter_byte_an_item_more(code_type) -> None:
    codes = np.full(3201, -1, code_type)
    codes[[0, 3200]] = np.iinfo(code_type).max, 8
    packed = pack_codes(codes)
    assert packed.codes_C.dtype == code_type
    assert packed.codes_C.tolist() == [np.iinfo(code_type).max, 8]
    assert packed.addresses[2] == np.dtype(code_type).itemsize
    assert packed.num_bytes == 101 * 8 + packed.codes_C.nbytes


def test_ranks_go_on_past_32_bits_of_the_word() -> None:
    """A rank fills the upper half of its word: the sign of the word is not that of the rank."""
    word = np.int64(np.uint64((2**31 + 5) << ITEMS_A_WORD | 0xFFFFFFFF).view(np.int64))
    assert rank_in_word(word, np.int64(31)) == 2**31 + 5 + 31
