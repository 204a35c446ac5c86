"""Whatever is given to a command, it answers with one line: what, where, and what to do in its own words."""

import gzip
import json
import os
import sys

import numpy as np
import pytest

from grace_torchrec.cli.main import main
from grace_torchrec.traces.profile import Profile
from grace_torchrec.traces.trace import Trace

MODEL = """
import torch
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor

def of(rows=40, name="t_item", ids=(1, 2), dtype=torch.float32):
    table = EmbeddingBagConfig(
        name=name, embedding_dim=16, num_embeddings=rows, feature_names=["item"]
    )
    model = torch.nn.Sequential(EmbeddingBagCollection(tables=[table])).to(dtype)
    bags = KeyedJaggedTensor.from_lengths_sync(["item"], torch.tensor(ids), torch.tensor([2]))
    return model, [(bags,)]

make, other, othername = of, lambda: of(rows=20), lambda: of(name="t_x")
badids, half, wrongbatch = lambda: of(ids=(1, 400)), lambda: of(dtype=torch.bfloat16), (
    lambda: (of()[0], [(torch.zeros(3),)])
)
tables = lambda: (torch.nn.Linear(2, 2), [(torch.zeros(1, 2),)])
value = 3

def boom():
    raise RuntimeError("no weights here")

def ends():
    raise EOFError

def torn():
    raise BrokenPipeError(32, "Broken pipe")

def leaves():
    raise SystemExit(0)

def odd():
    raise BaseException("odd")
"""
FILES = {
    "words.dat": b"milk bread\nbread\n",
    "words.txt": b"milk bread\n",
    "bare.csv": b"ann,7,x\nbob,8,y\n",
    "named.csv": b"ann,milk\nbob,bread\n",
    "wide.csv": b"1,2,3,4,5\n",
    "log.csv": b"user,item\nann,milk\n",
    "good.dat": b"1 2 3\n2 3\n1 2\n4 5\n1 39\n" * 4,
    "empty.dat": b"",
    "cut.dat.gz": gzip.compress(os.urandom(9000).hex().encode())[:900],
    "cut.npz": b"PK\x03\x04junk",
    "twice.txt": b"milk\nmilk\n",
    "text.json": b"{",
    "list.json": b"[]",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with wrong files, a model, and a profile and a plan of it."""
    folder = tmp_path_factory.mktemp("wrong")
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    np.savez(folder / "other.npz", a=np.arange(3))
    np.savez(folder / "rows.npz", indptr=[0, 2], indices=[1, 9], num_rows=5)
    (folder / "nothing").mkdir()
    (folder / "wrong_input_model.py").write_text(MODEL)
    trace = Trace.from_bags([[1, 2], [2, 39]] * 9, 40)
    Profile.from_trace("t_item", trace, ("item",)).save(folder / "profile")
    Profile.from_trace("t_x", trace, ("item",)).save(folder / "profile_x")
    return folder


@pytest.fixture
def here(folder, monkeypatch):
    """The folder, as the current one."""
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    yield folder
    sys.modules.pop("wrong_input_model", None)


def call(capsys, *args):
    """Exit code, standard output and standard error of a call."""
    with pytest.raises(SystemExit) as stop:
        main([str(arg) for arg in args])
    out, err = capsys.readouterr()
    return stop.value.code, out, err


def own(name):
    return f"wrong_input_model:{name}"


OUT = ("-o", "new")
PROFILE = ("--profile", "profile", "--memory", "cpu", *OUT)
REMAP, COLUMNS = "items of any name are numbered by --remap FILE", "--columns user,item,time"
AGAIN = "grace-torchrec profile TRACE --table NAME"
CALLS = [
    (("profile", "words.dat", *OUT), "words.dat:1: 'milk' is not an integer", REMAP),
    (("profile", "words.txt", *OUT), "words.txt:1: 'milk'", "name the format: --format", REMAP),
    (("profile", "log.csv", *OUT), "log.csv:2: 'milk' is not an integer", REMAP),
    (("profile", "bare.csv", *OUT, "--format", "interactions", "--columns", "a,b"), "name no user"),
    (("profile", "named.csv", *OUT), "no column of 'ann, milk' is known as the user", COLUMNS),
    (("profile", "wide.csv", *OUT), "5 columns without a header", COLUMNS),
    (("profile", "wide.csv", *OUT, "--columns", "user,,item"), "--columns", "user,item,time"),
    (("profile", "wide.csv", *OUT, "--columns", "user,user,item"), "two columns are the user"),
    (("profile", "wide.csv", *OUT, "--columns", "user,item,asin,-,-"), "two columns are the item"),
    (("profile", "good.dat", *OUT, "--format", "baskets", "--columns", "user,item"), "no columns"),
    (("profile", "empty.dat", *OUT), "empty.dat:1: the file is empty"),
    (("profile", "cut.dat.gz", *OUT), "cut.dat.gz: not readable", "fetch the file again"),
    (("profile", "cut.npz", *OUT), "cut.npz: not readable", "write it with numpy.savez"),
    (("profile", "other.npz", *OUT), "array indptr is missing", "write it with numpy.savez"),
    (("profile", "rows.npz", *OUT), "id 9, the table has 5 rows", "give num_rows >= 10"),
    (("profile", "missing", *OUT), "missing: cannot be read", "give a readable file"),
    (("profile", "nothing", *OUT), "nothing: the folder has no files", "give the shards"),
    (("profile", "words.dat", *OUT, "--remap", "twice.txt"), "twice.txt:2: item 'milk'"),
    (("profile", "words.dat", *OUT, "--remap", "cut.dat.gz"), "cut.dat.gz: not readable"),
    (("profile", "words.dat", *OUT, "--remap", "n", "--processes", 2), "leave --processes out"),
    (("profile", "good.dat", *OUT, "--share", "nan"), "'--share': nan is no finite number"),
    (("profile", "good.dat", *OUT, "--share", "1e-12"), "--share 1e-12 keeps none of the 20 bags"),
    (("profile", "good.dat", *OUT, "--table", ""), "--table and each --feature are names"),
    (("profile", "good.dat", *OUT, "--feature", "a", "--feature", "a"), "no feature twice"),
    (("profile", "good.dat", "-o", "list.json"), "'list.json' exists and is not a profile folder"),
    (("profile", "good.dat", "-o", ""), "'-o' / '--out': it is empty"),
    (("demo", "--trace", "words.dat"), "words.dat:1: 'milk' is not an integer", REMAP),
    (("demo", "--columns", "user,item"), "are for a --trace"),
    (("demo", "--budget", "nan"), "'--budget': nan is no finite number"),
    (("plan", own("other"), *PROFILE), "ids up to 39, in the model it has 20 rows", AGAIN),
    (("plan", own("othername"), *PROFILE), "table 't_item' is not in the model", AGAIN),
    (("plan", own("half"), *PROFILE), "has type bfloat16", "convert it with .float()"),
    (("plan", own("tables"), *PROFILE), "no stock EmbeddingBagCollection; give its pooled tables"),
    (("plan", own("boom"), *PROFILE), "RuntimeError: no weights here: raised by code of yours at "
     "wrong_input_model.py:21, mend it there (grace-torchrec --traceback"),
    *[(("plan", own(name), *PROFILE), f"{told}: raised by code of yours at wrong_input_model.py:{line}")
      for name, told, line in (("ends", "EOFError", 24), ("torn", "[Errno 32] Broken pipe", 27),
                               ("leaves", "SystemExit: 0", 30), ("odd", "odd", 33))],
    (("inspect", own("leaves")), "SystemExit: 0: raised by code of yours"),
    (("plan", own("value"), *PROFILE), "is no function"),
    (("plan", own("none"), *PROFILE), "wrong_input_model.py has no none; check the name"),
    (("convert", "profile", own("make"), *OUT), "is a folder, PLAN", "is none: swap them"),
    (("plan", own("make"), *PROFILE, "--hbm-bytes", 9), "cpu: has no HBM; leave --hbm-bytes out"),
    (("plan", own("make"), *PROFILE, "--hbm-bytes", -1), "'--hbm-bytes': -1 is not in the range"),
    (("plan", own("make"), *PROFILE, "--memory", "text.json"),
     "text.json: is no memory file, which is JSON; use one of a40"),
    (("inspect", "good.dat"), "this is no plan of grace-torchrec", "no sharding plan of TorchRec"),
    (("plan", own("make"), *PROFILE, "--profile", "nothing"), "is nothing a profile folder?"),
    (("plan", own("make"), *PROFILE, "-o", "words.dat/x"), "words.dat' is no folder"),
    (("profile", "profile", *OUT), "TRACE 'profile' is a profile folder: give a trace"),
    (("plan", "profile", *PROFILE), "is a profile folder; give the function that makes the model"),
    (("plan", own("make"), *PROFILE, "--profile", "good.dat"), "is a file: give a profile folder"),
    (("convert", own("make"), "profile/profile.json", *OUT), "is a file: give a plan folder"),
    (("serve-bench", own("make"), "--model", own("make")), "--model is for a SERVED folder"),
    (("plann",), "No such command 'plann': plan is written alike. Try 'grace-torchrec --help'"),
    (("--jsn",), "No such option '--jsn'"),
    (("inspect", "list.json"), "list.json: holds no JSON object"),
    (("inspect", "profile"), "profile/plan.json: no such file; profile is a profile folder: give a"),
    (("inspect", "nothing"), "nothing/plan.json: no such file; is nothing a plan folder?"),
    (("inspect", own("value")), "is no function"),
    (("simulate", own("wrongbatch")), "the model refuses its example batch: AttributeError"),
    (("simulate", "dlrm", "--open", "poisson", "--rate", "inf"), "inf is no finite number"),
    (("schedule", own("badids")), "refuses its example batch: RuntimeError: Index"),
    (("serve-bench", "missing"), "'missing': no such SERVED folder; as a MODEL, write missing:make"),
    (("serve-bench", "nothing"), "give --model package.module:function. Try"),
    (("serve-bench", own("wrongbatch")), "batch 0 holds 0 KeyedJaggedTensors, one expected; give"),
    (("serve-bench", own("badids")), "feature 'item': sample 0 holds id 400, the table has 40 rows"),
    (("serve-bench", own("make"), "--figure", "x.docx"), "x.docx: no type of pictures; name it"),
    (("serve-bench", own("make"), "--figure", "x.svgz"), "no type of pictures; name it .png, .svg"),
    (("serve-bench", "--trace", "named.csv"), "no column of 'ann, milk'", COLUMNS),
    (("serve-bench", "--tolerance", "nan"), "'--tolerance': nan is no finite number"),
    (("calibrate", "--row-bytes", -4), "row_bytes must be a multiple of 4 from 4 to", "got -4"),
]  # fmt: skip


@pytest.mark.parametrize("args", CALLS, ids=lambda args: " ".join(map(str, args[0])))
def test_wrong_input_is_one_line_that_says_what_where_and_what_to_do(capsys, here, args):
    before = sorted(path.name for path in here.iterdir() if path.name != "__pycache__")
    code, out, err = call(capsys, *args[0])
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert "read(" not in err  # no word of Python for what an option does
    for told in args[1:]:
        assert told in err
    after = sorted(path.name for path in here.iterdir() if path.name != "__pycache__")
    assert after == before


def test_what_the_errors_name_is_what_helps(capsys, here, tmp_path):
    """A log without header whose items are words: the options of both errors make it a profile."""
    code, out, _ = call(
        capsys, "profile", "named.csv", "-o", tmp_path / "p", "--columns", "user,item",
        "--remap", tmp_path / "names.txt", "--json",
    )  # fmt: skip
    assert (code, '"bags": 2' in out) == (0, True)
    assert (tmp_path / "names.txt").read_text() == "milk\nbread\n"
    code, out, _ = call(
        capsys, "profile", "wide.csv", "-o", tmp_path / "q", "--columns", "-,user,-,item,-",
        "--json",
    )  # fmt: skip
    assert (code, '"items": 5' in out) == (0, True)


def test_a_plan_for_another_model_and_a_batch_outside_the_table_are_told(capsys, here, tmp_path):
    plan = tmp_path / "plan"
    args = ("plan", own("make"), "--profile", "profile", "--memory", "a100", "-o", plan)
    assert call(capsys, *args)[0] == 0
    for model, told in {
        "other": "table '0.t_item' has num_rows 20 in the model, the plan was made for 40; plan",
        "badids": "holds id 400, the table has 40 rows; fix the ids, or plan with --bad-ids drop",
        "wrongbatch": "the model refuses the example: batch is a Tensor, a KeyedJaggedTensor is",
    }.items():
        code, _, err = call(capsys, "convert", own(model), plan, "-o", tmp_path / "s")
        assert (code, told in err, err.count("\n")) == (2, True, 1), err
    code, _, err = call(capsys, "report", plan, "--profile", "profile_x", "-o", tmp_path / "r.html")
    assert (code, "table 't_x' is not in the model" in err) == (2, True)
    assert call(capsys, *args, "--bad-ids", "drop")[0] == 0
    assert call(capsys, "convert", own("badids"), plan, "-o", tmp_path / "s")[0] == 0


def test_a_traceback_is_shown_where_it_is_asked_for_and_a_fault_of_ours_has_its_own_code(
    capsys, here, monkeypatch
):
    code, _, err = call(capsys, "--traceback", "plan", own("boom"), *PROFILE)
    assert (code, "Traceback (most recent call last)" in err) == (2, True)
    assert err.splitlines()[-1].startswith("error: RuntimeError: no weights here")
    monkeypatch.setattr(Profile, "load", json.loads)  # raises in a library that we called
    code, _, err = call(capsys, "plan", own("make"), *PROFILE)
    assert (code, err.count("\n")) == (70, 1)
    assert "TypeError: the JSON object must be" in err
    assert "raised at plan.py:" in err


def test_a_folder_that_is_gone_is_named(capsys, tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    code, _, err = call(capsys, "profile", "x.dat", "-o", "new")
    assert (code, err) == (2, "error: the current folder is gone; change to one that is there\n")
