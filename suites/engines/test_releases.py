"""`--release` on every command that has one, and what is said to an option that a policy does
not have.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cachewitness._util import data
from cachewitness.cli import invoke
from cachewitness.core.result import EXIT_PASS, EXIT_USAGE
from cachewitness.engines import policy as policies
from cachewitness.plan.systems import sizing_of, system_of, systems

VECTORS = data.fixtures() / "vectors"
TRACE = data.fixtures() / "traces" / "mutants" / "openvino-newest-overwritten.jsonl"
RELEASED = [name for name in policies.names() if len(policies.get(name).releases) > 1]


def output_of(capsys: pytest.CaptureFixture[str], *arguments: object, code: int) -> str:
    """Return what a command prints on the stream that its exit code is for."""
    assert invoke([str(argument) for argument in arguments]) == code
    printed = capsys.readouterr()
    return printed.err if code == EXIT_USAGE else printed.out


@pytest.mark.parametrize("policy", RELEASED)
def test_a_run_takes_every_release_of_a_policy_by_the_same_option(
    policy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The oldest and the newest; the report names the one that it ran."""
    suite, exact = (
        ("scheduler", ["--option", "tier_pages=64"]) if policy == "lmcache" else ("invariants", [])
    )
    for release in (policies.get(policy).releases[0], policies.get(policy).releases[-1]):
        words = (
            "run",
            "--policy",
            policy,
            "--release",
            release,
            "--suite",
            suite,
            "--layout",
            "full",
            *exact,
        )
        report = json.loads(output_of(capsys, *words, "--json", code=EXIT_PASS))
        assert (report["engine"], report["engine_version"]) == (
            f"reference:release={release}",
            release,
        )


@pytest.mark.parametrize("policy", RELEASED)
@pytest.mark.parametrize("command", ["run", "fuzz", "score"])
def test_an_unknown_release_is_told_the_known_ones(
    command: str, policy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("lm_eval") if command == "score" else None
    error = output_of(capsys, command, "--policy", policy, "--release", "1.x", code=EXIT_USAGE)
    known = ", ".join(policies.get(policy).releases)
    assert error == f"cachewitness: --release: '1.x' is unknown; known are {known}\n"


def test_an_engine_that_is_a_release_has_no_choice_of_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    error = output_of(capsys, "run", "--engine", "vllm", "--release", "0.29", code=EXIT_USAGE)
    assert (
        error.startswith("cachewitness: --release: engine vllm has the release that is installed")
        and "reference" in error
    )


def test_a_campaign_is_repeated_with_its_release(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("fuzz", "--policy", "openvino_genai", "--release", "2026.2", "--operations", "1000")
    printed = output_of(capsys, *words, code=EXIT_PASS)
    assert "(2026.2)" in printed and "--engine reference:release=2026.2" in printed.splitlines()[-1]


def test_a_trace_is_replayed_on_a_release(capsys: pytest.CaptureFixture[str]) -> None:
    assert "no contradiction" in output_of(
        capsys, "replay", TRACE, "--release", "2026.3", code=EXIT_PASS
    )
    error = output_of(capsys, "replay", TRACE, "--release", "1.x", code=EXIT_USAGE)
    assert "release '1.x' is unknown; known are 2026.2, 2026.3, 2026.4" in error


def test_vectors_that_name_no_release_are_asked_of_the_one_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What was filled from the newest release is answered otherwise by 2026.2, where the unset
    multiplier is 8.
    """
    path = VECTORS / "openvino_genai" / "sizing.json"
    assert "failed: 0" in output_of(capsys, "consume", path, "--release", "2026.4", code=EXIT_PASS)
    printed = output_of(capsys, "consume", path, "--release", "2026.2", code=1)
    assert "adaptive" in printed and "failed: 0" not in printed


@pytest.mark.parametrize("policy", policies.names())
@pytest.mark.parametrize("words", [("run", "--layout", "full-swa"), ("fuzz", "--operations", "10")])
def test_an_unknown_option_is_told_the_options_of_that_policy(
    words: tuple[str, ...], policy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line, the policy's own options and those alone."""
    own = {
        "vllm": "retention_interval",
        "lmcache": "separate_object_groups",
        "furiosa": "expected_average_seq_length",
        "openvino_genai": "cache_interval_multiplier",
        "tensorrt_edge": "system_prompts",
    }
    error = output_of(capsys, *words, "--policy", policy, "--option", "foo=1", code=EXIT_USAGE)
    assert error.count("\n") == 1 and "option 'foo' is unknown; known are " in error
    assert {name for name in own if own[name] in error} - {"vllm"} == {policy} - {"vllm"}


@pytest.mark.parametrize("system", systems())
def test_an_unknown_option_of_a_plan_is_told_the_options_of_that_plan(
    system: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sizing = sizing_of(system_of(system))
    error = output_of(capsys, "plan", system, "--zzz", "1", code=EXIT_USAGE)
    assert (
        error.startswith("cachewitness: No such option '--zzz'; known are --")
        and error.count("\n") == 1
    )
    for option in sizing.plan().params:
        assert option.opts[0] in error


def test_a_mistyped_option_of_any_command_is_told_the_known_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error = output_of(capsys, "consume", tmp_path, "--layoot", "x", code=EXIT_USAGE)
    assert "known are --engine, --release, --report, --quiet" in error
