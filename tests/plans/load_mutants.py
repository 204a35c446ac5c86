"""Damage copies of good plan folders in every way that comes to mind, and load each.

Run as a program: ``load_mutants.py SCRATCH COUNT SEED GOOD...``.  Loading may take 256 MiB beyond what
the process has when it starts; a mutant that takes 30 s of work, or is waited for 300 s, ends the
process.  Prints how many mutants were refused and how many loaded; what must not happen is an
AssertionError.
"""

import contextlib
import copy
import hashlib
import json
import os
import random
import resource
import shutil
import signal
import sys
from collections import Counter
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from grace_torchrec import artifact
from grace_torchrec.errors import GraceError
from grace_torchrec.plans.files import plan_fingerprint
from grace_torchrec.plans.plan import Plan

DOCUMENT, ARRAYS = "plan.json", "arrays.safetensors"
MOST_BYTES = 256 << 20
MOST_CPU_SECONDS, MOST_WAITED_SECONDS = 30, 300  # the machine may be busy
CHECKSUMS = ("plan_sha256", "arrays_sha256")
NONSENSE = [
    None, True, False, -1, 0, 1, 2, 0.5, -0.0, 1e308, 1e-320, 2**31, 2**47, 2**53 + 1, 2**63, 2**64,
    10**300, "", "x", "../../etc/passwd", "/dev/zero", "a\nb", "\x1b[2J", "x" * 100_000, 10**4000, [0] * 50_000, "\ud800", "use",
    "leave stock", "hbm", "host", "clusters", "subsets", "sets", "stock", "ahead", [], {}, [None], [[]],
    {"": 0}, [2**62] * 3,
]  # fmt: skip


def places(value, path=()):
    """Every place in a JSON document."""
    yield path
    inside = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, inner in inside:
        yield from places(inner, (*path, key))


def holder(document, path):
    """The object or list that holds a place."""
    for key in path[:-1]:
        document = document[key]
    return document


def seal(folder, document):
    """Write the document with checksums and fingerprints that fit it and the arrays beside it."""
    arrays = {}
    with contextlib.suppress(Exception):  # it is damaged: the checksum of the file has to do
        arrays = load_file(folder / ARRAYS)
    tables = document.get("tables")
    for index, table in enumerate(tables if isinstance(tables, list) else []):
        if not isinstance(table, dict):
            continue
        if "spec" in table and "spec_fingerprint" in table:
            table["spec_fingerprint"] = artifact.fingerprint(
                json.dumps(table["spec"], sort_keys=True)
            )
        own = {
            k.partition(".")[2]: a for k, a in arrays.items() if k.partition(".")[0] == str(index)
        }
        if "arrays_fingerprint" in table:
            parts = [part for name in sorted(own) for part in (name, own[name])]
            table["arrays_fingerprint"] = artifact.fingerprint(*parts)
    kept = {key: value for key, value in document.items() if key not in CHECKSUMS}
    kept["plan_sha256"] = hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()
    kept["arrays_sha256"] = hashlib.sha256((folder / ARRAYS).read_bytes()).hexdigest()
    (folder / DOCUMENT).write_text(json.dumps(kept))


def bytes_changed(folder, rng):
    """Change, cut, lengthen or empty one of the files, or change places."""
    file = folder / rng.choice((DOCUMENT, ARRAYS))
    data = bytearray(file.read_bytes())
    how = rng.choice(("flip", "flip", "cut", "longer", "drop", "double", "empty", "swap"))
    if how == "flip":
        for _ in range(rng.randint(1, 6)):
            data[rng.randrange(len(data))] = rng.randrange(256)
    elif how == "cut":
        del data[rng.randrange(len(data)) :]
    elif how == "longer":
        data += rng.randbytes(rng.randint(1, 5000))
    elif how == "drop":
        start = rng.randrange(len(data))
        del data[start : start + rng.randint(1, 100)]
    elif how == "double":
        start = rng.randrange(len(data))
        data[start:start] = data[start : start + rng.randint(1, 200)]
    elif how == "empty":
        data.clear()
    else:
        other = folder / (ARRAYS if file.name == DOCUMENT else DOCUMENT)
        data, file_data = bytearray(other.read_bytes()), bytes(data)
        other.write_bytes(file_data)
    file.write_bytes(bytes(data))


def files_changed(folder, rng):
    """Put something else in the place of a file."""
    file = folder / rng.choice((DOCUMENT, ARRAYS))
    good = file.read_bytes()
    file.unlink()
    how = rng.choice(("gone", "folder", "pipe", "link", "loop", "device", "sparse"))
    if how == "folder":
        file.mkdir()
    elif how == "pipe":
        os.mkfifo(file)
    elif how == "link":
        (folder / "real").write_bytes(good)
        file.symlink_to("real")
    elif how == "loop":
        file.symlink_to(file.name)
    elif how == "device":
        file.symlink_to(rng.choice(("/dev/zero", "/dev/random", "/proc/self/mem")))
    elif how == "sparse":
        file.write_bytes(good)
        os.truncate(file, len(good) + rng.choice((1, 4096, 1 << 24)))


def text_changed(folder, rng):
    """Write JSON that readers understand in different ways, or that is deep or long."""
    text = (folder / DOCUMENT).read_text()
    lines = text.splitlines()
    how = rng.choice(("twice", "nan", "digits", "deep", "exponent"))
    at = rng.randrange(1, len(lines) - 1)
    if how == "twice":
        lines.insert(at, lines[at] if lines[at].endswith(",") else lines[at] + ",")
    elif how in ("nan", "digits", "exponent"):
        value = {
            "nan": rng.choice(("NaN", "Infinity", "-Infinity")),
            "digits": "9" * 6000,
            "exponent": "1e999",
        }[how]
        key = lines[at].partition(": ")[0]
        lines[at] = f"{key}: {value}" + ("," if lines[at].endswith(",") else "")
    else:
        lines[at] = "[" * 100_000
    (folder / DOCUMENT).write_text("\n".join(lines))


def value_changed(folder, rng):
    """Put nonsense into the document, remove or add keys, and make all checksums fit."""
    document = json.loads((folder / DOCUMENT).read_text())
    found = [path for path in places(document) if path]
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        path = rng.choice(found)
        try:
            where = holder(document, path)
            how = rng.choice(("put", "put", "put", "near", "copy", "remove", "add"))
            if how == "put":
                where[path[-1]] = rng.choice(NONSENSE)
            elif how == "near" and isinstance(where[path[-1]], int | float):
                where[path[-1]] += rng.choice((-1, 1, 0.5, 2**33))
            elif how == "copy":
                other = rng.choice(found)
                where[path[-1]] = copy.deepcopy(holder(document, other)[other[-1]])
            elif how == "remove":
                del where[path[-1]]
            elif isinstance(where, dict):
                where[rng.choice(("odd", "", "schema", "reason", "a\n\x1b[2J", "k" * 9999))] = (
                    rng.choice(NONSENSE)
                )
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change took the place away
    try:
        seal(folder, document)
    except (UnicodeEncodeError, ValueError, OverflowError):
        (folder / DOCUMENT).write_text("{}")


def arrays_changed(folder, rng):
    """Change values, types, shapes or names of arrays, and make all checksums fit."""
    document = json.loads((folder / DOCUMENT).read_text())
    arrays = load_file(folder / ARRAYS)
    name = rng.choice(sorted(arrays))
    array = arrays[name].copy()
    how = rng.choice(
        (
            "value",
            "value",
            "value",
            "type",
            "shape",
            "cut",
            "longer",
            "gone",
            "renamed",
            "more",
            "other",
        )
    )
    if how == "value" and array.size:
        for _ in range(rng.randint(1, 3)):
            limits = np.iinfo(array.dtype)
            value = rng.choice(
                (-1, 0, 1, 7, 399, 400, limits.max, limits.min, int(array.max()) + 1)
            )
            array.flat[rng.randrange(array.size)] = min(max(value, limits.min), limits.max)
    elif how == "type":
        array = array.astype(
            rng.choice(
                (np.int8, np.int16, np.int32, np.int64, np.uint64, np.float32, np.float64, np.bool_)
            )
        )
    elif how == "shape":
        array = array.reshape(rng.choice(((1, -1), (-1, 1), (1, 1, -1))))
    elif how == "cut":
        array = array[: rng.randrange(array.size + 1)]
    elif how == "longer":
        array = np.concatenate([array, array[: rng.randint(1, 9)]])
    elif how == "other":
        array = arrays[rng.choice(sorted(arrays))]
    arrays[name] = array
    if how in ("gone", "renamed"):
        del arrays[name]
    if how in ("renamed", "more"):
        arrays[
            rng.choice(
                (
                    "0.odd",
                    "9.members",
                    "",
                    "x",
                    "../0.members",
                    "0.",
                    "00.members",
                    "0.\n\x1b[2J",
                    "n" * 9999,
                )
            )
        ] = array
    save_file(arrays, folder / ARRAYS)
    seal(folder, document)


def header_changed(folder, rng):
    """Change the header of the array file, and make all checksums fit."""
    document = json.loads((folder / DOCUMENT).read_text())
    data = (folder / ARRAYS).read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    name = rng.choice(sorted(header))
    how = rng.choice(("shape", "dtype", "offsets", "length", "nonsense"))
    if how == "shape":
        header[name]["shape"] = rng.choice(
            ([2**40], [2**62, 2**62], [-1], [], [0], [1] * 60, ["1"], None)
        )
    elif how == "dtype":
        header[name]["dtype"] = rng.choice(("F64", "BF16", "F8_E4M3", "I4", "", None, 3))
    elif how == "offsets":
        header[name]["data_offsets"] = rng.choice(([0, 0], [0, 2**62], [8, 0], [-8, 8], [0], None))
    elif how == "nonsense":
        header[rng.choice(("", "0.more", "__metadata__"))] = rng.choice(NONSENSE[:-1])
    try:
        text = json.dumps(header).encode()
    except UnicodeEncodeError:
        text = b"{"
    told = rng.choice((0, 2**20, 2**40, 2**63)) if how == "length" else len(text)
    (folder / ARRAYS).write_bytes(told.to_bytes(8, "little") + text + data[8 + length :])
    seal(folder, document)


KINDS = (
    bytes_changed,
    files_changed,
    text_changed,
    value_changed,
    value_changed,
    arrays_changed,
    header_changed,
)
UNSEALED = (bytes_changed, files_changed, text_changed)


def state(folder):
    """What is in a folder: names, kinds and contents."""
    found = {}
    for path in sorted(folder.rglob("*")):
        mode = path.lstat()
        plain = path.is_file() and not path.is_symlink() and mode.st_size < 1 << 22
        found[path.name] = (mode.st_mode, mode.st_size, path.read_bytes() if plain else None)
    return found


def load(folder):
    """Return the plan, or the error with which it was refused."""
    signal.setitimer(signal.ITIMER_PROF, MOST_CPU_SECONDS)
    signal.alarm(MOST_WAITED_SECONDS)
    try:
        return Plan.load(folder)
    except GraceError as error:
        return error
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)


def try_mutant(good, folder, rng, fingerprint):
    """Make one mutant, load it, and check what came of it."""
    shutil.copytree(good, folder)
    kind = rng.choice(KINDS)
    kind(folder, rng)
    before = state(folder)
    plan = load(folder)
    assert state(folder) == before, f"{kind.__name__}: the folder was changed"
    if isinstance(plan, GraceError):
        assert str(plan).isprintable(), repr(str(plan))[
            :300
        ]  # one line, and no escape for a terminal
        assert len(str(plan)) < 3000, str(plan)[:300]
        return f"{kind.__name__}: refused"
    if kind in UNSEALED:
        assert plan_fingerprint(plan) == fingerprint, f"{kind.__name__}: loads as another plan"
        return f"{kind.__name__}: loaded"
    again = folder.with_name("again")
    plan.save(again)
    told = json.loads((folder / DOCUMENT).read_text())
    saved = json.loads((again / DOCUMENT).read_text())
    if told["schema"] == saved["schema"]:  # else it was brought up to date
        for key in ("tables", "memory", "options", "profile_fingerprint", "sharding"):
            assert told[key] == saved[key], f"{kind.__name__}: {key} is not what the file says"
    assert all(text.isprintable() for text in [repr(plan), *map(repr, plan.tables.values())])
    assert plan_fingerprint(Plan.load(again)) == plan_fingerprint(plan)
    shutil.rmtree(again)
    return f"{kind.__name__}: loaded"


def main(scratch, count, seed, goods):
    """Try ``count`` mutants of all good folders in turn."""
    fingerprints = {good: plan_fingerprint(Plan.load(good)) for good in goods}
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + MOST_BYTES, now + MOST_BYTES))
    outcomes: Counter[str] = Counter()
    for number in range(count):
        folder = scratch / "mutant"
        good = goods[number % len(goods)]
        try:
            outcomes[
                try_mutant(good, folder, random.Random(f"{seed}.{number}"), fingerprints[good])
            ] += 1
        except BaseException as error:
            raise AssertionError(f"mutant {seed}.{number} of {good}, left in {folder}") from error
        shutil.rmtree(folder)
    print(json.dumps(dict(sorted(outcomes.items()))))  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), [Path(arg) for arg in sys.argv[4:]])
