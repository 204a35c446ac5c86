"""Interaction logs: any separator and header, one bag a user, bad lines by their number."""

import gzip

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grace_torchrec.errors import GraceError
from grace_torchrec.traces.readers import (
    BadLines,
    ItemNames,
    integer_lines,
    interaction_bags,
    read,
    read_interactions,
    stream,
)


@pytest.fixture
def file(tmp_path):
    return tmp_path / "log.txt"


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    return tmp_path_factory.mktemp("log") / "log.txt"


def bags_of(trace):
    return [part.tolist() for part in np.split(trace.ids_L, trace.offsets_B1[1:-1])]


FORMS = {
    "movielens 100k": "196\t242\t3\t20\n186\t302\t3\t9\n196\t1\t5\t10\n",
    "movielens 1m": "196::242::3::20\n186::302::3::9\n196::1::5::10\n",
    "movielens 25m": "userId,movieId,rating,timestamp\n196,242,3.5,20\n186,302,3,9\n196,1,5,10\n",
    "recbole": "user_id:token\titem_id:token\trating:float\ttimestamp:float\n"
    "196\t242\t3\t20.0\n186\t302\t3.0\t9e0\n196\t1\t5\t10\n",
    "columns anywhere": "ts;item;x;user\n20;242;a;196\n9;302;b;186\n10;1;c;196\n",
    "quotes": 'user,item,time\n"196","242",20\r\n"186",302,9\n196,1,"10"\n',
    "pipes": "196|242|3|20\n186|302|3|9\n196|1|5|10\n",
    "blanks": "\n  196   242 3\t20\n186 302 3 9  \n\n \t \n196 1 5 10",
    "blank cells": "user, item, time\n196, 242 ,20\n 186,302,9\n196,1, 10\n",
    "byte order mark": "\ufeffuser,item,time\n196,242,20\n186,302,9\n196,1,10\n",
}


@pytest.mark.parametrize("text", FORMS.values(), ids=FORMS)
def test_users_become_bags_in_the_order_of_time(file, text):
    for raw in (text.encode(), gzip.compress(text.encode())):
        file.write_bytes(raw)
        trace = read_interactions(file)
        assert bags_of(trace) == [[1, 242], [302]]
        assert trace.time_B.tolist() == [20, 9]
        assert trace.num_items == 303


def test_without_a_time_the_order_of_the_file_stays(file):
    file.write_text("7 5\n3 9\n7 2\n7 5\n")
    trace = read_interactions(file)
    assert bags_of(trace) == [[5, 2, 5], [9]]
    assert trace.time_B is None


def test_a_third_column_is_a_time_only_where_it_can_be_one(file):
    file.write_text("1 8 5\n1 3 4\n")
    assert read_interactions(file).time_B is None
    file.write_text("1 8 881250949\n1 3 881250940\n")
    assert bags_of(read_interactions(file)) == [[3, 8]]


def test_users_may_be_any_text_and_007_is_not_7(file):
    file.write_text("user,item\n007,1\nann,2\n7,3\nANN,4\nann,5\n\u00e9,6\n" + "x" * 300 + ",7\n")
    assert bags_of(read_interactions(file)) == [[1], [2, 5], [3], [4], [6], [7]]


def test_given_names_stand_for_a_header(file):
    file.write_text("1,2,9,pv,50\n1,4,9,buy,40\n")
    trace = read_interactions(file, columns=("user", "item", "category", "behaviour", "time"))
    assert bags_of(trace) == [[4, 2]]
    file.write_text("who,what\n1,2\n")
    assert bags_of(read_interactions(file, columns=("user", "item"))) == [[2]]


@pytest.mark.parametrize("head", ["", "\nu,i,r,t\n"])
def test_no_rating_is_read_as_a_time_where_a_column_is_not_named(file, head):
    file.write_text(head + "1,8,5,50\n1,3,4,40\n")
    told = rf"log\.txt:{1 + bool(head)}: the line has 4 columns and 3 are named; name each"
    with pytest.raises(GraceError, match=told):
        read_interactions(file, columns=("user", "item", "time"))
    assert bags_of(read_interactions(file, columns=("user", "item", "-", "time"))) == [[3, 8]]


def test_names_are_not_needed_beside_a_header_that_names_its_columns(file):
    file.write_text("user,item,rating,timestamp\n1,8,5,50\n")
    with pytest.raises(GraceError, match=r"4 columns and 2 are named; .*or leave columns= out"):
        read_interactions(file, columns=("user", "item"))


def test_named_columns_and_named_items_need_no_format(file):
    file.write_text("x,ann,milk\ny,bob,bread\nz,ann,bread\n")
    names = ItemNames()
    assert bags_of(read(file, columns=("-", "user", "item"), names=names)) == [[0, 1], [1]]
    assert names.names == ["milk", "bread"]


@pytest.mark.parametrize(
    ("columns", "format", "said"),
    [
        ("user,item", None, r"columns is text; give names, as \('user', 'item'\)"),
        (("user", "item"), "baskets", "format baskets has no columns to name; leave them out"),
        (("who", "item"), None, "the columns 'who, item' name no user or no item; call them user"),
        (None, None, r"name the columns from the left: read\(columns="),
    ],
)
def test_wrong_names_of_columns_are_told(file, columns, format, said):
    file.write_text("ann,x,y,z,milk\n")
    with pytest.raises(GraceError, match=said):
        read(file, format or "interactions", columns=columns)


@given(
    rows=st.lists(
        st.tuples(st.integers(0, 30), st.integers(0, 2**62 - 1), st.integers(0, 99)), min_size=1
    ),
    separator=st.sampled_from([",", "\t", "::", ";", "|", " "]),
    block_bytes=st.integers(1, 60),
    header=st.booleans(),
    end=st.sampled_from(["\n", "\r\n"]),
    users_a_piece=st.integers(1, 9),
    held=st.integers(0, 9),
    timed=st.booleans(),
)
def test_any_block_and_piece_give_the_bags_of_the_rows(
    scratch, rows, separator, block_bytes, header, end, users_a_piece, held, timed
):
    columns = 4 if timed else 2
    lines = [separator.join(["user", "item", "rating", "time"][:columns])] * header
    lines += [separator.join(map(str, (u, item, 3, time)[:columns])) for u, item, time in rows]
    scratch.write_bytes((end.join(lines) + end).encode())
    wanted = {}
    for user, item, time in rows:
        wanted.setdefault(user, []).append((time, item))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(integer_lines, "BLOCK_BYTES", block_bytes)
        patch.setattr(interaction_bags, "PIECE_USERS", users_a_piece)
        patch.setattr(interaction_bags, "HELD_LINES", held)
        trace = read_interactions(scratch)
        pieces = list(stream(scratch, "interactions"))
    assert [piece.num_bags for piece in pieces[:-1]] == [users_a_piece] * (len(pieces) - 1)
    assert [bag for piece in pieces for bag in bags_of(piece)] == bags_of(trace)
    if not timed:
        assert bags_of(trace) == [[item for _, item in bag] for bag in wanted.values()]
        return
    order = [[item for _, item in sorted(bag, key=lambda pair: pair[0])] for bag in wanted.values()]
    assert bags_of(trace) == order
    assert trace.time_B.tolist() == [max(bag)[0] for bag in wanted.values()]


BAD = {
    "few columns": ("user,item\n1,2\n3\n", "3: 1 columns, at least 2 expected"),
    "item a word": ("user,item\n1,2\n\n1,B0007\n", "4: 'B0007' is not an integer"),
    "item empty": ("user,item\n1,\n", "2: '' is not an integer"),
    "item negative": ("1 2\n1 -2\n", "2: '-2' is negative"),
    "item a float": ("1 2\n1 2.0\n", "2: '2.0' is not an integer"),
    "item too large": ("1 2\n1 4611686018427387904\n", "2: '4611686018427387904' is too large"),
    "time a date": ("user,item,time\n1,2,2001-01-01\n", "2: time '2001-01-01' is no number"),
    "time missing": ("user,item,time\n1,2,3\n1,2,\n", "3: time '' is no number"),
    "time not finite": ("user,item,time\n1,2,nan\n", "2: time 'nan' is no number"),
    "time underscored": ("user,item,time\n1,2,1_0.5\n", "2: time '1_0.5' is no number"),
    "time endless": (f"user,item,time\n1,2,{'1' * 99}\n", "2: time '1111"),
    "header unknown": ("a,b\n1,2\n", "1: no column of 'a, b' is known as the user"),
    "header without item": ("user,thing\n1,2\n", "is known as the item"),
    "columns unknown": ("1,2,3,4,5\n", "1: 5 columns without a header"),
    "one column": ("12\n13\n", "1: '12' is one column"),
    "empty": ("", "1: the file is empty"),
    "blank": ("\n \n", "1: no line is filled"),
    "header alone": ("user,item\n", "1: no line holds an interaction"),
    "NUL": ("1 \0 2\n", "1: the line holds a NUL byte"),
}


@pytest.mark.parametrize(("text", "said"), BAD.values(), ids=BAD)
def test_what_is_wrong_is_named_with_its_line(file, text, said):
    file.write_text(text)
    with pytest.raises(GraceError) as caught:
        read_interactions(file)
    message = str(caught.value)
    assert message.startswith(f"{file}:")
    assert said in message
    assert "; " in message
    assert "\n" not in message
    assert message.isascii()


def test_bad_lines_are_left_out_and_counted(file):
    file.write_text("user,item,time\n1,2,9\n3\n1,x,8\n2,-5,7\n1,4,\n2,6,7\n,,\n1,3,1\n")
    bad = BadLines()
    (trace,) = stream(file, "interactions", bad_lines=bad)
    assert bags_of(trace) == [[3, 2], [6]]
    assert bad.count == 5
    assert bad.first.startswith(f"{file}:3: 1 columns")
    file.write_text("1 x\n")
    with pytest.raises(GraceError, match="no column"):  # the first line is a header then
        list(stream(file, "interactions", bad_lines=BadLines()))
    file.write_text("1 1\n1 x\n")
    assert [bags_of(t) for t in stream(file, "interactions", bad_lines=bad)] == [[[1]]]


@pytest.mark.parametrize(
    ("head", "rows"), [("user,item\n", "ann,bob,ann,ann"), ("", "1,2,1,1"), ("", "ann,bob,ann,ann")]
)
def test_items_of_any_name_become_rows_in_the_order_of_the_file(file, head, rows):
    items = ["B007", '" a,b "', "B007", "18446744073709551615"]
    lines = [f"{u};{i}\n" for u, i in zip(rows.split(","), items, strict=True)]
    file.write_text((head.replace(",", ";")) + "".join(lines))
    names = ItemNames()
    (trace,) = stream(file, "interactions", names=names)
    assert bags_of(trace) == [[0, 0, 2], [1]]
    assert names.names == ["B007", "a,b", "18446744073709551615"]


def test_items_without_a_row_are_bad_lines(file, tmp_path):
    (tmp_path / "names").write_text("b\na\n")
    file.write_text("user,item\n1,a\n1,c\n1,\n1,b\n")
    with pytest.raises(GraceError, match=":4: the item is empty"):
        list(stream(file, names=ItemNames.load(tmp_path / "names")))
    bad = BadLines()
    (trace,) = stream(file, names=ItemNames.load(tmp_path / "names"), bad_lines=bad)
    assert (bags_of(trace), bad.count) == ([[1, 0]], 2)
    file.write_text("user,item\n1,a\n1,c\n")
    with pytest.raises(GraceError, match=":3: item 'c' has no row"):
        list(stream(file, names=ItemNames.load(tmp_path / "names")))


def test_a_bad_line_is_found_far_behind_the_first_block(file):
    file.write_bytes(b"user,item\n" + b"1,2\n" * 1_200_000 + b"1,x\n")
    with pytest.raises(GraceError, match=":1200002: 'x'"):
        read_interactions(file)


@given(
    text=st.text(alphabet='0123456789,;:| \t\r\n".-xu\0\u00e9', max_size=60), named=st.booleans()
)
def test_any_text_is_read_or_refused_in_one_line(scratch, text, named):
    scratch.write_bytes(text.encode())
    columns = ("user", "item", "time") if named else None
    try:
        trace = read_interactions(scratch, columns=columns)
    except GraceError as error:
        assert str(error).startswith(f"{scratch}:")  # noqa: PT017
        assert "\n" not in str(error)  # noqa: PT017
    else:
        assert trace.num_ids > 0


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ratings.dat", FORMS["movielens 1m"]),
        ("ratings.csv", FORMS["movielens 25m"]),
        ("ratings", FORMS["movielens 25m"]),
        ("ml.inter", FORMS["recbole"]),
        ("ml.inter.gz", FORMS["recbole"]),
        ("log.tsv", FORMS["movielens 100k"]),
    ],
)
def test_logs_are_told_by_their_first_line_or_name(tmp_path, name, text):
    raw = text.encode()
    (tmp_path / name).write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    assert bags_of(read(tmp_path / name)) == [[1, 242], [302]]


def test_a_real_trace_written_as_a_shuffled_log_reads_back(trace_path, file):
    trace = read(trace_path("ml100k"))
    bag_L = np.repeat(np.arange(trace.num_bags), np.diff(trace.offsets_B1))
    order = np.random.default_rng(0).permutation(trace.num_ids)
    rows = np.stack([bag_L, trace.ids_L, np.arange(trace.num_ids)], axis=1)[order]
    file.write_text(
        "user,item,time\n" + "\n".join(",".join(map(str, row)) for row in rows.tolist())
    )
    again = read_interactions(file)
    by_time = np.argsort(again.time_B)  # times rise with the bags of the source
    assert bags_of(again.take(by_time)) == [b for b in bags_of(trace) if b]


@pytest.mark.parametrize(
    "line",
    ['a,"Milk, 2L",9', 'a,"Milk ""x"", 2L",9', 'a,"2"", wide",9', 'a,",",9', '"Doe, Jane",b,9'],
)
def test_a_separator_inside_of_quotes_is_refused_and_merges_no_items(file, line):
    file.write_text(f'user,item,time\na,"Milk",7\n{line}\nb,"Bread",8\n')
    with pytest.raises(GraceError, match=r"log\.txt:3: a quote opens a column and does not"):
        list(stream(file, names=ItemNames()))
    names, bad = ItemNames(), BadLines()
    (trace,) = stream(file, names=names, bad_lines=bad)
    assert (bags_of(trace), names.names, bad.count) == ([[0], [1]], ["Milk", "Bread"], 1)


def test_quotes_that_close_and_columns_that_are_not_read_are_no_bad_lines(file):
    file.write_text('user,item,title\na,"x ""y""","Milk, 1L"\nb,5" disc,"a,\nc,"","z"\n')
    names, bad = ItemNames(), BadLines()
    list(stream(file, names=names, bad_lines=bad))
    assert names.names == ['x ""y""', '5" disc']
    assert (bad.count, "the item is empty" in bad.first) == (1, True)
