"""served.json is read as from a stranger: what cannot be is one error, also behind a checksum that fits."""

import json

import pytest

from grace_torchrec.errors import GraceError
from grace_torchrec.serve import document as documents
from grace_torchrec.serve.document import ServedDocument, described, read_served


@pytest.fixture(scope="module")
def written(model_of, served_of):
    return json.loads(json.dumps(described(served_of(model_of()), 3, "0" * 16, None)))


def put(folder, document):
    """Write a document with a checksum that fits."""
    plain = {key: value for key, value in document.items() if key != documents.CHECKSUM}
    text = json.dumps({**plain, documents.CHECKSUM: documents._sha256(plain)})
    (folder / "served.json").write_text(text)


def test_what_was_written_is_read(written, model_of, served_of, tmp_path):
    put(tmp_path, written)
    served = served_of(model_of())
    found = read_served(tmp_path)
    wanted = ServedDocument(3, served.conversion, found.stats, found.schedule, "0" * 16, None)
    assert read_served(tmp_path) == wanted
    assert len(found.stats.stats) == len(served.scheduled.stats.stats)
    assert found.schedule.names == tuple(op.name for op in served.scheduled.schedule.graph.ops)


def test_a_folder_of_schema_1_has_no_schedule(written, tmp_path):
    put(
        tmp_path,
        {name: part for name, part in written.items() if name != "schedule"} | {"schema": 1},
    )
    assert read_served(tmp_path).schedule is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("version", -1),
        ("version", "1"),
        ("version", True),
        ("arrays_checksum", None),
        ("script_sha256", 7),
        ("stats", {"stats": [{"time_us": -1.0}]}),
        ("stats", [1]),
        ("stats", None),
        ("schedule", {}),
        ("schedule", [1]),
        (
            "schedule",
            {"names": ["a", "b"], "stream_n": [0], "order_n": [0, 1], "code": "", "reason": None},
        ),
        ("schedule", {"names": ["a"], "stream_n": [0], "order_n": [7], "code": "", "reason": None}),
        (
            "schedule",
            {"names": ["a"], "stream_n": [-1], "order_n": [0], "code": "", "reason": None},
        ),
        (
            "schedule",
            {"names": ["a"], "stream_n": [0.0], "order_n": [0], "code": "", "reason": None},
        ),
        ("schedule", {"names": [1], "stream_n": [0], "order_n": [0], "code": "", "reason": None}),
        ("schedule", {"names": ["a"], "stream_n": [0], "order_n": [0], "code": 7, "reason": None}),
        ("conversion", None),
        ("conversion", {"target": "module"}),
    ],
)
def test_what_cannot_be_is_refused(name, value, written, tmp_path):
    put(tmp_path, {**written, name: value})
    with pytest.raises(GraceError, match="save"):
        read_served(tmp_path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("target", "onnx"),
        ("row_types", {"sparse.t_item": "int2"}),
        ("row_types", ["int8"]),
        ("streams", 0),
        ("num_slots", 3),
        ("bad_ids", "guess"),
        ("strict", 1),
        ("speed", 9),
    ],
)
def test_a_conversion_that_cannot_be_is_refused_by_name(name, value, written, tmp_path):
    put(tmp_path, {**written, "conversion": {**written["conversion"], name: value}})
    with pytest.raises(GraceError, match=name):
        read_served(tmp_path)


def test_an_edit_by_hand_is_seen(written, tmp_path):
    (tmp_path / "served.json").write_text(json.dumps({**written, "version": 4}))
    with pytest.raises(GraceError, match="was changed after it was written"):
        read_served(tmp_path)
