"""Reports of campaigns, hunts and vectors as their commands write them, made without running
anything.
"""

from __future__ import annotations

from typing import Any

from cachewitness.report.summary import NotRun, Stored
from cachewitness.sessions.campaign import summary
from cachewitness.sessions.mutants.document import Hunt, document
from cachewitness.sessions.mutants.matrix import Matrix, Row
from cachewitness.vectors.document import Consumed, ConsumedFile, WrongAnswer

STORED = Stored(
    trace="failures/a.trace.jsonl",
    history="failures/a.history.jsonl",
    replay="cachewitness replay a",
)


def row(name: str, **fields: Any) -> Row:
    """Return a fault that was killed, or whatever `fields` say of it."""
    found = {"killed": True, "seconds": 0.5, "operations": 1234, "traces": 3, "witness": 4}
    answers = {
        "invariants": "safety-law, ownership",
        "differential": "yes",
        "tensor": "not run",
        "reuse floor": "no",
    }
    named = {
        "mutant": name,
        "group": "A",
        "policy": "vllm",
        "anomaly": "stale-hit",
        "checker": "safety-law",
    }
    return Row(**{**named, **found, "detectors": answers, **fields})


def hunt(name: str = "a-fault", code: int = 1) -> Hunt:
    """Return a hunt with one fault of each kind: killed, survived, survived under a seed, and
    not hunted.
    """
    rows = [
        row("killed", false_alarms=[f"leak in {name}"]),
        row(f"{name}-1", killed=False, detectors={}),
        row(f"{name}-2", other_seeds=[0.25, None]),
        row(f"{name}-3", killed=False, detectors={}, not_run=f"{name} is missing"),
    ]
    return document(Matrix(rows=rows), [*(one.mutant for one in rows), f"{name}-4"], 7, code)


def consumed(name: str = "a-vector", code: int = 1) -> Consumed:
    """Return what came of a file with a wrong answer, one whose trace was stored, and some that
    were not run.
    """
    wrong = WrongAnswer(
        vector=name, comment=f"of {name}", expected="[1]", got=f"[{name}]", hunts=[f"edge: {name}"]
    )
    lived = WrongAnswer(
        vector=f"{name}/lived", comment="", expected="a", got="b", hunts=[], stored=STORED
    )
    file = ConsumedFile(
        file=name,
        asked={"valid": 3, "invalid": 1},
        passed={"valid": 1, "invalid": 1},
        differing=0,
        unknown=[f"{name}/unknown"],
        not_run={f"the engine says nothing of {name}": 2},
        failures=[wrong, lived],
    )
    return Consumed(engine=name, exit_code=code, files=[file])


def campaign(name: str = "nightly", code: int = 1) -> summary.Document:
    """Return the summary of a campaign with a finding, an engine that was not asked everything,
    and a unit not done.
    """
    finding = summary.FindingRow(
        signature="0a1b",
        anomaly="leak",
        checker="ownership",
        level="manager",
        kinds=["full"],
        sentence=f"Let {name}; however {name} holds it: a contradiction.",
        operations=3,
        engines=[name],
        traces=1,
        trace="a",
        replay=f"cachewitness replay {name}",
        offending=2,
        stored=STORED,
    )
    checker = summary.CheckerRow(checker="ownership", opportunities=1234, findings=1)
    subject = summary.SubjectRow(
        engine=name,
        label="label",
        policy="vllm",
        versions=["1"],
        exit_code=1,
        reasons=[f"{name} failed"],
        traces=5,
        operations=70,
        findings=1,
        suites={"invariants": 5},
        checkers=[checker],
        marks={},
        not_run=[NotRun(f"suite {name}", "no level", 2)],
    )
    met = summary.ClassRow(
        anomaly="leak",
        checker="ownership",
        level="manager",
        kinds=["full"],
        met=4,
        engines=[name],
        first="a",
    )
    self_test = {
        "fault": "a-fault",
        "anomaly": "leak",
        "checker": "ownership",
        "ran": True,
        "found": False,
        "findings": 0,
    }
    counts = {
        "units": 3,
        "done": 2,
        "done_before": 1,
        "workers_lost": 1,
        "traces": 5,
        "operations": 70,
    }
    return summary.Document(
        **counts,  # type: ignore[arg-type]  # all of them are numbers
        name=name,
        campaign="00",
        package="0",
        exit_code=code,
        reasons=[f"{name}: 4 findings"],
        self_test=summary.CanaryRow(**self_test),  # type: ignore[arg-type]  # each as its field wants it
        not_done=[f"{name}, vllm: fuzz"],
        seconds=1.5,
        digest="0",
        subjects=[subject],
        findings=[finding],
        classes=[met],
        database="d",
    )
