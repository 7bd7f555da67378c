"""Where this checkout lies, and what makes its packages importable in a process that a test
starts.
"""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = [str(ROOT / "harness"), str(ROOT / "reference_impl")]
"""The source roots."""
PYTHONPATH = os.pathsep.join(SOURCES)
