"""A profile folder comes back whole or is refused with one line; nothing is half-written."""

import json
import os
import pickle
import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grace_torchrec import artifact
from grace_torchrec.errors import GraceError
from grace_torchrec.traces.profile import Profile, TableProfile
from grace_torchrec.traces.trace import Trace

ARRAYS = artifact.ARRAYS_FILE


@pytest.fixture
def profile():
    plain = Trace.from_bags([[3, 1], [], [1, 1, 2]], num_items=7)
    full = Trace(
        plain.offsets_B1,
        plain.ids_L,
        9,
        np.array([1, 0.5, -1, 2, 0], np.float32),
        np.array([30, 10, 20]),
        np.array([0, 1, 0, 2, 0], np.uint8),
    )
    return Profile(
        {"t_item": TableProfile(plain, ("clicked", "bought")), "a.b/c": TableProfile(full, ("f",))}
    )


@pytest.fixture
def saved(profile, tmp_path):
    profile.save(tmp_path / "p")
    return tmp_path / "p"


def one_line(caught):
    assert "\n" not in str(caught.value)
    return str(caught.value)


def edit(folder, change):
    """Change profile.json, leaving its checksum of the arrays as it is."""
    document = json.loads((folder / "profile.json").read_text())
    change(document)
    (folder / "profile.json").write_text(json.dumps(document))


def rewrite(folder, change):
    """Change the arrays and renew the checksum, as a careful forger would."""
    document, arrays = artifact.read_folder(folder, "profile")
    change(arrays)
    shutil.rmtree(folder)
    artifact.write_folder(folder, "profile", document, arrays)


def test_everything_comes_back(profile, saved):
    loaded = Profile.load(saved)
    assert list(loaded.tables) == sorted(profile.tables) or set(loaded.tables) == set(
        profile.tables
    )
    assert loaded.fingerprint() == profile.fingerprint()
    for name, table in profile.tables.items():
        back = loaded.tables[name]
        assert back.features == table.features
        assert back.trace.num_items == table.trace.num_items
        assert back.counts_N.tolist() == table.counts_N.tolist()
        for array in ("offsets_B1", "ids_L", "weights_L", "time_B", "split_L"):
            want, got = getattr(table.trace, array), getattr(back.trace, array)
            np.testing.assert_array_equal(got, want)
            assert want is None or got.dtype == want.dtype


@settings(max_examples=30)
@given(st.lists(st.lists(st.integers(0, 20), max_size=5), max_size=8))
def test_any_trace_comes_back(tmp_path_factory, bags):
    folder = tmp_path_factory.mktemp("any") / "p"
    trace = Trace.from_bags(bags, num_items=21)
    Profile.from_trace("t", trace).save(folder)
    back = Profile.load(folder).tables["t"]
    assert back.features == ("t",)
    assert back.trace.offsets_B1.tolist() == trace.offsets_B1.tolist()
    assert back.trace.ids_L.tolist() == trace.ids_L.tolist()


def test_fingerprint_tells_bags_weights_features_and_rows_apart():
    bags = [[0, 1], [2]]
    base = Trace.from_bags(bags)
    weighted = Trace(base.offsets_B1, base.ids_L, 0, np.ones(3, np.float32))
    profiles = [
        Profile.from_trace("t", base),
        Profile.from_trace("u", base),
        Profile.from_trace("t", base, ("a", "b")),
        Profile.from_trace("t", Trace.from_bags(bags, num_items=4)),
        Profile.from_trace("t", Trace.from_bags([[0], [1, 2]])),
        Profile.from_trace("t", weighted),
    ]
    assert len({p.fingerprint() for p in profiles}) == len(profiles)
    assert profiles[0].fingerprint() == Profile.from_trace("t", Trace.from_bags(bags)).fingerprint()


def test_saving_again_replaces_the_profile_and_leaves_nothing_beside(profile, saved):
    Profile.from_trace("other", Trace.from_bags([[0]])).save(saved)
    assert list(Profile.load(saved).tables) == ["other"]
    assert os.listdir(saved.parent) == ["p"]


def test_something_else_is_never_replaced(profile, tmp_path):
    file, folder = tmp_path / "file", tmp_path / "folder"
    file.write_text("mine")
    folder.mkdir()
    (folder / "thesis.txt").write_text("mine")
    for place in (file, folder):
        with pytest.raises(GraceError, match="exists and is not a profile folder"):
            profile.save(place)
    assert file.read_text() == (folder / "thesis.txt").read_text() == "mine"
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]


def test_a_failed_save_leaves_the_old_profile_and_no_scraps(profile, saved, monkeypatch):
    before = Profile.load(saved).fingerprint()

    def full_disk(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises((GraceError, OSError)):
        Profile.from_trace("other", Trace.from_bags([[0]])).save(saved)
    monkeypatch.undo()
    assert Profile.load(saved).fingerprint() == before
    assert os.listdir(saved.parent) == ["p"]


def test_a_place_that_cannot_be_written_is_one_line(profile, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(GraceError) as caught:
        profile.save(tmp_path / "file" / "p")
    assert "cannot be written" in one_line(caught)


@pytest.mark.parametrize("name", ["profile.json", ARRAYS])
def test_a_missing_file_is_named(saved, name):
    (saved / name).unlink()
    with pytest.raises(GraceError) as caught:
        Profile.load(saved)
    assert name in one_line(caught)


@pytest.mark.parametrize("name", ["profile.json", ARRAYS])
@pytest.mark.parametrize("kept", [0.0, 0.3, 0.95])
def test_a_truncated_file_is_refused(saved, name, kept):
    whole = (saved / name).read_bytes()
    (saved / name).write_bytes(whole[: int(len(whole) * kept)])
    with pytest.raises(GraceError) as caught:
        Profile.load(saved)
    assert name in one_line(caught)


@settings(max_examples=30)
@given(position=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255))
def test_one_changed_byte_of_the_arrays_is_noticed(tmp_path_factory, position, flip):
    folder = tmp_path_factory.mktemp("edited") / "p"
    Profile.from_trace("t", Trace.from_bags([[0, 1], [2]])).save(folder)
    data = bytearray((folder / ARRAYS).read_bytes())
    data[int(position * len(data))] ^= flip
    (folder / ARRAYS).write_bytes(data)
    with pytest.raises(GraceError, match="does not match its checksum"):
        Profile.load(folder)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: d.update(schema=99), "profile schema 99"),
        (lambda d: d.pop("schema"), "profile schema None"),
        (lambda d: d.pop("tables"), "tables"),
        (lambda d: d.update(tables=[]), "profile.json"),
        (lambda d: d.update(tables={"t": 3}), "profile.json"),
        (lambda d: d["tables"]["t_item"].pop("features"), "features"),
        (lambda d: d["tables"]["t_item"].update(features=5), "profile.json"),
        (lambda d: d["tables"]["t_item"].update(features=["other"]), "do not match"),
        (lambda d: d["tables"]["t_item"].update(num_items="many"), "profile.json"),
        (lambda d: d["tables"]["t_item"].update(num_items=8), "do not match"),
        (lambda d: d["tables"]["t_item"].update(arrays=5), "arrays are missing"),
        (lambda d: d["tables"]["t_item"].update(arrays=1), "do not match"),
        (lambda d: d.pop("arrays_sha256"), "does not match its checksum"),
        (lambda d: d.update(arrays_sha256="0" * 64), "does not match its checksum"),
    ],
)
def test_an_edited_document_is_refused(saved, change, said):
    edit(saved, change)
    with pytest.raises(GraceError) as caught:
        Profile.load(saved)
    assert said in one_line(caught)


@pytest.mark.parametrize("text", ["", "[]", "3", "{", "nan", "[" * 100_000, "\0", "{}"])
def test_a_document_that_is_no_object_is_refused(saved, text):
    (saved / "profile.json").write_text(text)
    with pytest.raises(GraceError) as caught:
        Profile.load(saved)
    one_line(caught)


FORGERIES = {
    "no ids": lambda a: a.pop("0.ids"),
    "other ids": lambda a: a.update({"0.ids": a["0.ids"] + 1}),
    "negative id": lambda a: a.update({"0.ids": a["0.ids"] - 9}),
    "float ids": lambda a: a.update({"0.ids": a["0.ids"].astype(np.float32)}),
    "falling offsets": lambda a: a.update({"0.offsets": a["0.offsets"][::-1].copy()}),
    "NaN weights": lambda a: a.update({"1.weights": np.full(5, np.nan, np.float32)}),
    "more weights": lambda a: a.update({"0.weights": np.ones(5, np.float32)}),
}


@pytest.mark.parametrize("change", FORGERIES.values(), ids=FORGERIES)
def test_forged_arrays_with_a_good_checksum_are_refused(saved, change):
    rewrite(saved, change)
    with pytest.raises(GraceError) as caught:
        Profile.load(saved)
    one_line(caught)


def test_a_refused_array_names_the_folder(saved):
    rewrite(saved, FORGERIES["negative id"])
    with pytest.raises(GraceError) as caught:
        Profile.load(saved)
    assert str(saved) in one_line(caught)


@pytest.mark.parametrize("kind", ["BF16", "F8_E4M3", "X99"])
def test_a_number_type_that_numpy_lacks_is_one_line(saved, kind):
    header = json.dumps({"0.ids": {"dtype": kind, "shape": [2], "data_offsets": [0, 4]}}).encode()
    (saved / ARRAYS).write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 4)
    edit(saved, lambda d: d.update(arrays_sha256=artifact._sha256(saved / ARRAYS)))
    with pytest.raises(GraceError) as caught:
        Profile.load(saved)
    one_line(caught)


def test_features_are_told_apart_also_where_their_names_hold_commas():
    bags = Trace.from_bags([[0]])
    assert (
        TableProfile(bags, ("a,b",)).fingerprint() != TableProfile(bags, ("a", "b")).fingerprint()
    )


class Bomb:
    """An object whose unpickling would create a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (self.path, "w"))


@pytest.mark.parametrize("name", ["profile.json", ARRAYS])
def test_a_pickle_is_never_run(saved, tmp_path, name):
    payload = pickle.dumps(Bomb(str(tmp_path / "ran")))
    (saved / name).write_bytes(payload)
    with pytest.raises(GraceError):
        Profile.load(saved)
    if name == ARRAYS:  # with a checksum that fits
        checksum = artifact._sha256(saved / ARRAYS)
        edit(saved, lambda d: d.update(arrays_sha256=checksum))
        with pytest.raises(GraceError) as caught:
            Profile.load(saved)
        one_line(caught)
    assert not (tmp_path / "ran").exists()


def test_no_folder_is_one_line(tmp_path):
    for place in (tmp_path / "none", tmp_path):
        with pytest.raises(GraceError) as caught:
            Profile.load(place)
        assert "is not" in one_line(caught) or "no such file" in str(caught.value)


def test_table_names_are_data_not_paths(tmp_path):
    bags = Trace.from_bags([[0]])
    names = ("../../outside", "/etc/passwd", "0.ids", "", "a\nb", "\u00e9")
    Profile({name: TableProfile(bags, (name,)) for name in names}).save(tmp_path / "p")
    assert set(Profile.load(tmp_path / "p").tables) == set(names)
    assert os.listdir(tmp_path) == ["p"]
    assert sorted(os.listdir(tmp_path / "p")) == sorted(["profile.json", ARRAYS])


def test_a_link_to_a_profile_reads_and_its_target_survives_a_save(profile, saved):
    link = saved.parent / "link"
    link.symlink_to(saved, target_is_directory=True)
    assert Profile.load(link).fingerprint() == profile.fingerprint()
    other = Profile.from_trace("other", Trace.from_bags([[0]]))
    try:
        other.save(link)
    except GraceError:
        assert Profile.load(link).fingerprint() == profile.fingerprint()
    else:
        assert list(Profile.load(link).tables) == ["other"]
    Profile.load(saved)
    assert sorted(os.listdir(saved.parent)) == ["link", "p"]


def test_a_dangling_link_is_refused_or_filled_in_one_line(profile, tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    try:
        profile.save(tmp_path / "link")
    except GraceError as error:
        assert "link" in str(error)  # noqa: PT017
        assert os.listdir(tmp_path) == ["link"]
    else:
        assert Profile.load(tmp_path / "link").fingerprint() == profile.fingerprint()


def test_a_linked_array_file_is_not_followed(saved, tmp_path):
    (tmp_path / "secret").write_bytes(b"not yours")
    (saved / ARRAYS).unlink()
    (saved / ARRAYS).symlink_to(tmp_path / "secret")
    with pytest.raises(GraceError, match="is no plain file"):
        Profile.load(saved)
