"""Fleets of the reference engine behind a router, and what their first findings are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from cachewitness.cli.options import configurations_of, engine_of
from cachewitness.core.checkers.finding import Finding
from cachewitness.sessions.route.fleet import Fleet
from cachewitness.sessions.route.session import Planned
from cachewitness.workloads.configurations import Configuration

ENGINE = engine_of("reference", "vllm")


def configuration(layout: str) -> Configuration:
    return configurations_of("vllm", [layout], [], None, ENGINE).configurations[0]


def first_findings(
    make: Callable[..., Any], asked: Iterable[Planned]
) -> Iterator[tuple[Planned, Finding]]:
    """Yield the traces that a router has findings on, and the first of each."""
    for one in asked:
        findings = Fleet(ENGINE, one.trace, make, 2, one.delivery).run().findings
        if findings:
            yield one, findings[0]
