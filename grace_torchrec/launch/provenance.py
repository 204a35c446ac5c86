"""Provenance: checksums of the profile and the plan that a job is given, read when it is launched.

Flow: folders named in a component's arguments -> *names and checksums* -> environment and metadata of
the job.  They are the ones the files carry already: ``profile_fingerprint`` and ``plan_sha256`` of
``plan.json``.  A folder that is not on the launching machine has none here.
"""

from pathlib import Path
from typing import Any

from grace_torchrec import artifact
from grace_torchrec.errors import GraceError
from grace_torchrec.launch.torchx_modules import refusing
from grace_torchrec.strict_files import read_json

PROFILE, PLAN = "profile_fingerprint", "plan_sha256"


@refusing()
def of_profile(folder: str) -> dict[str, str]:
    """Return the fingerprint that plans made from this profile will carry.

    Raises:
        GraceError: the folder is there and ``profile.json`` is not that of a profile.
    """
    document = _document(Path(folder), "profile")
    if document is None:
        return {}
    try:
        tables = {str(name): str(e["fingerprint"]) for name, e in document["tables"].items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise GraceError(
            f"{folder}/profile.json: lacks {error}; write the profile again"
        ) from error
    parts = [part for name in sorted(tables) for part in (name, tables[name])]
    return {PROFILE: artifact.fingerprint(*parts)}


@refusing()
def of_plan(folder: str) -> dict[str, str]:
    """Return the checksum of a plan, and the fingerprint of the profile it was made from.

    Raises:
        GraceError: the folder is there and ``plan.json`` is not that of a plan.
    """
    document = _document(Path(folder), "plan")
    if document is None:
        return {}
    found = {name: document.get(name) for name in (PLAN, PROFILE)}
    if not all(isinstance(value, str) for value in found.values()):
        raise GraceError(f"{folder}/plan.json: lacks its checksums; make the plan again")
    return {name: str(value) for name, value in found.items()}


def of_served(folder: str) -> dict[str, str]:
    """Return what :func:`of_plan` says of the plan inside a served folder; nothing for a model."""
    return of_plan(str(Path(folder) / "plan"))


def _document(folder: Path, name: str) -> dict[str, Any] | None:
    """Read ``folder/<name>.json``; None where the folder is not on this machine."""
    return read_json(folder / f"{name}.json", name) if folder.is_dir() else None
