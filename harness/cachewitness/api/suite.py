"""The decorator that makes a test of every trace."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any

from cachewitness.api.cases import Choice
from cachewitness.engines.kind import EngineKind

CASE, MARK = "cachewitness_case", "cachewitness_choice"
"""The argument by which the plugin hands a test what runs its trace, and the attribute by which it
knows such a test."""

_NEVER_RUN = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
"""Functions of which a call runs nothing."""


def suite(
    engine: str | EngineKind = "reference",
    *,
    policy: str = "vllm",
    layouts: Sequence[str] = (),
    options: Mapping[str, object] | None = None,
    suites: Sequence[str] = (),
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a pytest test of each trace that `cachewitness run` would run on an engine.

        @cachewitness.suite("my-engine", layouts=["full-mamba"])
        def test_cache() -> None:
            '''The engine's cache holds what it claims.'''

    Arguments are those of `verify`. The function, or method of a class of tests, runs before each
    trace and may ask for fixtures. A test's id is `suite:trace@configuration` and does not change
    from run to run; `pytest --cachewitness-seed N` draws other random traces. The failure message
    is the witness. Tests of one function may run in any order and on any number of workers. If all
    of them ran and there was nothing to judge (not one hit, or a rule without an occasion), the
    session fails and says so.
    """
    choice = Choice(engine, policy, layouts, dict(options or {}), suites)

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        if not inspect.isfunction(function) or any(
            never_runs(function) for never_runs in _NEVER_RUN
        ):
            raise TypeError(
                f"cachewitness.suite: {function!r} is no plain function; its body would never run"
            )
        if hasattr(function, MARK):
            raise TypeError(
                f"cachewitness.suite: {function!r} is decorated twice; one function has the traces"
                " of one engine"
            )

        @wraps(function)
        def test(*instance: Any, **arguments: Any) -> None:
            if CASE not in arguments:
                raise TypeError(
                    f"cachewitness.suite: {function.__qualname__} got no trace; pytest gives none"
                    " to a unittest.TestCase"
                )
            prove: Callable[[], None] = arguments.pop(CASE)
            function(*instance, **arguments)
            prove()

        signature = inspect.signature(function)
        own = inspect.Parameter(CASE, inspect.Parameter.KEYWORD_ONLY)
        test.__signature__ = signature.replace(parameters=[*signature.parameters.values(), own])  # type: ignore[attr-defined]
        setattr(test, MARK, choice)
        return test

    return decorate
