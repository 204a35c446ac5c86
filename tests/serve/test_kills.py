"""A writer that is killed at any point leaves a folder that loads, and loads right, or none.

A child of this process writes again and again until it is killed; what stands there must be one of
the things that it wrote, whole.  ``make soak`` kills 200 times, at random; here each step of the
writing is the last one once, and a few kills come at random.
"""

import mmap
import os
import random
import signal
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchrec import KeyedJaggedTensor

from grace_torchrec import artifact
from grace_torchrec.plans.plan import Plan
from grace_torchrec.serve.delta import publish_delta
from grace_torchrec.serve.files import load_served
from grace_torchrec.traces.profile import Profile
from grace_torchrec.traces.recorder import TraceRecorder
from grace_torchrec.traces.trace import Trace

KINDS = ("profile", "plan", "served")
STEPS = ("_fsync", "_swap_in", "_exchange", "write_document", "save_file")


def in_child(work: Callable[[], None], seconds: float | None) -> int:
    """Run ``work`` in a child, kill it after some seconds (None: it ends by itself); return its status."""
    child = os.fork()
    if not child:
        try:
            work()
        finally:
            os._exit(0)  # no clean-up of pytest's in the child
    if seconds is not None:
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1]


@pytest.fixture(scope="module")
def writing(
    model_of, plan_for, served_of, batch
) -> dict[str, tuple[list[Any], Callable, Callable]]:
    """Kind -> what is written in turns, a loader, and what tells two loaded ones apart."""
    rng = np.random.default_rng(0)
    traces = [Trace.from_bags([rng.integers(0, 99, 9).tolist()] * n, 99) for n in (300, 900)]
    model, meta = model_of(), model_of().to("meta")
    plans = [plan_for(model, hot_items=hot) for hot in ((7, 9), (1, 2, 7))]
    served = [served_of(model), served_of(model)]
    publish_delta(served[1], {"t_item": ([3], torch.full((1, 4), 5.0))})
    return {
        "profile": ([Profile.from_trace("t", t) for t in traces], Profile.load, Profile.fingerprint),
        "plan": (plans, Plan.load, lambda plan: plan.tables["sparse.t_item"].placement.hot_items.size),
        "served": (
            served,
            lambda path: load_served(path, meta, example=batch),
            lambda one: (one.version, one(*batch).sum().item()),
        ),
    }  # fmt: skip


def save_for_ever(things: list[Any], path: Path) -> None:
    """Write one after the other."""
    while True:
        for thing in things:
            thing.save(path)


def left_whole(
    path: Path, load: Callable, told: Callable, known: set[Any], *, may_lack: bool
) -> bool:
    """Check what stands at ``path``; return whether something does."""
    artifact.recover(path)
    assert [found.name for found in path.parent.iterdir()] in ([path.name], [])
    if not path.exists():
        assert may_lack
        return False
    assert told(load(path)) in known
    return True


def kill_at_random(writing, kind: str, path: Path, kills: int, seed: int) -> None:
    things, load, told = writing[kind]
    known, rng, there = {told(thing) for thing in things}, random.Random(seed), False
    for _ in range(kills):
        in_child(lambda: save_for_ever(things, path), rng.uniform(0, 0.08))
        there = left_whole(path, load, told, known, may_lack=not there)


@pytest.mark.parametrize("kind", KINDS)
def test_kills_at_random_leave_what_loads(writing, kind, tmp_path) -> None:
    kill_at_random(writing, kind, tmp_path / kind, 2, 0)


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
def test_many_kills_at_random_leave_what_loads(writing, kind, tmp_path) -> None:
    kill_at_random(writing, kind, tmp_path / kind, 50, 1)


@pytest.mark.parametrize("can_exchange", [True, False], ids=["exchange", "two renames"])
def test_each_step_of_writing_may_be_the_last(writing, tmp_path, monkeypatch, can_exchange) -> None:
    (old, new), load, told = writing["profile"]
    path, last, count = tmp_path / "p", 0, Steps()
    if not can_exchange:
        monkeypatch.setattr(artifact, "_exchange", lambda one, other: False)
    monkeypatch.setattr(Path, "rename", stepping(Path.rename, count))
    for name in STEPS:
        monkeypatch.setattr(artifact, name, stepping(getattr(artifact, name), count))
    old.save(path)
    for last in range(1, 40):
        status = in_child(lambda last=last: count.save_until(new, path, last), None)
        if not status:
            break  # the writing had fewer steps
        assert left_whole(path, load, told, {told(old), told(new)}, may_lack=False)
    assert last > 8
    assert told(load(path)) == told(new)


class Steps:
    """Counts steps, and ends the process like a power cut at a chosen one."""

    def __init__(self) -> None:
        self.left = -1

    def step(self) -> None:
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self.left -= 1

    def save_until(self, thing: Any, path: Path, last: int) -> None:
        self.left = last
        thing.save(path)


def stepping(function: Callable, count: Steps) -> Callable:
    """Return the function with a step before it and one after it."""

    def run(*arguments: Any) -> Any:
        count.step()
        result = function(*arguments)
        count.step()
        return result

    return run


def kill_a_recorder(model: Any, path: Path, kills: int, seed: int) -> None:
    """Kill a process that records; the last whole snapshot must load, and all after it go on."""
    rng = random.Random(seed)
    bags = KeyedJaggedTensor(
        keys=["item", "seen", "shop"],
        values=torch.arange(30) % 20,
        lengths=torch.full((6,), 5),
    )
    for _ in range(kills):
        shared = mmap.mmap(-1, 8)

        def work(shared: mmap.mmap = shared) -> None:
            """Go on from what is there; say what every finished snapshot must hold."""
            options = {"min_support": 1, "max_bags": 50, "max_overhead": None}
            recorder = (
                TraceRecorder.resume(path, model, **options)
                if path.exists()
                else TraceRecorder(model, **options)
            )
            save = recorder.save

            def told(where: Any) -> None:
                seen = recorder.stats.bags_seen
                save(where)
                shared[:] = struct.pack("q", seen)

            recorder.save = told  # type: ignore[method-assign]
            recorder.snapshots(path, interval_s=0.004)
            while True:
                recorder.observe(bags)
                time.sleep(0.0002)

        in_child(work, rng.uniform(0, 0.15))
        (seen,) = struct.unpack("q", shared[:])
        if path.exists() or seen:
            again = TraceRecorder.resume(path, model, min_support=1, max_bags=50)
            assert again.stats.bags_seen >= seen
            assert again.stats.bags_held == 3 * min(again.stats.bags_seen // 3, 50)
            assert Profile.load(path).fingerprint() == again.profile().fingerprint()


def test_a_killed_recorder_loses_an_interval_at_most(model_of, tmp_path) -> None:
    kill_a_recorder(model_of(), tmp_path / "snapshot", 2, 0)


@pytest.mark.soak
def test_a_recorder_killed_many_times_loses_an_interval_at_most(model_of, tmp_path) -> None:
    kill_a_recorder(model_of(), tmp_path / "snapshot", 50, 1)
