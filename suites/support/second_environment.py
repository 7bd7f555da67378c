"""A second Python environment: a venv that has this package and what it needs, and modules that
the first has not.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from suites.support.checkout import SOURCES

ROOT = Path(__file__).resolve().parents[2]

ELSEWHERE = '''
"""An engine whose library is installed in one environment alone."""

from cachewitness._util.errors import EngineMissing
from cachewitness.engines.kind import EngineKind
from cachewitness.engines.written_for import WrittenFor
from cachewitness.engines.reference import open_engine
from msgspec.structs import replace


def open_elsewhere(header, options):
    try:
        import elsewhere_lib
    except ImportError as error:
        raise EngineMissing(f"--engine elsewhere: {error}", "pip install elsewhere-lib") from None
    engine = open_engine(header, {})
    engine.header = replace(engine.header, engine_version=elsewhere_lib.__version__)
    return engine


WRITTEN = WrittenFor("Elsewhere", "elsewhere-lib", "1.2", "1.4")
ENGINE = EngineKind(name="elsewhere", summary="", levels=("manager",), open=open_elsewhere, written_for=WRITTEN)
'''  # noqa: E501


def make(folder: Path, modules: Mapping[str, str], *, ours: bool = True) -> Path:
    """Make an environment and return its Python; `modules` are sources by name. `ours` False:
    this package is not there.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    if ours:
        shared = [*SOURCES, *(entry for entry in sys.path if entry.endswith("site-packages"))]
        (site / "shared.pth").write_text("\n".join(shared) + "\n")
    for name, source in modules.items():
        (site / f"{name}.py").write_text(source)
    return folder / "bin" / "python"


def register(folder: Path) -> None:
    """Install the registration of the engine `elsewhere` into a folder that is on the path."""
    (folder / "elsewhere_engine.py").write_text(ELSEWHERE)
    info = folder / "elsewhere-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: elsewhere\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[cachewitness.engines]\nelsewhere = elsewhere_engine:ENGINE\n"
    )
