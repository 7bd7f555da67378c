"""The pytest plugin behind `cachewitness.suite`: a test for each trace, the witness as its message,
and no vacuous green.

What each test did travels to the session as a property of its report, also from workers of
pytest-xdist. When every trace of a function ran, the session judges whether the function had
anything to judge. Every pytest session in an environment that has this package loads this file, so
it imports nothing of it until a test asks for that.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Generator
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from cachewitness.api.workers import Function

CASE, MARK, PROPERTY = "cachewitness_case", "cachewitness_choice", "cachewitness"
"""The argument by which a test gets what runs its trace, the attribute that chooses the traces, the
property of its report."""
DID = "_cachewitness_did"
"""The attribute of an allocator's test, and the property of its report: what it did, in a line."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option for the seed."""
    group = parser.getgroup("cachewitness")
    group.addoption(
        "--cachewitness-seed",
        type=_seed,
        default=0,
        metavar="N",
        help="seed of the random traces (default: 0)",
    )


def _seed(text: str) -> int:
    """Return the seed. Raises ArgumentTypeError, which pytest tells as a wrong option."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(
            f"{text!r} is no seed; a seed is a whole number, 0 or more"
        )
    return int(text)


def pytest_configure(config: pytest.Config) -> None:
    """Register what gathers; workers of pytest-xdist have nothing to gather."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Session(), "cachewitness-session")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make a test of each trace. A choice that does not fit is an error of one line."""
    choice = getattr(metafunc.function, MARK, None)
    if choice is None:
        return
    from cachewitness._util.errors import UsageError

    try:
        cases = choice.cases(metafunc.config.getoption("--cachewitness-seed"))
    except UsageError as error:
        raise pytest.Collector.CollectError(f"{metafunc.definition.nodeid}: {error}") from None
    metafunc.parametrize(
        CASE, [(case, len(cases)) for case in cases], ids=[case.id for case in cases], indirect=True
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Take note of what the test of an allocator did (`cachewitness.machines.Allocator`)."""
    yield
    if did := getattr(getattr(item, "instance", None), DID, ""):
        item.user_properties.append((DID, f"{item.nodeid.rpartition('::')[0]}: {did}"))


@pytest.fixture(name=CASE)
def _case(request: pytest.FixtureRequest) -> Callable[[], None]:
    """Hand a test what runs its trace and fails with the witness."""

    def prove() -> None:
        __tracebackhide__ = True
        from cachewitness._util.errors import UsageError
        from cachewitness.api import workers

        case, tests = request.param
        try:
            did, lines, not_run = workers.run(
                case, request.node.nodeid.partition("[")[0], tests, partial(_tell, request.config)
            )
        except UsageError as error:
            pytest.fail(f"{case.id}: {error}", pytrace=False)
        request.node.user_properties.append((PROPERTY, did))
        if lines:
            pytest.fail("\n".join(["", *lines]), pytrace=False)
        if not_run:
            pytest.skip(not_run)

    return prove


def _tell(config: pytest.Config, line: str) -> None:
    """Print a line at once, beside what pytest captures; workers of pytest-xdist have no
    terminal.
    """
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    capture = config.pluginmanager.get_plugin("capturemanager")
    if reporter is None:
        return
    with capture.global_and_fixture_disabled() if capture else nullcontext():
        reporter.ensure_newline()
        reporter.write_line(line)
        reporter.flush()


class _Session:
    """Gathers what tests did and judges it at the end."""

    def __init__(self) -> None:
        self._properties: list[str] = []
        self._allocators: list[str] = []
        self._functions: dict[str, Function] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take in what a test did."""
        if report.when == "call":
            self._properties += [
                str(value) for name, value in report.user_properties if name == PROPERTY
            ]
            self._allocators += [str(did) for name, did in report.user_properties if name == DID]

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail a session that would pass and in which a function had nothing to judge."""
        if self._properties:
            from cachewitness.api.workers import gathered

            self._functions = gathered(self._properties)
        if (
            any(function.vacuous for function in self._functions.values())
            and session.exitstatus == pytest.ExitCode.OK
        ):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say what was done, and what there was nothing to judge of."""
        for did in self._allocators:
            terminalreporter.write_line(f"cachewitness: {did}")
        for name, function in self._functions.items():
            terminalreporter.write_line(function.line(name))
            for line in function.vacuous:
                terminalreporter.write_line(
                    f"cachewitness: {name}: FAILS, there was nothing to judge: {line}", red=True
                )
