"""`cachewitness ls` and `cachewitness schema`: list engines, policies, layouts, rules and
schemas.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import click

from cachewitness._util import output
from cachewitness.cli.json_option import json_option

Rows = list[dict[str, Any]]


def _engines() -> Rows:
    from cachewitness.engines import policy as policies
    from cachewitness.engines.registry import kinds

    return [
        {
            "name": kind.name,
            "summary": kind.summary,
            "levels": list(kind.levels),
            "policies": list(policies.names() if kind.policies is None else kind.policies),
            "options": dict(kind.options),
        }
        for kind in kinds().values()
    ]


def _policies() -> Rows:
    from dataclasses import asdict

    from cachewitness.engines import policy as policies

    return [
        {
            "name": kind.name,
            "summary": kind.summary,
            "source": kind.source,
            "pinned": kind.pinned,
            "releases": list(kind.releases),
            "levels": list(kind.levels),
            "axes": {axis: kind.axes[axis] for axis in policies.AXES},
            "not_applicable": dict(kind.not_applicable),
            "rules": [asdict(rule) for rule in kind.rules],
        }
        for kind in map(policies.get, policies.names())
    ]


def _layouts() -> Rows:
    from cachewitness.report.counterexample import describe_layout
    from cachewitness.workloads import layouts

    found = [layouts.load(name) for name in layouts.names()]
    return [
        {"name": x.name, "groups": describe_layout(x), "story": x.story, "source": x.source}
        for x in found
    ]


def _suites() -> Rows:
    from cachewitness.cli.suites import SUITES

    return [
        {
            "name": s.name,
            "level": s.level,
            "summary": s.summary,
            "differential": s.paired,
            "endless": s.endless,
        }
        for s in SUITES
    ]


def _scenarios() -> Rows:
    from cachewitness.workloads.scenarios import SCENARIOS

    keys = ("name", "story", "source", "kinds", "levels", "needs")
    rows = [{key: getattr(scenario, key) for key in keys} for scenario in SCENARIOS]
    return [{key: list(v) if isinstance(v, tuple) else v for key, v in row.items()} for row in rows]


def _checkers() -> Rows:
    from cachewitness.core.checkers import ALL
    from cachewitness.sessions.run import lockstep

    rows: Rows = [
        {"name": c.name, "summary": c.summary, "anomalies": list(c.anomalies)} for c in ALL
    ]
    return [
        *rows,
        {"name": lockstep.NAME, "summary": lockstep.SUMMARY, "anomalies": list(lockstep.ANOMALIES)},
    ]


def _anomalies() -> Rows:
    from cachewitness.core.checkers.anomalies import BY_NAME

    return [
        {"name": a.name, "invariant": a.invariant, "implies": a.implies} for a in BY_NAME.values()
    ]


def _mutants() -> Rows:
    from cachewitness.engines.faults import all_mutants, of_engine
    from cachewitness.engines.registry import kinds

    own = [of_engine(name) for name in kinds()]
    found = {mutant.name: mutant for faults in [all_mutants(), *own] for mutant in faults.values()}
    keys = ("name", "summary", "mirrors", "anomaly", "checker", "engines")
    rows = [{key: getattr(mutant, key) for key in keys} for mutant in found.values()]
    return [{**row, "engines": list(row["engines"])} for row in rows]


def _schemas() -> Rows:
    from cachewitness.cli.schemas import KINDS, title

    return [{"name": kind, "summary": title(kind)} for kind in KINDS]


KINDS: Mapping[str, tuple[Callable[[], Rows], tuple[str, ...]]] = {
    "engines": (_engines, ("name", "levels", "summary", "options")),
    "policies": (_policies, ()),
    "layouts": (_layouts, ("name", "groups", "story")),
    "suites": (_suites, ("name", "level", "summary")),
    "scenarios": (_scenarios, ("name", "story")),
    "checkers": (_checkers, ("name", "summary", "anomalies")),
    "anomalies": (_anomalies, ("name", "invariant", "implies")),
    "mutants": (_mutants, ("name", "summary", "anomaly", "engines")),
    "schemas": (_schemas, ("name", "summary")),
}


@click.command()
@click.argument("kind", type=click.Choice(list(KINDS)), metavar="KIND")
@json_option("listed")
def ls(kind: str, as_json: bool) -> None:
    """List everything of a kind.

    KIND is one of engines, policies, layouts, suites, scenarios, checkers, anomalies, mutants,
    schemas.
    """
    from cachewitness.engines.faults import need_all

    if kind == "mutants":
        need_all("ls mutants")
    collect, columns = KINDS[kind]
    rows = collect()
    if as_json:
        import json

        output.echo(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    from cachewitness.report import terminal

    out = terminal.console()
    if kind == "policies":
        _print_policies(rows, terminal, out)
    else:
        terminal.print_objects(rows, {key: key for key in columns}, out)


@click.command()
@click.argument("kind")
def schema(kind: str) -> None:
    """Print the JSON schema of the lines of a `trace` or a `history`, or of a `report`, a
    `score` or `vectors-KIND`.
    """
    from cachewitness.cli.schemas import schema as schema_of

    output.echo(schema_of(kind), nl=False)


def _print_policies(policies: Rows, terminal: Any, out: Any) -> None:
    """Print where each policy comes from, then how they differ, what does not apply to which,
    and the rules of each.
    """
    for policy in policies:
        rules = policy["rules"]
        there = sum(rule["implemented"] for rule in rules)
        lines = [f"{policy['name']}: {policy['summary']}, {policy['source']}"]
        releases = ", ".join(policy["releases"])
        levels = ", ".join(policy["levels"])
        lines.append(f"  pinned to {policy['pinned']}; releases {releases}; at {levels} level")
        absent = f"{len(rules) - there} absent (an option that needs an absent rule is refused)"
        lines.append(f"  {there} rules implemented, {absent}")
        terminal.print_lines(lines, out)
    names = [policy["name"] for policy in policies]
    for heading, columns, rows in (
        ("in what they differ", ["axis", *names], _axes(policies)),
        ("what does not apply", ["policy", "invariant", "because"], _inapplicable(policies)),
        ("rules", ["policy", "rule", "state", "summary"], _rules(policies)),
    ):
        if rows:
            terminal.print_lines(["", f"{heading}:"], out)
            terminal.print_objects(rows, {key: key for key in columns}, out)


def _axes(policies: Rows) -> Rows:
    from cachewitness.engines.policy import AXES

    return [
        {"axis": f"{axis}: {what}"} | {policy["name"]: policy["axes"][axis] for policy in policies}
        for axis, what in AXES.items()
    ]


def _inapplicable(policies: Rows) -> Rows:
    return [
        {"policy": policy["name"], "invariant": invariant, "because": why}
        for policy in policies
        for invariant, why in policy["not_applicable"].items()
    ]


def _rules(policies: Rows) -> Rows:
    return [
        {
            "policy": policy["name"],
            "rule": rule["name"],
            "state": "implemented" if rule["implemented"] else "absent",
            "summary": rule["summary"],
        }
        for policy in policies
        for rule in policy["rules"]
    ]
