"""Provenance: a job carries the checksums that its files carry."""

import json

import pytest

import grace_torchrec as grace
from grace_torchrec.launch import components, provenance

PROFILE, PLAN = "0123456789abcdef", "c0ffee" + "0" * 58


def test_the_fingerprint_of_a_profile_is_read_without_its_arrays(folder):
    trace = grace.Trace.from_bags([[0, 1], [1, 2]])
    profile = grace.Profile({
        name: grace.Profile.from_trace(name, trace).tables[name] for name in ("t_b", "t_a")
    })  # fmt: skip
    profile.save("profile")
    (folder / "profile" / "arrays.safetensors").unlink()
    assert provenance.of_profile("profile") == {"profile_fingerprint": profile.fingerprint()}


def test_checksums_are_metadata_and_environment(plan_folder):
    app = components.convert(model="dlrm", plan=plan_folder, out="served")
    assert app.metadata == {"plan_sha256": PLAN, "profile_fingerprint": PROFILE}
    wanted = {"GRACE_PLAN_SHA256": PLAN, "GRACE_PROFILE_FINGERPRINT": PROFILE}
    assert app.roles[0].env == wanted


def test_a_served_folder_has_those_of_its_plan(folder, plan_folder):
    (folder / "served").mkdir()
    (folder / "plan").rename(folder / "served" / "plan")
    assert components.serve_bench(served="served").metadata["plan_sha256"] == PLAN
    assert components.serve_bench(served="dlrm").metadata == {}


def test_a_folder_that_is_elsewhere_has_none_here(folder):
    assert components.convert(model="dlrm", plan="/cluster/plan", out="s").metadata == {}


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"plan_sha256": 5}', '{"tables": []}'])
def test_a_damaged_folder_is_refused_before_anything_is_launched(folder, content):
    for name in ("plan", "profile"):
        (folder / name).mkdir()
        (folder / name / f"{name}.json").write_text(content)
    with pytest.raises(grace.GraceError, match=r"plan\.json.* again"):
        components.convert(model="dlrm", plan="plan", out="served")
    with pytest.raises(grace.GraceError, match=r"profile\.json.* again"):
        components.plan(model="dlrm", profile="profile", memory="h200")


def test_the_checksum_is_the_one_a_saved_plan_carries(plan_folder, folder):
    document = json.loads((folder / "plan" / "plan.json").read_text())
    assert provenance.of_plan("plan")["plan_sha256"] == document["plan_sha256"]
