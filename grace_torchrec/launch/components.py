"""TorchX components: ``torchx run grace.profile``, ``plan``, ``convert``, ``serve_bench``, ``train``.

Flow: arguments of ``torchx run`` -> *a component* -> job (``AppDef``) -> any scheduler of TorchX.
A component takes what its stage cannot do without; every other option of the stage follows ``--``:

    torchx run -s local_cwd grace.plan --model my_models:dlrm --profile profile --memory h200 -- --budget 0.5

Found through the entry point group ``torchx.components``.  TorchX reads the types and the docstrings
of every function here, so this module holds components and nothing else.
"""
# ruff: noqa: UP006, UP035, UP045 - TorchX takes arguments of type Dict, List and Optional only

from typing import TYPE_CHECKING, Dict, List, Optional

from grace_torchrec.launch import jobs, local_files, provenance

if TYPE_CHECKING:
    from torchx.specs import AppDef


def profile(
    *args: str,
    trace: str,
    out: str,
    table: str = "t_history",
    image: str = ".",
    cpu: int = 4,
    gpu: int = 0,
    memMB: int = 16384,
    h: str = "",
    env: Optional[Dict[str, str]] = None,
    mounts: Optional[List[str]] = None,
) -> "AppDef":
    """Turn a trace into a profile folder.

    Args:
        args: further options of grace-torchrec profile, after --
        trace: trace file, or a folder of its shards
        out: profile folder to write
        table: table the trace belongs to
        image: image (or folder) that holds grace-torchrec and the caller's code
        cpu: processors
        gpu: GPUs
        memMB: memory in MB
        h: named resource, in place of cpu, gpu and memMB
        env: environment variables (KEY=VALUE,...)
        mounts: mounts of the container, as for dist.ddp
    """
    command = ["profile", trace, "--out", out, "--table", table, *args]
    place = jobs.Place(image, cpu, gpu, memMB, h, env, mounts)
    return local_files.check(jobs.sub_command(command, {}, place), {"trace": trace})


def plan(
    *args: str,
    model: str,
    profile: str,
    memory: str,
    out: str = "",
    image: str = ".",
    cpu: int = 4,
    gpu: int = 0,
    memMB: int = 16384,
    h: str = "",
    env: Optional[Dict[str, str]] = None,
    mounts: Optional[List[str]] = None,
) -> "AppDef":
    """Plan what to store beside the tables of a model, and where.

    Args:
        args: further options of grace-torchrec plan, after --
        model: package.module:function, which returns model and example batches
        profile: profile folder of its bags
        memory: machine that will serve, a name or a file of grace-torchrec calibrate
        out: plan folder to write; default: plan, where nothing stands yet
        image: image (or folder) that holds grace-torchrec and the caller's code
        cpu: processors
        gpu: GPUs
        memMB: memory in MB
        h: named resource, in place of cpu, gpu and memMB
        env: environment variables (KEY=VALUE,...)
        mounts: mounts of the container, as for dist.ddp
    """
    named = ("--out", out) if out else ()
    command = ["plan", model, "--profile", profile, "--memory", memory, *named, *args]
    given = provenance.of_profile(profile)
    place = jobs.Place(image, cpu, gpu, memMB, h, env, mounts)
    reads = {"memory": memory, "profile": profile}
    return local_files.check(jobs.sub_command(command, given, place), reads)


def convert(
    *args: str,
    model: str,
    plan: str,
    out: str,
    image: str = ".",
    cpu: int = 4,
    gpu: int = 0,
    memMB: int = 16384,
    h: str = "",
    env: Optional[Dict[str, str]] = None,
    mounts: Optional[List[str]] = None,
) -> "AppDef":
    """Turn a model and its plan into a folder that serves.

    Args:
        args: further options of grace-torchrec convert, after --
        model: package.module:function, which returns model and example batches
        plan: plan folder
        out: served folder to write
        image: image (or folder) that holds grace-torchrec and the caller's code
        cpu: processors
        gpu: GPUs
        memMB: memory in MB
        h: named resource, in place of cpu, gpu and memMB
        env: environment variables (KEY=VALUE,...)
        mounts: mounts of the container, as for dist.ddp
    """
    given = provenance.of_plan(plan)
    command = ["convert", model, plan, "--out", out, *args]
    place = jobs.Place(image, cpu, gpu, memMB, h, env, mounts)
    return local_files.check(jobs.sub_command(command, given, place), {"plan": plan})


def serve_bench(
    *args: str,
    served: str,
    model: str = "",
    image: str = ".",
    cpu: int = 4,
    gpu: int = 0,
    memMB: int = 16384,
    h: str = "",
    env: Optional[Dict[str, str]] = None,
    mounts: Optional[List[str]] = None,
) -> "AppDef":
    """Measure a model under concurrent requests.

    Args:
        args: further options of grace-torchrec serve-bench, after --
        served: served folder, or a model as for convert
        model: the model that a served folder was converted from
        image: image (or folder) that holds grace-torchrec and the caller's code
        cpu: processors
        gpu: GPUs
        memMB: memory in MB
        h: named resource, in place of cpu, gpu and memMB
        env: environment variables (KEY=VALUE,...)
        mounts: mounts of the container, as for dist.ddp
    """
    given = provenance.of_served(served)
    command = ["serve-bench", served, *(("--model", model) if model else ()), *args]
    place = jobs.Place(image, cpu, gpu, memMB, h, env, mounts)
    return local_files.check(jobs.sub_command(command, given, place), {"served": served})


def train(
    *args: str,
    script: str,
    j: str = "1x2",
    image: str = ".",
    cpu: int = 4,
    gpu: int = 0,
    memMB: int = 16384,
    h: str = "",
    env: Optional[Dict[str, str]] = None,
    mounts: Optional[List[str]] = None,
) -> "AppDef":
    """Run a training script with torchrun, as dist.ddp does.

    Args:
        args: arguments of the script, after --
        script: Python script, examples/train_then_serve.py or one of yours
        j: {nodes}x{processes of a node}
        image: image (or folder) that holds grace-torchrec and the caller's code
        cpu: processors of a node
        gpu: GPUs of a node
        memMB: memory of a node in MB
        h: named resource, in place of cpu, gpu and memMB
        env: environment variables (KEY=VALUE,...)
        mounts: mounts of the container, as for dist.ddp
    """
    place = jobs.Place(image, cpu, gpu, memMB, h, env, mounts)
    return local_files.check(jobs.training(script, args, j, place), {"script": script})
