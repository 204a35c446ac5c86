"""Columns of delimited text, cut and parsed in whole blocks: the shared half of log readers.

Flow: block of lines -> *Columns* -> numbers and keys -> interactions -> Trace.  Everything is
numpy over the bytes of a block; Python runs over single tokens only to name what is wrong.
Shapes: W bytes of one block, P lines that are not blank, K columns.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
LONGEST_NUMBER = 40  # bytes; what is longer is no time
FAST_DIGITS = 18  # 10**18 < 2**62, so these need no overflow check
_BLANKS = np.zeros(256, np.bool_)
_BLANKS[list(b" \t\r")] = True
_PRIME = np.uint64(0x100000001B3)
_MIX = np.uint64(0x9E3779B97F4A7C15)
_HASHED = np.uint64(1 << 63)


@dataclass(frozen=True, eq=False)
class Columns:
    """Lines of one block and where their columns begin and end.

    Attributes:
        text_W: The bytes of the block.
        line_P: Number of each line in its file, from 1.
        starts_P: First byte of each line.
        ends_P: Byte behind each line, without CR and LF.
        count_P: Columns of each line.
        cuts: Separators (or, for blanks, starts and ends of tokens) of all lines.
    """

    text_W: Bytes
    line_P: Int64s
    starts_P: Int64s
    ends_P: Int64s
    count_P: Int64s
    cuts: tuple[Int64s, Int64s, Int64s]

    def column(self, number: int) -> tuple[Int64s, Int64s]:
        """Return (starts ``[P]``, ends ``[P]``) of a column that every line has, trimmed.

        Blanks and one pair of double quotes around a token are no part of it.
        """
        first_P, begins, stops = self.cuts
        starts, ends = begins[first_P + number], stops[first_P + number]
        starts, ends = trimmed(self.text_W, starts, ends)
        quoted = (ends - starts >= 2) & (self.text_W[starts] == ord('"'))
        quoted &= self.text_W[ends - 1] == ord('"')
        return starts + quoted, ends - quoted

    def take(self, good_P: npt.NDArray[np.bool_]) -> "Columns":
        """Return some of the lines."""
        first_P, begins, stops = self.cuts
        return Columns(
            self.text_W,
            self.line_P[good_P],
            self.starts_P[good_P],
            self.ends_P[good_P],
            self.count_P[good_P],
            (first_P[good_P], begins, stops),
        )

    def token(self, line: int, starts_P: Int64s, ends_P: Int64s, errors: str = "replace") -> str:
        """Return the text of one token.

        Args:
            line: Place of the line in this block.
            starts_P: First byte of the token of each line.
            ends_P: Byte behind it.
            errors: What becomes of bytes that are no UTF-8, as for ``bytes.decode``.
        """
        piece = self.text_W[starts_P[line] : ends_P[line]].tobytes()
        return piece.decode("utf-8", errors)


def cut_columns(block: bytes, first_line: int, separator: bytes) -> Columns:
    """Find the columns of every line that is not blank.

    Args:
        block: Whole lines, each with its LF.
        first_line: Number of the first one.
        separator: One or two bytes between columns; a space stands for any run of blanks.
    """
    text = np.frombuffer(block, np.uint8)
    ends = np.flatnonzero(text == ord("\n"))
    starts = np.concatenate([np.zeros(1, np.int64), ends[:-1] + 1])
    ends = ends - ((ends > starts) & (text[ends - 1] == ord("\r")))
    trimmed_starts, trimmed_ends = trimmed(text, starts, ends)
    filled = np.flatnonzero(trimmed_ends > trimmed_starts)
    if separator == b" ":
        starts, ends = trimmed_starts[filled], trimmed_ends[filled]
        begins, stops = _blank_tokens(text)
        first = np.searchsorted(begins, starts)
        count = np.searchsorted(begins, ends) - first
    else:
        starts, ends = starts[filled], ends[filled]
        begins, stops, first, count = _separated(text, starts, ends, separator)
    return Columns(text, first_line + filled, starts, ends, count, (first, begins, stops))


def parse_integers(columns: Columns, starts_P: Int64s, ends_P: Int64s) -> tuple[Int64s, Int64s]:
    """Parse plain decimal numbers.

    Returns:
        (values ``[P]``, the lines whose token is empty, longer than 18 digits or no number).
    """
    lengths = ends_P - starts_P
    values = np.zeros(lengths.size, np.int64)
    good = (lengths > 0) & (lengths <= FAST_DIGITS)
    for place in range(int(lengths[good].max(initial=0))):
        live = np.flatnonzero(good & (lengths > place))
        digit = columns.text_W[starts_P[live] + place].astype(np.int64) - ord("0")
        good[live[(digit < 0) | (digit > 9)]] = False
        values[live] = values[live] * 10 + digit
    return values, np.flatnonzero(~good)


def parse_numbers(
    columns: Columns, starts_P: Int64s, ends_P: Int64s
) -> tuple[npt.NDArray[np.float64], Int64s]:
    """Parse numbers that may have a point, a sign or an exponent.

    Returns:
        (values ``[P]``, the lines whose token is no finite number).
    """
    whole, odd = parse_integers(columns, starts_P, ends_P)
    values = whole.astype(np.float64)
    starts, lengths = starts_P[odd], (ends_P - starts_P)[odd]
    width = min(int(lengths.max(initial=0)), LONGEST_NUMBER) + 1
    places = np.arange(width)
    inside = places < lengths[:, None]
    source = np.where(inside, starts[:, None] + places, 0)
    tokens = np.where(inside, columns.text_W[source], 0).astype(np.uint8)
    texts = np.ascontiguousarray(tokens).view(f"S{width}").ravel()
    try:
        values[odd] = texts.astype(np.float64)
    except ValueError:  # some token is no number: find which
        values[odd] = [_number(text) for text in texts.tolist()]
    values[odd[(lengths > LONGEST_NUMBER) | (tokens == ord("_")).any(axis=1)]] = np.nan
    return values, odd[~np.isfinite(values[odd])]


def keys(columns: Columns, starts_P: Int64s, ends_P: Int64s) -> npt.NDArray[np.uint64]:
    """Return a key for each token: its number where it is a plain one, else a 63-bit hash.

    Two different tokens have the same hash with a probability below 10**-6 in a million.
    """
    values, odd = parse_integers(columns, starts_P, ends_P)
    result = values.astype(np.uint64)
    leading = (ends_P - starts_P > 1) & (columns.text_W[starts_P] == ord("0"))
    odd = np.union1d(odd, np.flatnonzero(leading))  # user 007 is not user 7
    starts, lengths = starts_P[odd], (ends_P - starts_P)[odd]
    hashed = np.full(odd.size, 0xCBF29CE484222325, np.uint64)
    for place in range(int(lengths.max(initial=0))):
        live = np.flatnonzero(lengths > place)
        hashed[live] = (hashed[live] ^ columns.text_W[starts[live] + place]) * _PRIME
    hashed ^= hashed >> np.uint64(32)
    hashed *= _MIX
    hashed ^= hashed >> np.uint64(29)
    result[odd] = hashed | _HASHED
    return result


def _number(text: bytes) -> float:
    """Return the number, or NaN where the text is none."""
    try:
        return float(text)
    except ValueError:
        return float("nan")


def trimmed(text_W: Bytes, starts_P: Int64s, ends_P: Int64s) -> tuple[Int64s, Int64s]:
    """Leave blanks out at both ends."""
    starts, ends = starts_P.copy(), ends_P.copy()
    live = np.flatnonzero(starts < ends)
    while live.size:
        live = live[_BLANKS[text_W[starts[live]]]]
        starts[live] += 1
        live = live[starts[live] < ends[live]]
    live = np.flatnonzero(starts < ends)
    while live.size:
        live = live[_BLANKS[text_W[ends[live] - 1]]]
        ends[live] -= 1
        live = live[starts[live] < ends[live]]
    return starts, ends


def _blank_tokens(text_W: Bytes) -> tuple[Int64s, Int64s]:
    """Return (starts, ends) of all runs of bytes that are neither blank nor LF."""
    inside = ~(_BLANKS[text_W] | (text_W == ord("\n")))
    edges = np.flatnonzero(np.diff(inside.view(np.int8), prepend=np.int8(0)))
    return edges[::2], edges[1::2]


def _separated(
    text_W: Bytes, starts_P: Int64s, ends_P: Int64s, separator: bytes
) -> tuple[Int64s, Int64s, Int64s, Int64s]:
    """Return (begins, stops) of all columns, (first, count) of each line's."""
    found = text_W == separator[0]
    if len(separator) == 2:
        found[:-1] &= text_W[1:] == separator[1]
        found[-1] = False
    at = np.flatnonzero(found)
    at = at[np.concatenate([np.ones(min(at.size, 1), np.bool_), np.diff(at) >= len(separator)])]
    low = np.searchsorted(at, starts_P)
    count = np.searchsorted(at, ends_P) - low + 1
    first = np.cumsum(count) - count
    begins = np.empty(int(count.sum()), np.int64)
    stops = np.empty_like(begins)
    inner = np.ones(begins.size, np.bool_)
    inner[first] = False
    own = _within(at, starts_P, ends_P)
    begins[first], begins[inner] = starts_P, own + len(separator)
    last = first + count - 1
    inner[:] = True
    inner[last] = False
    stops[last], stops[inner] = ends_P, own
    return begins, stops, first, count


def _within(at: Int64s, starts_P: Int64s, ends_P: Int64s) -> Int64s:
    """Return the separators that stand inside a line that is not blank."""
    line = np.searchsorted(starts_P, at, side="right") - 1
    return at[(line >= 0) & (at < ends_P[line])] if starts_P.size else at[:0]
