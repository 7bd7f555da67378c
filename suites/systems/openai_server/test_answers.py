"""The engine `openai-server`: what a server must prove, and that a lawful one passes where one
with a fault does not.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from cachewitness._util.errors import UsageError
from cachewitness.cli import invoke
from cachewitness.core.driving import judge
from cachewitness.core.events import Answer, Answering, Finished, Header, Rules, Submitted
from cachewitness.core.trace_format import Level, Submit, Trace, length_of
from cachewitness.engines.registry import EngineSpec, parse
from cachewitness.parity.answers.compare import runs
from cachewitness.report.summary import Report
from cachewitness.sessions.run.ceiling import ceiling
from cachewitness.sessions.run.runner import Runner
from cachewitness.sessions.run.suites import SUITES
from cachewitness.systems.openai_server import engine as openai_engine
from cachewitness.systems.openai_server.address import Address
from cachewitness.systems.openai_server.cold_requests import longest_prompt
from cachewitness.workloads.answer_random import random_answers
from cachewitness.workloads.answer_stories import write
from cachewitness.workloads.avoided import without_company, without_continuations
from cachewitness.workloads.configurations import Configuration
from cachewitness.workloads.spelling import Spelling
from suites.support.gateway import gateway
from suites.support.openai_double import BLOCK, Double

OF_ANSWERS = [suite for suite in SUITES if suite.level == "answers"]


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(openai_engine, "_KNOWN", {})
    yield


def spec_of(double: Double, **options: str) -> EngineSpec:
    usual = {"url": double.url, "block": str(BLOCK), "vocabulary": "89", "dtype": "float32"}
    return parse(
        "openai-server:" + ",".join(f"{name}={value}" for name, value in (usual | options).items())
    )


def story(spec: EngineSpec, name: str = "siblings") -> Trace:
    return write(spec.configurations[0].shape("answers"), name, 0)


def whole_run(spec: EngineSpec, *stories: str) -> Report:
    """Run the suite `answers`, or some of its stories."""

    def traces(configuration: Configuration, level: Level, seed: int) -> Iterator[Trace]:
        return (write(configuration.shape(level), name, seed) for name in stories)

    suite = replace(OF_ANSWERS[0], traces=traces) if stories else OF_ANSWERS[0]
    return Runner(spec, spec.configurations).run([suite])


def refusal(spec: EngineSpec) -> str:
    with pytest.raises(UsageError) as refused:
        spec.open(story(spec).header)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_a_lawful_server_passes() -> None:
    """Asked as vLLM's is: with salts, of which none finds what another left."""
    with Double().serving() as double:
        report = whole_run(spec_of(double))
    assert report.exit_code == 0 and not report.not_run
    (tally,) = [tally for tally in report.tallies() if tally.checker == "answers"]
    assert tally.opportunities > 50 and report.suites[0].controls[0].restored == 0


def test_a_server_without_salts_is_asked_cold_by_its_own_switch_and_other_texts_for_each_trace() -> (  # noqa: E501
    None
):
    """As llama.cpp's. What one run left is in nobody's way in the next, and nobody looks for
    salts that are not there.
    """
    with Double(salts=False, switch=True).serving() as double:
        spec = spec_of(double, stream="no")
        reports = [whole_run(spec, "siblings", "tenants", "replays") for _ in range(2)]
    assert [report.exit_code for report in reports] == [0, 0]
    assert [left.what for left in reports[1].not_run] == ["answers: salt in traces"]


@pytest.mark.parametrize(("heeded", "found"), [(False, {"foreign-restore"}), (True, set())])
def test_salts_that_a_server_takes_and_does_not_heed_are_found_if_it_promises_them(
    heeded: bool, found: set[str]
) -> None:
    """kvcache-ai/ktransformers#2184: the field is taken, and five salts share one prefix."""
    with Double(salts=heeded, switch=True).serving() as double:
        spec = spec_of(double, salts="promised")
        result = runs(story(spec, "tenants"), spec)
    assert {one.anomaly for one in result.findings} == found


@pytest.mark.parametrize(("takes", "found"), [(38, ["answer-missing"]), (39, []), (0, [])])
def test_prompts_as_long_as_a_server_says_are_answered(takes: int, found: list[str]) -> None:
    """A server may take more than it says, and no token less."""
    with Double(lists={"max_model_len": 40}, takes=takes).serving() as double:
        spec = spec_of(double)
        trace = next(ceiling(spec, spec.configurations[0], "answers", 0))
        assert [length_of(op.prompt) for op in trace.ops if isinstance(op, Submit)][:3] == [
            39,
            38,
            40,
        ]
        result = runs(trace, spec)
    assert [finding.anomaly for finding in result.findings][:1] == found


@pytest.mark.parametrize(
    ("lists", "longest"),
    [
        ({"max_model_len": 40}, 39),
        ({"meta": {"n_ctx": 512, "n_ctx_train": 9999}}, 511),
        ({"owned_by": "sglang", "max_model_len": 40}, 33),
        ({"meta": None, "max_model_len": None}, 0),
        ({"max_model_len": "many"}, 0),
        ({}, 0),
    ],
)
def test_how_long_a_prompt_may_be_is_read_where_a_server_says_it(
    lists: dict[str, Any], longest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM, llama.cpp and SGLang, each in its own words; others do not say."""
    listed = {
        "/v1/models": {"data": [{"id": "toy", **lists}]},
        "/server_info": {"max_req_input_len": 34},
    }
    monkeypatch.setattr(Address, "ask", lambda self, path, seconds: listed[path])
    assert longest_prompt(Address("http://here"), "toy") == longest


def test_a_second_server_without_a_cache_makes_answers_cold() -> None:
    """Which it must show."""
    with Double(salts=False).serving() as warm, Double(caching=False).serving() as cold:
        spec = spec_of(warm, cold_url=cold.url)
        result = runs(story(spec), spec)
        assert not result.findings and result.tallies[-1].opportunities and len(cold.bodies) > 5
        openai_engine._KNOWN.clear()
        assert "cold_url: that server restores tokens as well" in refusal(
            spec_of(warm, cold_url=warm.url)
        )


def test_a_second_server_that_does_not_count_what_it_restores_is_not_believed_to_be_cold() -> None:
    """It may cache as the first one does, and then every answer of both would be the same."""
    with Double(salts=False).serving() as warm, Double(salts=False, counts=False).serving() as cold:
        assert "cold_url: that server does not say how many tokens it restored" in refusal(
            spec_of(warm, cold_url=cold.url)
        )


@pytest.mark.parametrize(("texts", "restored", "found"), [("a.", 4, 0), ("a.", 5, 1), ("", 1, 1)])
def test_texts_that_are_kept_apart_by_their_names_alone_share_a_few_tokens_by_chance(
    texts: str, restored: int, found: int
) -> None:
    """Names of one length do not make alike texts, and four tokens that are restored are no
    finding; the fifth is.
    """
    spelled = {
        tuple(Spelling(89, f"{number:04}.").tokens("doc:5", (), {}) or ()) for number in range(3000)
    }
    assert len(spelled) == 3000
    header = Header(
        "x",
        "answers",
        [],
        [],
        rules=Rules(answering=Answering("float32", 89, texts)),
        capabilities=["abort"],
    )
    events = [
        Submitted(r="a", tokens=[7] * 20, generate=1),
        Answer(r="a", tokens=[1], restored=restored),
        Finished(r="a"),
    ]
    assert len(judge(header, events).findings) == found


FAULTS = {"snapshot-one-token-early": "replays", "snapshot-stays-aliased": "answered-prompts"}


@pytest.mark.parametrize(("fault", "name"), FAULTS.items())
def test_a_server_that_answers_from_a_wrong_state_fails(fault: str, name: str) -> None:
    """It counts and keeps salts apart as the lawful one does."""
    with Double(mutant=fault).serving() as double:
        spec = spec_of(double)
        assert {finding.anomaly for finding in runs(story(spec, name), spec).findings} == {
            "answer-differs"
        }


def test_a_server_that_answers_from_a_wrong_prefix_under_load_fails() -> None:
    """Of two requests that resume in one step, each gets the other's state; alone nobody
    notices. Which requests meet in a step is the machine's doing, so several traces may be needed.
    """
    with Double(mutant="restored-into-another-slot", pace=0.005).serving() as double:
        spec = spec_of(double)
        traces = [
            random_answers(spec.configurations[0].shape("answers"), seed)
            for seed in (7, *range(9, 15))
        ]
        assert any(
            finding.anomaly == "answer-differs"
            for trace in traces
            for finding in runs(trace, spec).findings
        )
        assert not runs(without_company(traces[0]), spec).findings


def with_cached(change: dict[str, Any]) -> Any:
    """Return what replaces the number of cached tokens in an answer's usage."""

    def rewrite(part: dict[str, Any], number: int) -> dict[str, Any]:
        details = part.get("usage", {}).get("prompt_tokens_details")
        if details:
            details["cached_tokens"] = change["cached"](
                details["cached_tokens"], number, part["usage"]["prompt_tokens"]
            )
        return part

    return rewrite


NOT_COLD: dict[str, tuple[dict[str, Any], str]] = {
    "salts ignored": ({"salts": False}, "the server cannot be asked without its cache"),
    "no count": ({"counts": False}, "does not say how many tokens it restored"),
    "no cache": ({"caching": False}, "restores nothing of 17 tokens"),
    "always 0": (
        {"rewrite": with_cached({"cached": lambda n, number, prompt: 0})},
        "restores nothing of 17 tokens",
    ),
    "always all": (
        {"rewrite": with_cached({"cached": lambda n, number, prompt: prompt})},
        "restored 17 tokens of a prompt that nobody",
    ),
    "more than there is": (
        {"rewrite": with_cached({"cached": lambda n, number, prompt: 99})},
        "restored 99 tokens of a prompt of 32",
    ),
    "grows under a new salt": (
        {"rewrite": with_cached({"cached": lambda n, number, prompt: max(n, number - 3)})},
        "cannot be asked without",
    ),
}


@pytest.mark.parametrize(("server", "message"), NOT_COLD.values(), ids=NOT_COLD.keys())
def test_a_server_that_proves_nothing_is_refused(server: dict[str, Any], message: str) -> None:
    """Before the first trace, in one line."""
    with Double(**server).serving() as double:
        assert message in refusal(spec_of(double))


def test_several_servers_behind_one_address_are_told_with_the_way_to_name_one() -> None:
    """Each alone passes: it is the address that is no engine."""
    with gateway([Double(), Double()]) as url:
        message = refusal(parse(f"openai-server:url={url}"))
        assert "several servers seem to answer at this address" in message
        assert "name one of them by its own address, url=URL" in message


def test_a_gateway_in_front_of_one_server_is_no_several_servers() -> None:
    with gateway([Double()]) as url:
        parse(f"openai-server:url={url}").open(story(parse(f"openai-server:url={url}")).header)


@pytest.mark.parametrize("salts", [True, False])
def test_a_gateway_that_answers_from_memory_is_refused_in_one_line(salts: bool) -> None:
    with gateway([Double(salts=salts)], remembers=True) as url:
        message = refusal(parse(f"openai-server:url={url}"))
        assert "does nobody in front of it answer from memory?" in message


def test_a_block_that_is_too_small_is_said() -> None:
    """With what would be restored of a longer prompt."""
    with Double().serving() as double:
        message = refusal(spec_of(double, block="2"))
        assert (
            "nothing of 5 tokens, and 16 of 17: its blocks are larger than 2 tokens; say how large,"
            " block=N" in message
        )


def test_a_count_that_ends_after_the_proof_has_checked_nothing() -> None:
    """Right answers alone do not show that anything was restored: exit code 5."""
    with Double(
        rewrite=with_cached({"cached": lambda n, number, prompt: n if number < 10 else 0})
    ).serving() as double:
        assert whole_run(spec_of(double), "replays").exit_code == 5


def test_a_request_that_was_asked_cold_and_restores_is_a_verdict() -> None:
    """Salts that end to be heeded after the proof are no excuse."""
    with Double().serving() as double:
        spec = spec_of(double)
        spec.open(story(spec).header).close()
        double.salts = False
        result = runs(story(spec, "replays"), spec)
    assert {finding.anomaly for finding in result.findings} >= {"engine-crashed"}
    assert any(
        "of a prompt that was asked cold (by salts)" in finding.sentence
        for finding in result.findings
    )


def test_what_differs_without_the_cache_too_is_the_batchs_doing_and_unknown() -> None:
    """Servers are not exact across batches: that is no finding, and no pass either."""
    with Double(noise=0.01, noisy_from=3 * BLOCK, pace=0.001).serving() as double:
        report = whole_run(spec_of(double), "newcomers", "pressure")
    assert report.exit_code == 2 and not report.failures
    assert "batch: it fails without the cache as well" in report.suites[0].open[0]


def test_what_decoding_rounds_otherwise_than_prefill_is_unknown_and_can_be_avoided() -> None:
    """A block that an answer filled is cached as it was decoded; its baseline's is computed by
    prefill.
    """
    with Double(decoding=0.01).serving() as double:
        spec = spec_of(double)
        report = whole_run(spec, "conversations", "replays")
        assert report.exit_code == 2 and not report.failures
        assert (
            "decoding: it passes if no prompt goes on after an answer" in report.suites[0].open[0]
        )
        assert not runs(without_continuations(story(spec, "conversations")), spec).findings


def test_what_a_step_waits_for_and_who_goes_away() -> None:
    """A step ends when a part of an answer has come; who goes away has what had come until then."""
    with Double().serving() as double:
        spec = spec_of(double)
        assert not runs(story(spec, "cancelled"), spec).findings
        time.sleep(0.05)
        assert not double.server.running


def test_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    """A server that passes, in a process of its own; one that is not there is exit code 4 and
    one line.
    """
    with Double().serving() as double:
        text = f"openai-server:url={double.url},block=8,vocabulary=89,dtype=float32"
        assert invoke(["run", "--engine", text, "--suite", "answers"]) == 0
        out = capsys.readouterr().out
        assert f"toy at {double.url}" in out and "control uncached: 0 of 4" in out
    assert invoke(["run", "--engine", text.replace("block=8", "block=4")]) == 4
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "does not answer" in err and "is a server running there?" in err
    assert invoke(["run", "--engine", "openai-server"]) == 4
    assert "name a server, openai-server:url=http://HOST:PORT" in capsys.readouterr().err
