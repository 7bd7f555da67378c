"""The variables that documents tell a reader to export: a run, a fuzz campaign and a plan read
them alike, and say so.
"""

from __future__ import annotations

import json
from itertools import product

import pytest

from cachewitness._util.errors import UsageError
from cachewitness.cli import invoke
from cachewitness.core.result import EXIT_PASS, EXIT_USAGE
from cachewitness.core.trace_format import TraceHeader
from cachewitness.engines import policy as policies
from cachewitness.engines.environment import exported
from cachewitness.systems.furiosa.reference.engine import configure, least_pages
from cachewitness.systems.furiosa.reference.plan import Request, plan
from cachewitness.workloads import layouts
from cachewitness.workloads.model import Full, Sliding

LENGTH, INTERVAL = "EXPECTED_AVERAGE_SEQ_LENGTH", "VLLM_PREFIX_CACHE_RETENTION_INTERVAL"


def output_of(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = EXIT_PASS) -> str:
    """Return what a command prints; it exits with `code`."""
    assert invoke(arguments) == code
    printed = capsys.readouterr()
    return printed.err if code == EXIT_USAGE else printed.out


@pytest.mark.parametrize(
    ("variable", "policy", "value", "option"),
    [
        (LENGTH, "furiosa", "8192", "expected_average_seq_length"),
        (INTERVAL, "vllm", "2048", "retention_interval"),
    ],
)
def test_a_run_reads_what_the_document_exports(
    variable: str,
    policy: str,
    value: str,
    option: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`export VARIABLE=…`, then `cachewitness run`: every configuration has it, and the report
    says where it comes from.
    """
    monkeypatch.setenv(variable, value)
    report = json.loads(
        output_of(capsys, "run", "--policy", policy, "--suite", "invariants", "--json")
    )
    assert report["configurations"] and all(
        f"{option}={value}" in name for name in report["configurations"]
    )
    assert report["suites"][0]["traces"] > 10 and report["suites"][0]["activity"]["hits"] > 10
    (origin,) = report["environment"]
    assert origin.startswith(f"{option}={value} (tokens) from the environment variable {variable}")
    assert origin in output_of(
        capsys, "run", "--policy", policy, "--suite", "invariants", "--layout", "full-swa"
    )


def test_a_campaign_reads_it_and_names_it_in_the_command_that_repeats_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the variable is not exported, the last line still runs the same campaign."""
    monkeypatch.setenv(LENGTH, "64")
    printed = output_of(capsys, "fuzz", "--policy", "furiosa", "--operations", "300")
    assert f"from the environment variable {LENGTH}" in printed
    assert "--option expected_average_seq_length=64" in printed.splitlines()[-1]


def test_a_plan_says_where_a_number_comes_from(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Unset, from the environment, or as given, which outranks it."""
    words = ("plan", "furiosa", "--layout", "gemma-3-27b", "--json")
    assert (
        json.loads(output_of(capsys, *words))["how"]["seq_length_tokens"]
        == f"{LENGTH} is unset: the longest sequence"
    )
    monkeypatch.setenv(LENGTH, "8192")
    answer = json.loads(output_of(capsys, *words))
    assert (answer["results"]["seq_length_tokens"], answer["how"]["seq_length_tokens"]) == (
        8192,
        f"{LENGTH}, from the environment",
    )
    answer = json.loads(output_of(capsys, *words, "--expected-average-seq-length", "1024"))
    assert (answer["results"]["seq_length_tokens"], answer["how"]["seq_length_tokens"]) == (
        1024,
        f"{LENGTH}, as given",
    )


def test_the_plan_of_vllm_reads_the_interval(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The unified block of this model is 544 tokens; an interval is a multiple of it."""
    monkeypatch.setenv(INTERVAL, str(544 * 4))
    answer = json.loads(output_of(capsys, "plan", "vllm", "--layout", "qwen3.5-0.8b", "--json"))
    assert answer["results"]["retention_interval_tokens"] == 544 * 4
    assert answer["how"]["retention_interval_tokens"] == f"from the environment, {INTERVAL}"


@pytest.mark.parametrize("text", ["0", "-5", "8e3", "banana", "", "9" * 5000])
@pytest.mark.parametrize(
    "command",
    [
        ("run", "--policy", "furiosa"),
        ("fuzz", "--policy", "furiosa", "--operations", "10"),
        ("plan", "furiosa", "--layout", "gemma-3-27b"),
    ],
)
def test_a_length_that_is_none_is_one_line(
    text: str,
    command: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The variable is named, and nothing runs."""
    monkeypatch.setenv(LENGTH, text)
    error = output_of(capsys, *command, code=EXIT_USAGE)
    assert error.startswith(f"cachewitness: environment: {LENGTH} must be a positive integer, not ")
    assert error.count("\n") == 1 and len(error) < 300


@pytest.mark.parametrize("text", ["-5", "8e3", "banana", "", "9" * 5000])
def test_an_interval_that_is_none_is_one_line(
    text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same for vLLM's variable, of which 0 is a lawful value."""
    monkeypatch.setenv(INTERVAL, text)
    error = output_of(capsys, "run", code=EXIT_USAGE)
    assert error.startswith(
        f"cachewitness: environment: {INTERVAL} must be a whole number of tokens, at least 0, not "
    )
    assert error.count("\n") == 1 and len(error) < 300


def test_an_option_outranks_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the text of a variable that is not asked is not read."""
    monkeypatch.setenv(LENGTH, "banana")
    assert exported(policies.get("furiosa").variables, ["expected_average_seq_length"]) == []


HYBRIDS = [
    name
    for name in layouts.models()
    if {type(cache) for cache in layouts.model(name).caches} == {Full, Sliding}
    and {group.kind for group in layouts.load(name).groups} == {"full", "sliding"}
]


@pytest.mark.parametrize("name", HYBRIDS)
@pytest.mark.parametrize(
    ("length", "ratio"), list(product((None, 1, 1024, 8192, 4096), ("max_model_len", "per_token")))
)
def test_a_run_splits_memory_as_the_plan_does(name: str, length: int | None, ratio: str) -> None:
    """The same bytes give the same blocks of either pool, layers of unequal size included; and
    one byte too few is refused.
    """
    layout = layouts.load(name)
    longest = 4096
    options = {
        "default_ratio": ratio,
        "expected_average_seq_length": length,
        "max_model_len": longest,
    }
    pages = least_pages(layout, options) + 7
    header = TraceHeader(name="t", layout=layout, pages=pages, policy="furiosa", options=options)
    config = configure(header)
    model = layouts.model(name)
    size = config.layers.block_size
    average = size * sum(
        cache.layers * cache.token_bytes
        for cache in model.caches
        if isinstance(cache, Full | Sliding)
    )
    unequal = any(group.token_bytes for group in layout.groups)
    if not unequal:
        assert (
            len({cache.token_bytes for cache in model.caches if isinstance(cache, Full | Sliding)})
            == 1
        )
    answer = plan(
        Request(
            name,
            None if length is None else str(length),
            kv_bytes=pages * average // 2,
            block_size=size,
            max_model_len=longest,
            default_ratio=ratio,
        )
    )
    assert (answer.value("global_blocks"), answer.value("sliding_blocks")) == (
        config.global_blocks,
        config.sliding_blocks,
    )


def test_memory_without_room_for_one_sequence_is_refused_by_plan_and_run_alike(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """16 GiB do not hold one sequence of 262,144 tokens of this model."""
    error = output_of(
        capsys, "plan", "furiosa", "--layout", "gemma-4-31b", "--kv-gib", "16", code=EXIT_USAGE
    )
    assert "holds not even one sequence of 262144 tokens" in error
    options = {"expected_average_seq_length": 4096}
    pages = least_pages(layouts.load("gemma-4-31b"), options)
    header = TraceHeader(
        name="t", layout=layouts.load("gemma-4-31b"), pages=pages, policy="furiosa", options=options
    )
    assert configure(header).global_blocks == 2 * 256
    header = TraceHeader(
        name="t",
        layout=layouts.load("gemma-4-31b"),
        pages=pages // 2 - 1,
        policy="furiosa",
        options=options,
    )
    with pytest.raises(UsageError, match="holds not even one sequence of 4096 tokens"):
        configure(header)
