"""What every suite shares: the markers, and a list of the tests that did not run, so that no
skip goes unseen.
"""

from __future__ import annotations

import gc
import os
import signal
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from cachewitness.sessions.run.suites import Suite
from suites.support.sampled import ALL

NEEDED = {
    "parity/tensors": ("torch",),
    "toy/engine": ("torch",),
    "toy/kernels": ("torch", "triton"),
    "toy/model": ("torch", "transformers"),
}
"""What the suites in a folder import; without it they are listed as not run."""
HERE = Path(__file__).parent


class NotRun(pytest.Module):
    """A file of tests whose extra is not installed."""

    def collect(self) -> list[pytest.Item]:
        extra = "triton" if self.path.parent.name == "kernels" else "toy"
        pytest.skip(
            f"needs the extra `{extra}`: pip install 'cachewitness[{extra}]'",
            allow_module_level=True,
        )


def pytest_pycollect_makemodule(
    module_path: Path, parent: pytest.Collector
) -> pytest.Module | None:
    folder = module_path.parent.relative_to(HERE).as_posix()
    missing = [name for name in NEEDED.get(folder, ()) if find_spec(name) is None]
    return NotRun.from_parent(parent, path=module_path) if missing else None


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "vllm: runs a real vLLM; CACHEWITNESS_VLLM_SOURCE names the folder that holds it"
    )
    config.addinivalue_line("markers", "lmcache: runs the installed LMCache (ci/stage_lmcache.sh)")
    config.addinivalue_line("markers", "toy: runs the toy model; needs the extra `toy`")
    config.addinivalue_line("markers", "cuda: runs the toy model on a GPU, if torch sees one")
    config.addinivalue_line(
        "markers", "large: runs the large scenarios with the suites that have them"
    )
    config.addinivalue_line("markers", "score: runs lm-eval; needs the extra `score`")
    for name in ("CI", "GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
        os.environ.pop(name, None)  # commands print more where they are set; tests that want it do
    if (
        signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    ):  # a shell has its background jobs ignore it, and all that they start
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _without_large_scenarios(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leave the large scenarios, of a second each, out of whatever runs whole suites for another
    purpose.
    """
    if not ALL and request.node.get_closest_marker("large") is None:
        monkeypatch.setattr(Suite, "large_traces", lambda *_, **__: iter(()))


NOT_RUN: dict[str, str] = {}
"""Files that were skipped while they were collected, here or by a worker, and why."""


def why(report: pytest.CollectReport | pytest.TestReport) -> str:
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.skipped:
        NOT_RUN[report.nodeid] = why(report)


def pytest_collection_finish() -> None:
    """Leave the tests themselves, which stay to the end, out of what Python looks through for
    garbage again and again.
    """
    gc.collect()
    gc.freeze()


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["not_run"] = NOT_RUN


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    NOT_RUN.update(getattr(node, "workeroutput", {}).get("not_run", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = NOT_RUN | {
        report.nodeid: why(report) for report in terminalreporter.stats.get("skipped", [])
    }
    if skipped:
        terminalreporter.section("not run")
        for name, reason in sorted(skipped.items()):
            terminalreporter.line(f"{name}: {reason}")
