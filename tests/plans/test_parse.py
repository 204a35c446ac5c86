"""Parse: no damage to a plan folder comes back as a plan, even where every checksum fits it."""

import copy
import hashlib
import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from grace_torchrec import artifact
from grace_torchrec.errors import GraceError
from grace_torchrec.plans.files import plan_fingerprint
from grace_torchrec.plans.make import make_plan
from grace_torchrec.plans.plan import Plan, PlanOptions
from grace_torchrec.plans.versions import SCHEMA
from grace_torchrec.traces.profile import Profile, TableProfile

KEY = "sparse.ebc.t_item"


@pytest.fixture(scope="module")
def saved(small_plan, tmp_path_factory):
    """The parts of a good plan folder: (document, arrays)."""
    path = tmp_path_factory.mktemp("plans") / "plan"
    small_plan.save(path)
    return json.loads((path / "plan.json").read_text()), load_file(path / "arrays.safetensors")


def seal(path, document, arrays=None):
    """Write a plan folder whose every checksum and fingerprint fits what is in it.

    Without ``arrays`` those that stand there already are kept.
    """
    if arrays is not None:
        artifact.write_folder(path, "plan", {}, arrays)
        for index, table in enumerate(document["tables"]):
            own = {
                key.split(".", 1)[1]: a
                for key, a in arrays.items()
                if key.split(".")[0] == str(index) and key != f"{index}.parts"
            }
            parts = [part for name in sorted(own) for part in (name, own[name])]
            table["arrays_fingerprint"] = artifact.fingerprint(*parts)
    written = hashlib.sha256((path / "arrays.safetensors").read_bytes()).hexdigest()
    for table in document.get("tables") if isinstance(document.get("tables"), list) else []:
        if isinstance(table, dict) and "spec_fingerprint" in table and "spec" in table:
            table["spec_fingerprint"] = artifact.fingerprint(
                json.dumps(table["spec"], sort_keys=True)
            )
    kept = {
        key: value for key, value in document.items() if key not in ("plan_sha256", "arrays_sha256")
    }
    if "plan_sha256" in document:
        kept["plan_sha256"] = hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()
    (path / "plan.json").write_text(json.dumps({**kept, "arrays_sha256": written}))


@pytest.fixture
def folder(saved, tmp_path):
    """A good plan folder, to be damaged."""
    seal(tmp_path / "plan", copy.deepcopy(saved[0]), saved[1])
    return tmp_path / "plan"


def leaves(value, path=()):
    """Yield the path of every value in a JSON document, objects and lists included."""
    yield path
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, inner in items:
        yield from leaves(inner, (*path, key))


def put(document, path, value):
    """Return a copy of the document with another value at ``path``."""
    changed = copy.deepcopy(document)
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return changed


def test_the_plan_has_sums_hot_rows_and_a_stock_table_so_that_damage_can_reach_all(small_plan):
    item, user, new = small_plan.tables.values()
    assert item.sums.num_sums
    assert item.placement.hot_items.size
    assert (user.method, new.verdict) == ("none", "leave stock")
    assert user.placement.hot_items.size


def test_sealing_a_plan_again_gives_a_plan(saved, tmp_path):
    seal(tmp_path / "plan", copy.deepcopy(saved[0]), saved[1])
    assert KEY in Plan.load(tmp_path / "plan").tables


# none of these is a good value anywhere in a plan, except where a test below says so
NONSENSE = [
    None,
    True,
    -1,
    0.5,
    float("nan"),
    float("inf"),
    2**70,
    "nonsense",
    [],
    {},
    [None],
    {"x": 1},
]
FREE_TEXT = {"module", "name", "reason", "lookup_reason", "machine", "profile_fingerprint"}
FREE_NUMBER = {
    "hbm_s",
    "host_s",
    "stock_hbm_s",
    "stock_host_s",
    "budget",
    "min_gain",
    "bytes_per_s",
    "launch_s",
    "reads",
}


def may_be_good(path, value):
    """Tell values that a plan may really hold: no reader can tell them from the truth."""
    name = path[-1]
    if ("features" in path[:-1] and isinstance(value, str)) or (
        name == "is_weighted" and value is True
    ):
        return True
    if (path[0] == "software" and (len(path) > 1 or isinstance(value, dict))) or (
        name in FREE_TEXT and isinstance(value, str)
    ):
        return True
    if path[:2] == ("options", "methods") and value == []:
        return True
    if "curve" in path or "cuts" in path:
        return is_other_curve(path, value)
    if name == "parameter" and isinstance(value, str):
        return True
    if path in (("tables", 2, "code"), ("sharding",)) and value is None:  # as it was
        return True
    if name == "num_bytes" and value == 2**70:
        return True
    if name in ("cache_bytes", "launch_s", "lookup_costs") and value is None:  # not known
        return True
    if name in ("sector_bytes", "cache_bytes", "reads") and type(value) is int and value > 0:
        return True
    number = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e300
    return name in FREE_NUMBER and number


def is_other_curve(path, value):
    """Tell what cuts and curves may say: they are figures, nothing follows from them."""
    if path[-1] in ("cuts", "curve"):
        return value in ({}, []) or (path[-1] == "cuts" and value == {"x": 1})
    return ("cuts" in path or path[-1] in ("in_line_cut", "ahead_cut")) and value == 0.5


SEALS = {"plan_sha256", "arrays_sha256", "arrays_fingerprint", "spec_fingerprint"}


def test_every_value_of_the_document_is_checked(saved, folder):
    tried = 0
    for path in leaves(saved[0]):
        if not path or path[-1] in SEALS:
            continue
        for value in NONSENSE:
            if may_be_good(path, value):
                continue
            seal(folder, put(saved[0], path, value))
            with pytest.raises(GraceError) as error:
                pytest.fail(f"{path} = {value!r} gave {Plan.load(folder).tables.keys()}")
            assert "\n" not in str(error.value), path
            tried += 1
    assert tried > 800


def test_every_key_of_the_document_is_needed_and_no_other_is_known(saved, folder):
    for path in leaves(saved[0]):
        if (
            not path
            or path[0] == "software"
            or not isinstance(path[-1], str)
            or path == ("arrays_sha256",)
            or "cuts" in path[:-1]
        ):
            continue
        for odd in (False, True):
            document = copy.deepcopy(saved[0])
            inner = document
            for key in path[:-1]:
                inner = inner[key]
            if odd:
                inner["odd"] = 1
            else:
                del inner[path[-1]]
            seal(folder, document)
            with pytest.raises(GraceError):
                pytest.fail(f"around {path}: gave {Plan.load(folder).tables.keys()}")


def test_a_changed_value_is_seen_even_where_it_would_be_a_good_one(saved, folder):
    for path in leaves(json.loads((folder / "plan.json").read_text())):
        if path:
            changed = put(json.loads((folder / "plan.json").read_text()), path, "changed")
            text = (folder / "plan.json").read_text()
            (folder / "plan.json").write_text(json.dumps(changed))
            with pytest.raises(GraceError):
                Plan.load(folder)
            (folder / "plan.json").write_text(text)


def damaged(array):
    """Yield arrays that are not what was written."""
    others = [array.astype(np.float32), array.astype(np.int16), array[:-1], array[None], array[:0]]
    others.append(np.append(array, np.array([3], array.dtype)))
    for place in {0, array.size // 2, array.size - 1} if array.size else ():
        for value in (-2, int(array[place]) + 1, 399, 400, 2**31 - 1):
            others.append(array.copy())
            others[-1][place] = np.int64(value).astype(array.dtype)
    for other in others:
        if other.dtype != array.dtype or not np.array_equal(other, array):
            yield other


def test_every_array_is_checked(saved, folder):
    document, arrays = saved
    other_hot_rows = 0
    for name, array in arrays.items():
        for other in damaged(array):
            if name.endswith("hot_items") and is_layout(other, array):
                other_hot_rows += 1  # as many other hot rows make a plan as well
                continue
            if name.endswith("sum_reads") and is_other_reads(other, array):
                continue
            seal(folder, copy.deepcopy(document), {**arrays, name: other})
            with pytest.raises(GraceError):
                pytest.fail(
                    f"{name} = {other!r} of {array!r} gave {Plan.load(folder).tables.keys()}"
                )
        seal(folder, copy.deepcopy(document), {k: v for k, v in arrays.items() if k != name})
        with pytest.raises(GraceError):
            Plan.load(folder)
    assert other_hot_rows < 20


# where one array alone may say something else that is as good: other subsets, sets in another order
# and masks may be split otherwise
FREE_ARRAYS = {"entries", "set_items", "others", "sum_reads", "parts"}


@pytest.mark.parametrize("method", ["subsets", "set_merge"])
def test_every_array_of_every_code_is_checked(spec_of, grouped, two_memories, tmp_path, method):
    profile = Profile({"t_item": TableProfile(grouped(num_items=40), ("item",))})
    options = PlanOptions(methods=(method,), rewriting="ahead")
    plan = make_plan([spec_of(num_rows=40)], profile, two_memories(10**6), options)
    plan.save(tmp_path / "good")
    document = json.loads((tmp_path / "good" / "plan.json").read_text())
    arrays = load_file(tmp_path / "good" / "arrays.safetensors")
    assert plan.tables[KEY].method == method
    for name, array in arrays.items():
        for other in damaged(array):
            seal(tmp_path / "plan", copy.deepcopy(document), {**arrays, name: other})
            try:
                back = Plan.load(tmp_path / "plan")
            except GraceError as error:
                assert "\n" not in str(error)  # noqa: PT017
            else:
                assert name.removeprefix("0.") in FREE_ARRAYS, other
                assert back.tables[KEY].num_sums == plan.tables[KEY].num_sums
        seal(
            tmp_path / "plan",
            copy.deepcopy(document),
            {k: v for k, v in arrays.items() if k != name},
        )
        if name == "0.parts":  # formed again
            assert plan_fingerprint(Plan.load(tmp_path / "plan")) == plan_fingerprint(plan)
            continue
        with pytest.raises(GraceError):
            Plan.load(tmp_path / "plan")
    others = {"subsets": "sets", "set_merge": "subsets"}
    for code in (others[method], "clusters", "pickle", None):
        seal(tmp_path / "plan", put(document, ("tables", 0, "code"), code), arrays)
        with pytest.raises(GraceError, match="table 0"):
            Plan.load(tmp_path / "plan")


def is_other_reads(reads, original):
    """Tell whether these would be reads of as many sums, or reads that are not known."""
    fits = reads.dtype == original.dtype and reads.ndim == 1 and reads.size in (0, original.size)
    return fits and bool((reads >= 0).all())


def is_layout(hot, original):
    """Tell whether these hot rows would be a layout of the same size."""
    fits = (
        hot.dtype == original.dtype
        and hot.shape == original.shape
        and bool((np.diff(hot) > 0).all())
    )
    return fits and hot[0] >= 0 and hot[-1] < 400


def test_code_that_disagrees_with_its_clusters_is_refused(saved, tmp_path):
    document, arrays = saved
    members = arrays["0.members"][::-1].copy()
    seal(tmp_path / "plan", copy.deepcopy(document), {**arrays, "0.members": members})
    with pytest.raises(GraceError, match="item_code does not agree with the clusters"):
        Plan.load(tmp_path / "plan")


def test_rows_that_are_only_claimed_are_never_allocated(saved, tmp_path):
    document, arrays = saved
    claimed = put(document, ("tables", 0, "spec", "num_rows"), 2**47)
    seal(tmp_path / "plan", claimed, arrays)
    with pytest.raises(GraceError, match=f"item_code has 400 entries for {2**47} rows"):
        Plan.load(tmp_path / "plan")


def test_arrays_of_no_table_and_tables_named_twice_are_refused(saved, tmp_path):
    document, arrays = saved
    seal(tmp_path / "plan", copy.deepcopy(document), {**arrays, "9.members": arrays["0.members"]})
    with pytest.raises(GraceError, match=r"arrays of no table \(9\.members\)"):
        Plan.load(tmp_path / "plan")
    twice = put(document, ("tables",), [*document["tables"], document["tables"][2]])
    seal(tmp_path / "plan", copy.deepcopy(twice), arrays)
    with pytest.raises(GraceError, match="there twice"):
        Plan.load(tmp_path / "plan")


@pytest.mark.parametrize("schema", [0, SCHEMA + 1, "1", 1.0, True, None])
def test_another_schema_is_refused(saved, tmp_path, schema):
    seal(tmp_path / "plan", put(saved[0], ("schema",), schema), saved[1])
    with pytest.raises(GraceError, match="schema"):
        Plan.load(tmp_path / "plan")
