"""What every suite shares: the markers, and a list of the tests that did not run, so that no skip goes unseen."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "vllm: runs a real vLLM; CACHEWITNESS_VLLM_SOURCE names the folder that holds it")
    config.addinivalue_line("markers", "toy: runs the toy model; needs the extra `toy`")
    config.addinivalue_line("markers", "score: runs lm-eval; needs the extra `score`")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    if not skipped:
        return
    terminalreporter.section("not run")
    for report in skipped:
        why = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        terminalreporter.line(f"{report.nodeid}: {why.removeprefix('Skipped: ')}")
