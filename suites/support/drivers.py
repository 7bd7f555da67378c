"""The drivers of docs/samples, built by the compilers of this machine; without one, their tests
are listed as not run.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SAMPLES = Path(__file__).resolve().parents[2] / "docs" / "samples"
COMPILERS = {
    ".cpp": ("g++", "-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror"),
    ".rs": ("rustc", "-O", "-D", "warnings"),
}
"""By the language of a sample: the compiler, and what its author gives it. A warning is an error.
"""


def needs_compiler(suffix: str) -> None:
    """Skip a whole file of tests where the compiler of a language is not found."""
    compiler = COMPILERS[suffix][0]
    if shutil.which(compiler) is None:
        pytest.skip(f"needs {compiler}", allow_module_level=True)


def built(source: Path, folder: Path) -> Path:
    """Compile a driver into a folder and return the program."""
    program = folder / source.stem
    done = subprocess.run(
        [*COMPILERS[source.suffix], "-o", program, source], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return program
