"""Every command of the command line, with short examples of it."""

from __future__ import annotations

import click

from cachewitness._util import data
from cachewitness.cli import cli

TRACES = data.fixtures() / "traces" / "mutants"
LEGAL = data.fixtures() / "histories" / "legal" / "window-keeps-one-more.jsonl"
FAULT = "hit-is-maximum-over-groups"
FAULTY = f"reference:mutant={FAULT}"
VECTORS = data.fixtures() / "vectors" / "vllm" / "lookup.json"
MAMBA = ("--layout", "full-mamba")
ROUTERS = "cachewitness_faults.router"
NO_JSON = {
    "completion": "prints a script for a shell",
    "schema": "prints a schema, which is JSON",
    "plan layout": "prints a layout, which is TOML",
}
"""Commands without `--json`: what they print is for a program as it is."""
EXAMPLES: dict[str, list[tuple[tuple[str, ...], int, str]]] = {
    "run": [
        (
            (
                "--layout",
                "full-mamba",
                "--suite",
                "invariants",
                "--engine",
                FAULTY,
                "--jobs",
                "1",
                "--fail-fast",
            ),
            1,
            "report",
        )
    ],
    "fuzz": [
        (("--operations", "50", "--jobs", "1"), 0, "fuzz"),
        (("--exhaustive", "--bound", "requests=1,pages=4", "--jobs", "1"), 0, "search"),
    ],
    "replay": [
        ((str(TRACES / f"{FAULT}.jsonl"), "--engine", engine), code, "judged")
        for engine, code in (("reference", 0), (FAULTY, 1))
    ],
    "check": [((str(LEGAL),), 0, "judged"), ((str(LEGAL), "nowhere.jsonl"), 4, "checked")],
    "explain": [
        (("stale-hit",), 0, "explained"),
        ((str(TRACES / f"{FAULT}.jsonl"), "--engine", FAULTY), 0, "explained"),
    ],
    "route": [
        (("--layout", "full", "--traces", "1", "--workers", "2"), 0, "routed"),
        (
            ("--layout", "full", "--traces", "1", "--router", f"{ROUTERS}:ForgetsParents"),
            1,
            "routed",
        ),
    ],
    "report": [((str(LEGAL), "--out", "page.html"), 0, "written")],
    "doctor": [(("reference",), 0, "doctor")],
    "new": [(("engine", "mine"), 0, "written")],
    "protocol-check": [(("--", "true"), 4, "rehearsed")],
    "mutants": [
        (("--mutant", FAULT, "--budget", "5", "--tensor-seconds", "0", "--jobs", "1"), 0, "mutants")
    ],
    "fill": [(("--policy", "furiosa", "--out", "out"), 0, "written")],
    "consume": [
        ((str(VECTORS),), 0, "consumed"),
        ((str(VECTORS), "--engine", FAULTY), 1, "consumed"),
    ],
    "ls": [((kind,), 0, "listed") for kind in ("engines", "anomalies", "schemas")],
    "plan vllm": [(("--layout", "qwen3.5-0.8b"), 0, "plan")],
    "plan sglang": [(("--layout", "qwen3.5-0.8b", "--memory", "4GiB"), 0, "plan")],
}
"""By command: its arguments, its exit code and the kind of its document. What `score` and `serve`
print needs an engine that answers, and is tried where there is one (suites/parity/scores), that
of `campaign` in suites/sessions/campaign, that of `compare` and of `report-index` in suites/report,
that of `bisect` in suites/sessions; the other systems of `plan` in suites/plan/test_command.py."""
ELSEWHERE = {
    "bisect",
    "campaign",
    "compare",
    "report-index",
    "score",
    "serve",
    "plan furiosa",
    "plan llama_cpp",
    "plan lmcache",
    "plan openvino_genai",
    "plan tensorrt_edge",
}


def commands(command: click.Command = cli, name: str = "") -> dict[str, click.Command]:
    """Return every command that does something, by its name."""
    if not isinstance(command, click.Group):
        return {name: command}
    context = click.Context(command)
    inner = {one: command.get_command(context, one) for one in command.list_commands(context)}
    found: dict[str, click.Command] = {}
    for one, its in inner.items():
        assert its is not None
        found |= commands(its, f"{name} {one}".strip())
    return found
