"""What every suite shares: the markers, and a list of the tests that did not run, so that no skip goes unseen."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

NEEDED = {"cold_vs_cached": ("torch",), "toy": ("torch",), "toy_model": ("torch", "transformers")}
"""What the suites in a folder import; without it they are listed as not run."""


class NotRun(pytest.Module):
    """A file of tests whose extra is not installed."""

    def collect(self) -> list[pytest.Item]:
        pytest.skip("needs the extra `toy`: pip install 'cachewitness[toy]'", allow_module_level=True)


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    missing = [name for name in NEEDED.get(module_path.parent.name, ()) if find_spec(name) is None]
    return NotRun.from_parent(parent, path=module_path) if missing else None


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "vllm: runs a real vLLM; CACHEWITNESS_VLLM_SOURCE names the folder that holds it")
    config.addinivalue_line("markers", "toy: runs the toy model; needs the extra `toy`")
    config.addinivalue_line("markers", "cuda: runs the toy model on a GPU, if torch sees one")
    config.addinivalue_line("markers", "score: runs lm-eval; needs the extra `score`")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    if not skipped:
        return
    terminalreporter.section("not run")
    for report in skipped:
        why = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        terminalreporter.line(f"{report.nodeid}: {why.removeprefix('Skipped: ')}")
