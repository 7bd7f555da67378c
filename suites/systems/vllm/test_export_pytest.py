"""`replay --export pytest`: a failure as a test that needs vLLM alone.

`CACHEWITNESS_VLLM_SOURCE` names a folder that holds `vllm`: vLLM 0.33.0.
"""

from __future__ import annotations

import ast
from pathlib import Path

import msgspec
import pytest

from cachewitness._util.errors import UsageError
from cachewitness.cli import invoke
from cachewitness.core import validate
from cachewitness.core.driving import drive
from cachewitness.core.events import Read
from cachewitness.core.trace_format import Submit, Trace, TraceHeader
from cachewitness.engines.export import Failed
from cachewitness.engines.registry import parse
from cachewitness.systems.vllm.as_test.construct import built
from cachewitness.systems.vllm.source import load
from cachewitness.workloads import layouts
from suites.support.consoles import ROOT
from suites.support.real_vllm import REAL, SOURCE, run_alone

pytestmark = REAL

FOUND = ROOT / "fixtures/findings"
TRACE = FOUND / "eagle-short-window-blocks.jsonl"


def test_the_command_says_that_the_test_fails_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "test_it.py"
    code = invoke(
        [
            "replay",
            str(TRACE),
            "--engine",
            f"vllm:source={SOURCE}",
            "--export",
            "pytest",
            "--output",
            str(output),
        ]
    )
    printed = " ".join(capsys.readouterr().out.split())
    assert code == 1 and "fails here as the trace does" in printed and output.exists(), printed


@pytest.mark.parametrize("name", ["eagle-chunk-off-the-grid", "a-salt-that-is-an-adapters-name"])
def test_a_test_of_what_is_sound_passes(name: str, tmp_path: Path) -> None:
    """The control: the same text, written for the last read of a trace that failed with older
    releases alone.
    """
    trace = validate.load_trace(ROOT / f"fixtures/traces/{name}.jsonl")
    spec = parse(f"vllm:source={SOURCE}")
    result = drive(trace, spec.open(trace.header))
    assert not result.findings and result.trace is not None and spec.kind.export is not None
    files = []
    for group in range(len(trace.header.layout.groups)):
        reads = [
            event
            for event in result.history.events
            if isinstance(event, Read) and event.group == group
        ]
        failed = Failed("stale-hit", reads[-1].r, reads[-1].seq, 0)
        files.append(tmp_path / f"test_{group}.py")
        files[-1].write_text(
            spec.kind.export(result.trace, result.history, failed, spec.options).text
        )
    ran = run_alone(*files)
    assert ran.returncode == 0 and f"{len(files)} passed" in ran.stdout, ran.stdout


def test_a_state_within_a_chunk_is_told_with_what_the_layers_save(tmp_path: Path) -> None:
    """The control: the same test passes where no such state can be saved, in vLLM's scheduler
    and in the test's worker.
    """
    stored = (FOUND / "test_prefill_checkpoint_behind_a_hit_inside_a_block.py").read_text()
    assert stored.count("checkpoint_alignment=1") == 2
    without = tmp_path / "test_without.py"
    without.write_text(stored.replace("checkpoint_alignment=1", "checkpoint_alignment=None"))
    ran = run_alone(without)
    assert ran.returncode == 0 and "1 passed" in ran.stdout, ran.stdout


def test_a_session_is_not_spelled_out() -> None:
    trace = validate.load_trace(FOUND / "session-names-a-dropped-token.jsonl")
    spec = parse(f"vllm:source={SOURCE}")
    result = drive(trace, spec.open(trace.header))
    assert result.trace is not None and spec.kind.export is not None
    with pytest.raises(UsageError, match="a session is not spelled out in a test"):
        spec.kind.export(
            result.trace, result.history, Failed("lost-hit", "r2", 0, 16), spec.options
        )


@pytest.mark.parametrize(
    ("name", "value"), [("max_loras", 1), ("scheduling_policy", "priority"), ("async_depth", 1)]
)
def test_an_option_that_a_test_does_not_spell_out_is_refused_by_its_name(
    name: str, value: object
) -> None:
    header = TraceHeader("t", layouts.load("full"), 10, level="scheduler", options={name: value})
    with pytest.raises(UsageError, match=f"option '{name}' is not spelled out in a test"):
        built(header, load(SOURCE))


def test_what_a_trace_says_is_text_and_no_code(tmp_path: Path) -> None:
    """A trace is anybody's, and its test is run: quotes, line ends and code in it stay inside
    strings, or are refused.
    """
    trace = validate.load_trace(FOUND / "eagle-window-of-one.jsonl")
    spec = parse(f"vllm:source={SOURCE}")
    evil = '""" + open("broken", "w") + """\n\\'
    header = msgspec.structs.replace(trace.header, name='a"; import os', story=evil)
    ops = [
        msgspec.structs.replace(op, salt=evil) if isinstance(op, Submit) else op for op in trace.ops
    ]
    result = drive(Trace(header, ops), spec.open(header))
    assert result.trace is not None and spec.kind.export is not None
    first = result.findings[0]
    failed = Failed(first.anomaly, first.r, first.seq, first.owed)
    made = spec.kind.export(result.trace, result.history, failed, spec.options)
    module = ast.parse(made.text)
    calls = [node.func for node in ast.walk(module) if isinstance(node, ast.Call)]
    assert "open" not in {function.id for function in calls if isinstance(function, ast.Name)}
    salts = {
        node.value.value
        for node in ast.walk(module)
        if isinstance(node, ast.keyword) and node.arg == "cache_salt"
    }
    assert salts == {evil} and "test_a_import_os" in made.text
    ops = [
        msgspec.structs.replace(op, r=evil) if isinstance(op, Submit) else op for op in trace.ops
    ][:1]
    history = drive(Trace(header, ops), spec.open(header)).history
    with pytest.raises(UsageError, match="is not spelled out in a test; rename it"):
        spec.kind.export(Trace(header, ops), history, Failed("lost-hit", evil, 0, 2), spec.options)
