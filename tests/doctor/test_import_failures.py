"""Texts that failing imports really print are classified, with lines that mend them."""

import pytest

from grace_torchrec.doctor.facts import Distribution, InstallFacts
from grace_torchrec.doctor.import_failures import explain

FACTS = InstallFacts(
    "3.11.7",
    (
        Distribution("torch", "2.13.0+cpu"),
        Distribution("fbgemm-gpu-cpu", "1.8.0"),
        Distribution("torchrec", "1.8.0"),
        Distribution("numba", "0.68.1", ("numpy<2.6,>=1.22",)),
    ),
    torch_build="cpu",
)
LIB = "/env/lib/python3.11/site-packages/fbgemm_gpu/fbgemm_gpu_py.so"
SAME_AGAIN = ("pip install --force-reinstall --no-deps fbgemm-gpu-cpu==1.8.0",)
WHOLE_SET = (
    "pip install --force-reinstall --no-deps torch==2.13.0+cpu fbgemm-gpu-cpu==1.8.0 torchrec==1.8.0",
)

REPORTED = {  # case -> module, text, code, word the message must hold, lines
    "undefined-symbol": (
        "fbgemm_gpu",
        f"OSError: {LIB}: undefined symbol: _ZNR5torch7Library4_defEON3c1014FunctionSchemaE",
        "undefined_symbol",
        "_ZNR5torch7Library4_def",
        WHOLE_SET,
    ),
    "undefined-symbol-inside-a-chain": (
        "fbgemm_gpu",
        f"OSError: {LIB}: undefined symbol: _Z25transpose_embedding_input\n\n"
        f"The above exception was the direct cause\nOSError: Could not load this library: {LIB}",
        "undefined_symbol",
        "_Z25transpose_embedding_input",
        WHOLE_SET,
    ),
    "cuda-library": (
        "fbgemm_gpu",
        "OSError: libc10_cuda.so: cannot open shared object file: No such file or directory",
        "cuda_library",
        "libc10_cuda.so",
        ("pip install fbgemm-gpu-cpu==1.8.0",),
    ),
    "cuda-runtime": (
        "torch",
        "OSError: libcudart.so.12: cannot open shared object file: No such file or directory",
        "cuda_library",
        "libcudart.so.12",
        ("pip install fbgemm-gpu-cpu==1.8.0",),
    ),
    "own-library-gone": (
        "fbgemm_gpu",
        f"OSError: {LIB}: cannot open shared object file: No such file or directory",
        "missing_library",
        "fbgemm_gpu_py.so",
        SAME_AGAIN,
    ),
    "own-library-gone-old-text": (
        "fbgemm_gpu",
        "File fbgemm_gpu_py.so not found\nAttributeError: '_OpNamespace' 'fbgemm' object has no "
        "attribute 'jagged_2d_to_dense'",
        "missing_library",
        "fbgemm_gpu_py.so",
        SAME_AGAIN,
    ),
    "operators-not-registered": (
        "fbgemm_gpu",
        "AttributeError: '_OpNamespace' 'fbgemm' object has no attribute 'jagged_2d_to_dense'",
        "missing_library",
        "jagged_2d_to_dense",
        SAME_AGAIN,
    ),
    "old-glibc": (
        "torch",
        "ImportError: /lib/x86_64-linux-gnu/libm.so.6: version `GLIBC_2.27' not found",
        "system_library",
        "GLIBC_2.27",
        (),
    ),
    "old-libstdcxx": (
        "fbgemm_gpu",
        "OSError: /lib/libstdc++.so.6: version `GLIBCXX_3.4.30' not found (required by x.so)",
        "system_library",
        "GLIBCXX_3.4.30",
        (),
    ),
    "numba-refuses-numpy": (
        "numba",
        "ImportError: Numba needs NumPy 2.5 or less. Got NumPy 2.6.",
        "numpy_abi",
        "Got NumPy 2.6",
        ('pip install --upgrade "numpy<2.6,>=1.22"',),
    ),
    "compiled-for-numpy-1": (
        "torch",
        "A module that was compiled using NumPy 1.x cannot be run in NumPy 2.4.6",
        "numpy_abi",
        "NumPy 1.x",
        ('pip install --upgrade "numpy<2.6,>=1.22"',),
    ),
    "no-tensordict": (
        "torchrec",
        "ModuleNotFoundError: No module named 'tensordict'",
        "missing_module",
        "tensordict",
        (
            "pip install --no-deps torchrec==1.8.0",
            "pip install tensordict torchmetrics==1.0.3 tqdm pyre-extensions",
        ),
    ),
    "no-typing-extensions": (
        "torch",
        "ModuleNotFoundError: No module named 'typing_extensions'",
        "missing_module",
        "typing_extensions",
        ("pip install typing-extensions",),
    ),
    "crash": (
        "fbgemm_gpu",
        "the import died with SIGSEGV",
        "crash",
        "SIGSEGV",
        WHOLE_SET,
    ),
    "unknown": (
        "triton",
        "Traceback (most recent call last):\nRuntimeError: 0 active drivers",
        "import_failed",
        "RuntimeError: 0 active drivers",
        None,
    ),
}


@pytest.mark.parametrize("case", REPORTED)
def test_reported_text_is_classified(case: str) -> None:
    module, text, code, word, lines = REPORTED[case]
    finding = explain(module, text, FACTS)
    assert (finding.code, finding.level) == (code, "problem")
    assert module in finding.text
    assert word in finding.text
    assert finding.fix == (finding.fix if lines is None else lines)


def test_a_missing_cuda_library_beside_cuda_torch_brings_torchs_libraries_back() -> None:
    facts = InstallFacts(
        "3.11.7",
        (Distribution("torch", "2.13.0"), Distribution("fbgemm-gpu", "1.8.0")),
        torch_build="cuda",
    )
    text = "OSError: libcudart.so.13: cannot open shared object file"
    assert explain("fbgemm_gpu", text, facts).fix == (
        "pip install --force-reinstall torch==2.13.0",
        "pip install fbgemm-gpu==1.8.0",
    )


@pytest.mark.parametrize("text", ["", "\x00\x1b[31m", "{0} {missing} %s", "x" * 100_000])
def test_hostile_text_gives_one_finding(text: str) -> None:
    finding = explain("fbgemm_gpu", text, FACTS)
    assert finding.code == "import_failed"
    assert "\n" not in finding.text


def test_a_mangled_name_does_not_fill_the_screen() -> None:
    finding = explain("fbgemm_gpu", f"undefined symbol: _ZN{'x' * 5000}", FACTS)
    assert len(finding.text) < 250
