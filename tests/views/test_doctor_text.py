"""The doctor's text: the table, then each finding with lines to copy."""

from grace_torchrec.doctor.findings import Diagnosis, Finding, PackageRow
from grace_torchrec.views.doctor_text import doctor_lines

SICK = Diagnosis(
    (
        PackageRow("torch", "2.13.0+cpu", "==2.13.*", True),
        PackageRow("fbgemm-gpu-cpu", "1.9.0", "==1.8.*", False),
    ),
    (
        Finding(
            "pair", "problem", "they do not fit", ("pip install torch==2.13.0+cpu", "pip check")
        ),
        Finding("odd", "note", "worth knowing"),
    ),
)
SICK_TEXT = """\
package         found       known good
torch           2.13.0+cpu  ==2.13.*
fbgemm-gpu-cpu  1.9.0       ==1.8.*  <- look below

problem: they do not fit
    pip install torch==2.13.0+cpu
    pip check

note: worth knowing

torch releases that end in +cpu come from PyTorch's CPU wheel index
not healthy"""


def test_text_shows_the_table_then_findings_with_lines_to_copy() -> None:
    assert "\n".join(doctor_lines(SICK)) == SICK_TEXT


def test_notes_alone_are_healthy() -> None:
    noted = Diagnosis((), SICK.findings[1:])
    assert list(doctor_lines(noted))[-1] == "healthy"
