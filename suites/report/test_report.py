"""Reports: what is written is whole, escaped and in step with the types that read it."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest

from cachewitness._util import data, files
from cachewitness._util.errors import UsageError
from cachewitness.cli import schemas
from cachewitness.core import events as history
from cachewitness.core import trace_format as trace
from cachewitness.core.checkers.anomalies import BY_NAME
from cachewitness.core.checkers.finding import Finding, Tally
from cachewitness.core.trace_format import (
    GroupSpec,
    Layout,
    Media,
    Reset,
    Step,
    Submit,
    Trace,
    TraceHeader,
    UpdateWeights,
)
from cachewitness.engines.isolation.engine import Isolation
from cachewitness.engines.registry import parse
from cachewitness.report import badge, github, jsonreport, junit, sarif
from cachewitness.report import counterexample as witness
from cachewitness.report.summary import Failure, NotRun, Report, Stored, SuiteReport
from cachewitness.sessions.run import store

LAYOUT = Layout(
    "mine",
    [GroupSpec("full", 16), GroupSpec("sliding", 8, window=32), GroupSpec("sliding", 8, window=32)],
)
FINDING = Finding(
    anomaly="leak",
    sentence="Let a\x00 be 100% wrong;\nhowever: a contradiction.",
    checker="ownership",
    op=1,
)


def _trace(steps: int) -> Trace:
    header = TraceHeader(
        name="t", layout=LAYOUT, pages=9, options={"retention_interval": None, "use_eagle": True}
    )
    return Trace(header, [Submit("a", "x:64"), *(Step(run=[("a", 1)]) for _ in range(steps))])


def _report() -> Report:
    failures = [
        Failure(id="s:t,1@mine", finding=FINDING, trace=_trace(9), shrunk=_trace(1), offending=1),
        Failure(
            id="s:t2@mine",
            finding=FINDING,
            trace=_trace(1),
            shrunk=_trace(1),
            offending=1,
            expected="known",
        ),
    ]
    tallies = [
        Tally(checker="ownership", opportunities=9, findings=2),
        Tally(checker="safety-law", opportunities=9),
        Tally(checker="identity"),
        Tally(checker="progress", opportunities=1, crashed="RuntimeError: boom"),
        Tally(checker="interval-sparsity", not_applicable="no keys"),
    ]
    suite = SuiteReport(
        name="s",
        traces=2,
        tallies=tallies,
        failures=failures,
        crashed=["progress: RuntimeError: boom"],
    )
    return Report(
        engine="mine",
        suites=[suite],
        not_run=[NotRun("suite x", "no scheduler")],
        vacuous=["checker identity"],
    )


def test_junit_counts_what_it_contains() -> None:
    """Failures, errors and skips add up, at every level; what does not fit into XML is replaced."""
    root = ElementTree.fromstring(junit.render(_report(), {}))
    for element in (root, *root):
        cases = list(element.iter("testcase"))
        assert int(element.get("tests", "")) == len(cases)
        for key, kind in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            assert int(element.get(key, "")) == sum(case.find(kind) is not None for case in cases)
    kinds = {case.get("name"): [child.tag for child in case] for case in root.iter("testcase")}
    assert kinds == {
        "safety-law": ["system-out"],
        "identity": ["skipped"],
        "progress": ["error"],
        "interval-sparsity": ["skipped"],
        "s:t,1@mine": ["failure"],
        "s:t2@mine": ["skipped"],
        "suite x": ["skipped"],
        "checker identity": ["error"],
    }
    (failure,) = root.iter("failure")
    assert failure.get("type") == "leak" and "Let a? be 100% wrong" in failure.get("message", "")


def test_annotations_are_escaped_as_the_runner_reads_them() -> None:
    first, crash, idle = github.commands(_report(), {})
    assert (
        first == "::error title=leak in s%3At%2C1@mine::Let a\x00 be 100%25 wrong;%0Ahowever: a"
        " contradiction."
    )
    assert "progress" in crash and "identity" in idle


def test_what_happened_stands_above_the_sentence_in_every_form() -> None:
    """A finding of an older report has no line, and nothing is put in its place."""
    report = _report()
    happened = "request a ended and still holds page 1"
    for failure in report.suites[0].failures:
        failure.finding = msgspec.structs.replace(FINDING, line=happened)
    (failed,) = ElementTree.fromstring(junit.render(report, {})).iter("failure")
    assert failed.get("message", "").startswith(f"leak: {happened}\nLet a? be")
    assert next(github.commands(report, {})).endswith(
        f"::{happened}%0ALet a\x00 be 100%25 wrong;%0Ahowever: a contradiction."
    )
    logged = json.loads(sarif.render(report, {}))
    assert logged["runs"][0]["results"][0]["message"]["text"].startswith(f"{happened}\nLet a")
    failure = report.suites[0].failures[0]
    entry = jsonreport.entry(failure, None)
    assert entry.line == happened and entry.sentence == FINDING.sentence
    headline, line = witness.witness(failure.finding, failure.shrunk)[:2]
    assert headline.startswith("FAIL  leak") and line == f"  {happened}"
    assert happened not in "\n".join(witness.witness(FINDING, failure.shrunk))


def test_a_witness_reads_as_it_ran() -> None:
    """Operations are numbered from 1, the offending one is marked, and what lies far before and
    behind is counted.
    """
    lines = witness.witness(FINDING, _trace(1), whole=10, replay="cachewitness replay x")
    assert "trace t, shrunk from 10 operations to 2" in lines
    assert (
        "  layout mine (full 16 + 2 × sliding 8 window 32), 9 pages, retention_interval=none,"
        " use_eagle=true" in lines
    )
    assert "  1  submit a  x:64" in lines and "> 2  step a+1" in lines
    assert (
        any(BY_NAME["leak"].implies in line for line in lines)
        and lines[-1] == "replay: cachewitness replay x"
    )
    long = witness.witness(msgspec.structs.replace(FINDING, op=80), _trace(99))
    assert "> 81  step a+1" not in long and ">  81  step a+1" in long
    assert "  … 44 operations before" in long and "  … 19 operations after" in long


@pytest.mark.parametrize(
    ("op", "text"),
    [
        (
            Submit("a", "x:1 @b:2", salt="s", media=[Media(3, 4, "cat")]),
            "submit a  x:1 @b:2  salt=s  media=cat@3+4",
        ),
        (Step(run=[("a", 4), ("b", 1)], withdraw=["b"]), "step a+4 b+1  withdraw b"),
        (Step(budget=64), "step budget 64"),
        (Step(), "step budget default"),
        (Step(fail=[0, 3]), "step budget default  fail 0 3"),
        (Reset(running=True), "reset running"),
        (UpdateWeights(3), "update_weights 3"),
    ],
)
def test_operations_are_written_as_people_write_them(op: trace.Op, text: str) -> None:
    assert witness.compact(op) == text


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text("old")
    (tmp_path / "report.json.part").mkdir()
    with pytest.raises(UsageError, match="cannot be written"):
        files.write(path, [b"new"])
    assert path.read_text() == "old"


def test_a_replay_command_survives_the_shell() -> None:
    import shlex

    spec = parse("vllm:source=/opt/my vllm").isolated(Isolation(deadline=2.5))
    command = store.replay_command(Path("my traces/a[b].jsonl"), spec, "lockstep")
    assert shlex.split(command) == [
        *("cachewitness", "replay", "my traces/a[b].jsonl", "--engine", "vllm:source=/opt/my vllm"),
        *("--deadline", "2.5", "--differential"),
    ]


@pytest.mark.parametrize(
    ("name", "isolation", "held"),
    [
        ("reference", None, ""),
        ("reference", Isolation(), "--isolate yes"),
        (
            "reference",
            Isolation(deadline=5, memory_gib=2),
            "--isolate yes --deadline 5 --memory-gib 2",
        ),
        ("vllm", None, "--isolate no"),
        ("vllm", Isolation(), ""),
    ],
)
def test_an_engine_is_replayed_where_it_failed(
    name: str, isolation: Isolation | None, held: str
) -> None:
    """In a process of its own or in the harness's, with its deadline; what is usual for that
    engine is left out.
    """
    spec = parse(name) if isolation is None else parse(name).isolated(isolation)
    assert spec.arguments == f"--engine {name} {held}".rstrip()


@pytest.mark.parametrize("kind", sorted(schemas.KINDS))
def test_published_schemas_are_those_of_the_types(kind: str) -> None:
    """If not: `cachewitness schema KIND > fixtures/schemas/KIND.schema.json`."""
    path = data.fixtures() / "schemas" / f"{kind}.schema.json"
    assert path.read_bytes() == schemas.schema(kind)


def test_a_schema_knows_every_operation_and_every_event() -> None:
    for kind, union, tag in (("trace", trace.Op, "op"), ("history", history.Event, "e")):
        definitions = json.loads(schemas.schema(kind))["$defs"]
        for member in union.__args__:
            assert definitions[member.__name__]["properties"][tag] == {
                "enum": [member.__struct_config__.tag]
            }


def test_the_documented_formats_name_every_operation_event_and_field() -> None:
    """docs/reference/formats.md is read by people who write histories; nothing that a line may
    contain is missing there.
    """
    path = data.fixtures().parent / "docs" / "reference" / "formats.md"
    text = path.read_text(encoding="utf-8")
    structs = [
        trace.TraceHeader,
        *trace.Op.__args__,
        history.Header,
        *history.Event.__args__,
        history.Rules,
        history.Retention,
    ]
    missing = {
        name
        for struct in [
            *structs,
            trace.GroupSpec,
            history.Pool,
            history.Group,
            history.Run,
            trace.Media,
        ]
        for name in struct.__struct_fields__
        if f"`{name}`" not in text and f"`{struct.__name__.lower()}.{name}`" not in text
    }
    assert missing == set()
    assert all(
        f"`{member.__struct_config__.tag}`" in text
        for member in (*trace.Op.__args__, *history.Event.__args__)
    )


def test_the_documented_examples_are_what_they_say(tmp_path: Path) -> None:
    """The example trace runs and the example history is judged, both without a finding."""
    import re

    from cachewitness.core import driving, validate
    from cachewitness.engines.registry import parse

    path = data.fixtures().parent / "docs" / "reference" / "formats.md"
    asked, happened = re.findall(r"```json\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "trace.jsonl").write_text(asked)
    (tmp_path / "history.jsonl").write_text(happened)
    example = validate.load_trace(tmp_path / "trace.jsonl")
    assert driving.drive(example, parse("reference").open(example.header)).outcome == "pass"
    assert driving.check(validate.load(tmp_path / "history.jsonl")[0]).outcome == "pass"


def _sarif(report: Report, stored: dict[str, Stored] | None = None) -> dict:
    (run,) = json.loads(sarif.render(report, stored or {}))["runs"]
    return run


def test_sarif_has_a_result_for_each_failure_and_suppresses_what_was_expected() -> None:
    stored = {
        "s:t,1@mine": Stored(trace="out/failures/a b.trace.jsonl", replay="cachewitness replay x")
    }
    failed, expected = _sarif(_report(), stored)["results"]
    assert (failed["ruleId"], failed["level"], expected["level"]) == ("leak", "error", "note")
    assert (
        failed["message"]["text"].endswith("\ncachewitness replay x")
        and "suppressions" not in failed
    )
    assert expected["suppressions"] == [{"kind": "external", "justification": "known"}]
    where = failed["locations"][0]
    assert where["physicalLocation"]["artifactLocation"]["uri"] == "out/failures/a%20b.trace.jsonl"
    line = trace.dump(_trace(1)).splitlines()[where["physicalLocation"]["region"]["startLine"] - 1]
    assert json.loads(line)["op"] == "step", "the line of the operation that shows it"
    assert where["logicalLocations"] == [{"fullyQualifiedName": "s:t,1@mine"}]


def test_sarif_tells_what_could_not_be_judged() -> None:
    run = _sarif(_report())
    notifications = [
        one["message"]["text"] for one in run["invocations"][0]["toolExecutionNotifications"]
    ]
    assert notifications == [
        "progress: RuntimeError: boom",
        "nothing checked: checker identity",
        "not run: suite x: no scheduler",
    ]
    assert run["invocations"][0]["exitCode"] == 1
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == ["leak"]


def test_a_defect_is_the_same_alert_under_another_seed_and_name() -> None:
    """And another trace, or another anomaly, is another."""
    one = _trace(1)
    renamed = Trace(msgspec.structs.replace(one.header, name="u", seed=7, story="other"), one.ops)
    assert sarif.fingerprint("leak", one) == sarif.fingerprint("leak", renamed)
    others = {
        sarif.fingerprint("leak", one),
        sarif.fingerprint("leak", _trace(2)),
        sarif.fingerprint("no-progress", one),
    }
    assert len(others) == 3


def test_a_badge_is_green_for_a_pass_alone() -> None:
    red = json.loads(badge.render(_report()))
    assert (red["color"], red["message"], red["isError"]) == ("red", "fail, 0 operations", False)
    vacuous = json.loads(badge.render(Report(engine="mine", vacuous=["x"])))
    assert (vacuous["color"], vacuous["message"], vacuous["isError"]) == (
        "orange",
        "nothing checked, 0 operations",
        True,
    )
    assert json.loads(badge.render(Report(engine="mine")))["color"] == "brightgreen"
