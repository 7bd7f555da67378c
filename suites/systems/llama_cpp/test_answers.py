"""The engine `llama-cpp`: what it takes, what it makes of the server's answers, and what was
found in the real one.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from msgspec.structs import replace

from cachewitness._util.data import fixtures
from cachewitness._util.errors import EngineMissing, UsageError
from cachewitness.cli import invoke
from cachewitness.core.events import Answer
from cachewitness.core.result import EXIT_USAGE
from cachewitness.core.trace_format import Finish, Op, Step, Submit, Trace, TraceHeader
from cachewitness.core.validate import load_trace
from cachewitness.engines.isolation.engine import Isolation
from cachewitness.engines.registry import EngineSpec, parse
from cachewitness.parity.answers.compare import answered as judged
from cachewitness.parity.answers.compare import runs
from cachewitness.sessions.run.ceiling import ceiling
from cachewitness.systems.llama_cpp.completion import Completion, ServerFailed
from cachewitness.systems.llama_cpp.kind import (
    ALL,
    ATTENTION,
    ENGINE,
    MODELS,
    WINDOWS,
    configurations,
)
from cachewitness.systems.llama_cpp.settings import CONTEXT, settings_of
from cachewitness.workloads.answer_longest import in_turn
from cachewitness.workloads.answer_stories import write
from suites.support.completion_server import answering
from suites.support.parameters import constant

installed = pytest.mark.skipif(
    find_spec("xllamacpp") is None or not os.environ.get(MODELS),
    reason=(
        f"needs xllamacpp, and {MODELS} to name a folder of models; ci/stage_llama_cpp.sh has both"
    ),
)
FINDINGS: dict[str, dict[str, Any]] = {
    "window-one-short": {"cache_ram": 0},
    "window-one-short-in-a-file": {"slot_files": False},
    "window-one-short-in-shared-cells": {"kv_unified": False},
    "window-one-short-in-one-slot": {"ctx_checkpoints": 0},
    "full-window-cut": {"cache_ram": 0},
    "full-window-written-over": {"kv_unified": False},
}
"""What was found in xllamacpp 2026.10.11549, and one thing with which it passes."""
LOGGED = ("window-one-short", "window-one-short-in-a-file")
"""Those whose checkpoint the log says to begin behind the window; of the others it says that it
begins at 0."""
SERVERS = """
import sys
from pathlib import Path
from cachewitness.systems.llama_cpp.server import Server
from cachewitness.systems.llama_cpp.settings import NUMBERS, SWITCHES, ServerSettings
for size in map(int, sys.argv[2:]):
    server = Server(Path(sys.argv[1]), ServerSettings(512, 512, NUMBERS | {"n_ubatch": size}, SWITCHES), "")
    print("opened", file=sys.stderr, flush=True)
    server.ask("POST", "/completion", {"prompt": [index % 250 for index in range(200)], "n_predict": 1})
    server.close()
"""  # noqa: E501
"""Opens servers of a process one after the other, each with an `n_ubatch`, and asks each a prompt
of 200 tokens."""
ASKED = Submit(r="a", prompt="", tokens=[1, 2, 3], generate=2)
PARTS: list[dict[str, Any]] = [
    {"tokens": [7], "stop": False, "completion_probabilities": [{"id": 7, "logprob": -0.5}]},
    {"tokens": [9], "stop": False, "completion_probabilities": [{"id": 9, "logprob": None}]},
    {"tokens": [], "stop": True, "truncated": False, "timings": {"cache_n": 2}},
]


def engine(options: str) -> EngineSpec:
    return parse(f"llama-cpp:{options}").isolated(Isolation(deadline=20))


def stored(name: str) -> Trace:
    return load_trace(fixtures() / "findings" / f"llama-cpp-{name}.jsonl")


def header(**options: Any) -> TraceHeader:
    trace = write(configurations()[0].shape("answers"), "idle", 0)
    return replace(trace.header, options=options)


def streamed(*parts: Any, status: str = "200 OK") -> bytes:
    lines = "".join(
        f"data: {part if isinstance(part, str) else json.dumps(part)}\n\n" for part in parts
    )
    return f"HTTP/1.1 {status}\r\nConnection: close\r\n\r\n{lines}".encode()


def heard(reply: bytes) -> Answer:
    """Return what is made of the bytes that a server answers. Raises ServerFailed if that is no
    answer.
    """
    over = Event()
    with answering(reply) as address:
        completion = Completion(address, ASKED, caching=True, heard=over.set)
        completion.send()
        while not completion.over:
            assert over.wait(10)
            over.clear()
        return completion.answer()


def test_an_answer_has_its_tokens_their_logprobs_and_what_was_restored() -> None:
    """As they come, part by part."""
    assert heard(streamed(*PARTS)) == Answer(
        r="a", tokens=[7, 9], logprobs=[-0.5, None], restored=2, ended="length"
    )


@pytest.mark.parametrize(
    "reply",
    [
        streamed(PARTS[0], PARTS[2] | {"truncated": True}),
        streamed(PARTS[0], {"error": {"code": 500, "message": "Context size has been exceeded."}}),
        (
            b'HTTP/1.1 400 Bad\r\nConnection: close\r\n\r\n{"error":{"code":400,"message":"it'
            b' exceeds the context"}}'
        ),
    ],
)
def test_a_request_for_which_there_is_no_room_is_refused(reply: bytes) -> None:
    """Whether the server says so at once, on the way, or ends early; the harness asks whether it
    had room alone.
    """
    assert heard(reply).ended == "refused"


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (streamed(*PARTS[:2]), "the server ends it after 2 tokens"),
        (streamed(PARTS[0], "{"), "its answer cannot be read"),
        (streamed({"tokens": [7]}), "its answer cannot be read"),
        (b"SSH-2.0-other\r\n", "its answer cannot be read"),
        (b"", "its answer cannot be read"),
        (
            b'HTTP/1.1 500 Oh\r\nConnection: close\r\n\r\n{"error":{"code":500,"message":"oh"}}',
            "the server answers 500, 'oh'",
        ),
        (b"HTTP/1.1 500 Oh\r\nConnection: close\r\n\r\n[]", "its answer cannot be read"),
    ],
)
def test_whatever_else_a_server_says_is_its_failure(reply: bytes, message: str) -> None:
    """Never an answer, and no error of the harness."""
    with pytest.raises(ServerFailed, match=message):
        heard(reply)


def test_who_goes_away_has_what_had_come() -> None:
    """The rest is not waited for."""
    over = Event()
    with answering(streamed(PARTS[0])) as address:
        completion = Completion(address, ASKED, caching=True, heard=over.set)
        completion.send()
        assert over.wait(10)
        completion.leave()
    assert completion.answer(cancelled=True) == Answer(
        r="a", tokens=[7], logprobs=[-0.5], ended="cancelled"
    )


def test_the_uncached_twin_has_one_slot_and_keeps_nothing_in_the_same_batches() -> None:
    """Whatever the configuration asks for."""
    asked = header(
        n_ubatch=16, n_parallel=3, cache_ram=5, ctx_checkpoints=7, slot_files=True, swa_full=True
    )
    cached = settings_of(asked, "on")
    cold = settings_of(asked, "alone")
    assert (
        cold.numbers["n_parallel"],
        cold.numbers["ctx_checkpoints"],
        cold.numbers["cache_ram"],
    ) == (1, 0, 0)
    assert not cold.switches["slot_files"] and cached.switches["slot_files"]
    assert (
        cold.numbers["n_ubatch"] == cached.numbers["n_ubatch"] == 16
        and cold.n_batch == cached.n_batch
    )


def test_slots_share_the_context_or_have_as_much_each() -> None:
    """And never more than the models were made for."""
    asked = replace(header(), pages=20)
    alike, apart = (
        settings_of(replace(asked, options={"kv_unified": unified}), "on")
        for unified in (True, False)
    )
    assert (alike.n_ctx, apart.n_ctx) == (320, 4 * 320)
    assert settings_of(replace(asked, pages=1 << 20), "on").n_ctx == CONTEXT


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"retention_interval": 0},
            "takes the options chunk, n_ubatch, .* of a trace, not retention_interval",
        ),
        ({"n_parallel": 0}, "n_parallel of a trace is a number of at least 1, not 0"),
        ({"cache_ram": -1}, "cache_ram of a trace is a number of at least 0"),
        ({"n_ubatch": "many"}, "n_ubatch of a trace is a number"),
        ({"swa_full": 1}, "swa_full of a trace is true or false, not 1"),
    ],
)
def test_options_of_a_trace_that_do_not_fit_are_one_line(
    options: dict[str, Any], message: str
) -> None:
    """Under the names that llama.cpp's command line gives them."""
    with pytest.raises(UsageError, match=message):
        settings_of(header(**options), "on")


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ("model=gpt", "model is one of"),
        ("caching=maybe", "caching is one of on, off, alone, not 'maybe'"),
        ("models=nowhere", "ci/stage_llama_cpp.sh makes them"),
        ("model=nowhere/own.gguf", "model: there is no file nowhere/own.gguf"),
    ],
)
def test_an_engine_that_cannot_be_opened_says_why(named: str, message: str) -> None:
    """Before anything is imported."""
    with pytest.raises(UsageError, match=message):
        parse(f"llama-cpp:{named}").open(header())


def test_a_run_says_what_the_engine_said_and_not_what_a_control_lacks(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The control `attention-only` needs a model of its own, which is not there either."""
    words = ["--engine", "llama-cpp:model=nowhere/own.gguf", "--isolate", "no", "--quiet"]
    assert invoke(["run", *words]) == EXIT_USAGE
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == "cachewitness: --engine llama-cpp: model: there is no file nowhere/own.gguf"


@installed
def test_a_model_of_quantised_weights_is_refused() -> None:
    """What it computes depends on how many tokens are computed at a time."""
    from cachewitness.systems.llama_cpp.engine import dtype_of

    assert (dtype_of(Path("a.gguf"), 32.0), dtype_of(Path("b.gguf"), 16.1)) == (
        "float32",
        "bfloat16",
    )
    with pytest.raises(UsageError, match=r"c.gguf has weights of 8.5 bits.* score --likelihood"):
        dtype_of(Path("c.gguf"), 8.5)


def test_without_the_package_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is an engine that is missing, not a broken one."""
    (tmp_path / "qwen3-next.gguf").touch()
    monkeypatch.setitem(sys.modules, "cachewitness.systems.llama_cpp.engine", None)
    with pytest.raises(EngineMissing, match=r"pip install 'cachewitness\[llama-cpp\]'"):
        parse(f"llama-cpp:models={tmp_path}").open(header())


@installed
def test_a_server_that_cannot_be_opened_gives_standard_error_back(tmp_path: Path) -> None:
    """A process that opens one trace after another writes to what it wrote to before."""
    from cachewitness.systems.llama_cpp.engine import LlamaCpp

    before = os.fstat(2)
    (tmp_path / "junk.gguf").write_bytes(b"no model")
    with pytest.raises(RuntimeError):
        LlamaCpp(header(), tmp_path / "junk.gguf", "on", "recurrent", log=True)
    assert os.path.samestat(os.fstat(2), before)


@installed
@pytest.mark.parametrize("model", ALL)
def test_no_parameter_of_a_model_is_constant(model: str) -> None:
    import gguf

    parameters = gguf.GGUFReader(Path(os.environ[MODELS]) / f"{model}.gguf").tensors
    assert constant((one.name, one.data.ravel().tolist()) for one in parameters) == []


@installed
@pytest.mark.parametrize("model", ALL)
def test_every_model_restores_and_its_twin_does_not(model: str) -> None:
    """Conversations go on from what was cached, with the answers of the uncached baseline."""
    trace = write(configurations()[0].shape("answers"), "conversations", 0)
    cached, cold = (
        runs(trace, engine(f"model={model},caching={caching}")) for caching in ("on", "alone")
    )
    assert (cached.findings, cold.findings, cold.activity.hits) == (
        [],
        [],
        0,
    ) and cached.activity.hits >= 4


def answered(r: str, prompt: str) -> list[Op]:
    """Ask for four tokens and wait."""
    return [Submit(r=r, prompt=prompt, generate=4), Finish(r)]


EDITED = [*answered("a", "A:300"), *answered("b", "A:290 b:30"), *answered("c", "A:290 c:40")]
TURNS = [
    *answered("a", "A:300"),
    Step(),
    *answered("b", "A:300 @a:4 b:30"),
    Step(),
    *answered("c", "A:300 @a:4 b:30 @b:4 c:10"),
]


@installed
@pytest.mark.parametrize(("model", "hits"), [("qwen3-next", 0), (WINDOWS[0], 2), (ATTENTION, 2)])
def test_an_edited_end_says_why_nothing_is_reused(model: str, hits: int) -> None:
    """Of recurrent layers no checkpoint lies in front of the edit, which the report says."""
    result = runs(Trace(replace(header(), pages=64), EDITED), engine(f"model={model}"))
    (tally,) = [tally for tally in result.tallies if tally.checker == "answers"]
    reason = "nothing restored: no checkpoint lies where the prompt parts, or in front"
    assert (result.findings, result.activity.hits) == ([], hits)
    assert tally.excused.get(reason, 0) == 2 - hits


@installed
@pytest.mark.parametrize("model", ["qwen3-next", ATTENTION])
@pytest.mark.parametrize("more", [0, 1])
def test_a_prompt_as_long_as_the_context_is_answered(model: str, more: int) -> None:
    """As long as a slot says, with room for an answer. The fault: the engine says a token more."""
    spec = parse(f"llama-cpp:model={model}")
    configuration = configurations()[0]
    trace = next(ceiling(spec, configuration, "answers", 0))
    opened = spec.open(trace.header)
    own = opened.describe()
    most = own.rules.max_prompt + more
    own = replace(own, rules=replace(own.rules, max_prompt=most))
    opened.describe = lambda: own  # type: ignore[method-assign]
    asked = in_turn(configuration.shape("answers"), most, trace.header.pages, 0)
    found = judged(asked, opened, spec).findings
    assert {finding.anomaly for finding in found} == ({"answer-missing"} if more else set())


@installed
@pytest.mark.parametrize("model", ["qwen3-next", WINDOWS[0], ATTENTION])
def test_a_slot_goes_on_from_its_file(model: str) -> None:
    """Also where nothing is kept on the host."""
    files = replace(header(slot_files=True, cache_ram=0), pages=64)
    result = runs(Trace(files, TURNS), engine(f"model={model}"))
    assert (result.findings, result.activity.hits) == ([], 2)


@installed
def test_a_model_is_opened_by_its_file_and_says_how_many_tokens_it_knows() -> None:
    """What it keeps of a prompt is not known, so nothing is said of that."""
    file = Path(os.environ[MODELS]) / f"{ATTENTION}.gguf"
    opened = parse(f"llama-cpp:model={file}").open(header())
    try:
        answering = opened.describe().rules.answering
    finally:
        opened.close()
    assert answering is not None and answering.resumes == "" and answering.vocabulary >= 256
    trace = write(configurations()[0].shape("answers"), "conversations", 0)
    result = runs(trace, engine(f"model={file}"))
    assert result.findings == [] and result.activity.hits >= 4


@installed
@pytest.mark.parametrize(
    "configuration", configurations(), ids=lambda configuration: configuration.name
)
def test_attention_alone_passes_in_every_configuration(configuration: Any) -> None:
    """Slots, prompts kept on the host, files of slots, small batches: the control has no finding
    and many hits.
    """
    trace = write(configuration.shape("answers"), "newcomers", 0)
    result = runs(Trace(trace.header, trace.ops), engine("model=qwen3"))
    assert result.findings == [] and result.activity.requests == 6


@installed
@pytest.mark.parametrize("model", WINDOWS)
@pytest.mark.parametrize("name", FINDINGS)
def test_a_finding_is_found_again_and_only_with_the_cache(name: str, model: str) -> None:
    """In both models with windows; the same trace without the cache, in the same slots, has
    none.
    """
    trace = stored(name)
    findings = runs(trace, engine(f"model={model}")).findings
    assert [finding.anomaly for finding in findings if finding.checker == "answers"] == [
        "answer-differs"
    ]
    expected = ["window-hole"] if name in LOGGED else []
    assert [finding.anomaly for finding in findings if finding.checker == "resumes"] == expected
    assert runs(trace, engine(f"model={model},caching=off")).findings == []


@installed
@pytest.mark.parametrize("name", FINDINGS)
def test_without_windows_the_findings_pass(name: str) -> None:
    """Attention alone restores as well, and answers as without the cache: it is the windows."""
    result = runs(stored(name), engine(f"model={ATTENTION}"))
    assert result.findings == [] and result.activity.hits


@installed
@pytest.mark.parametrize("name", FINDINGS)
def test_a_finding_passes_with_one_thing_changed(name: str) -> None:
    """Which says where it comes from."""
    trace = stored(name)
    changed = Trace(replace(trace.header, options=trace.header.options | FINDINGS[name]), trace.ops)
    assert runs(changed, engine("model=gpt-oss")).findings == []


@installed
@pytest.mark.parametrize("sizes", [(16, 512), (512, 16)])
def test_prompts_are_cut_by_the_first_server_of_the_process(sizes: tuple[int, int]) -> None:
    """4 and 4 + n_ubatch tokens before the end, by the first server's n_ubatch: traces with
    another one get another process.
    """
    command = [
        sys.executable,
        "-c",
        SERVERS,
        str(Path(os.environ[MODELS]) / f"{WINDOWS[0]}.gguf"),
        *map(str, sizes),
    ]
    log = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stderr
    made = [
        re.findall(r"created context checkpoint .* n_tokens = (\d+)", part)
        for part in log.split("opened\n")[1:]
    ]
    assert made == [["180", "196"] if sizes[0] == 16 else ["196"]] * 2
    assert ENGINE.process is not None and "n_ubatch" in ENGINE.process.fixed


@pytest.mark.parametrize("name", FINDINGS)
def test_findings_are_stored_as_traces_that_the_engine_takes(name: str) -> None:
    """They can be replayed by name, and are short."""
    trace = stored(name)
    assert settings_of(trace.header, "on").n_ctx == 4096 and len(trace.ops) <= 10
