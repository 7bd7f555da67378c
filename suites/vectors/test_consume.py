"""Consuming: a right engine passes, a faulty one fails, and what was not asked is never counted
as passed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cachewitness.cli import invoke
from cachewitness.engines import registry
from cachewitness.engines.kind import EngineKind
from cachewitness.engines.registry import parse
from cachewitness.vectors import store
from cachewitness.vectors.consume import consume
from cachewitness.vectors.form import Facts, LifecycleExpected
from cachewitness.vectors.lifecycle import Comparison
from suites.support.engine_kinds import only
from suites.support.published_vectors import files
from suites.support.sampled import sampled

VLLM = store.folder() / "vllm"


def _run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = invoke(["consume", *argv])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize("where", sorted(files()), ids="-".join)
def test_the_reference_passes_every_vector(where: tuple[str, str]) -> None:
    """Nothing that was filled is left unasked, and nothing fails."""
    file = files()[where]
    came = consume(file, parse("reference"))
    assert (came.failures, came.unknown, dict(came.not_run)) == ([], [], {})
    assert came.passed.total() == came.asked.total() == file.info.count


MUTANTS = [
    "null-block-published",
    "skipped-boundary-published",
    "chunk-ends-off-the-grid",
    "tail-published-early",
    "withdrawn-keys-stay",
    "same-step-state-hit",
    "state-donated-without-copy",
    "replay-boundary-masked",
    "denser-than-interval",
    "hit-is-maximum-over-groups",
    "lookup-one-unit-short",
    "window-looked-up-short",
    "last-token-hit",
    "key-kept-after-eviction",
    "reset-keeps-keys",
    "shared-prefix-boundary-forgotten",
    "window-freed-early",
    "touch-after-allocate",
    "shared-block-freed-twice",
    "block-leaked",
    "stale-table-rows",
    "hash-without-parent",
    "salt-left-out",
    "image-left-out",
    "keys-survive-new-weights",
    "resumed-request-refused",
    "second-preemption-crashes",
    "state-after-last-draft",
    "boundary-state-left-behind",
    "drafts-published",
    "freed-while-in-flight",
    "stored-before-the-step",
    "load-forgotten",
    "tier-survives-new-weights",
    "tier-never-asked",
]


@pytest.mark.parametrize("mutant", sampled(MUTANTS, 7))
def test_a_seeded_fault_fails_a_lifecycle(mutant: str) -> None:
    """Each is killed by some trace, at the level where there is something to plant it into."""
    came = consume(files()["vllm", "lifecycle"], parse(f"reference:mutant={mutant}"))
    assert came.failures


OTHERS = {
    "openvino_genai": (
        "openvino-restored-without-a-state",
        "openvino-shared-block-written",
        "openvino-key-kept-after-hand-out",
        "openvino-salt-and-adapter-left-out",
        "openvino-keys-survive-new-weights",
        "openvino-tail-keyed-beyond",
    ),
    "furiosa": (
        "furiosa-window-matched-short",
        "furiosa-window-cleaned-early",
        "furiosa-active-entries-evicted",
        "furiosa-matched-in-one-pool",
        "furiosa-shared-block-written",
        "furiosa-one-tree-for-all",
        "furiosa-reset-by-name",
    ),
    "lmcache": (
        "lmcache-prefix-counted-in-one-group",
        "lmcache-null-blocks-stored",
        "lmcache-failed-store-found",
        "lmcache-last-token-not-reserved",
        "lmcache-salt-left-out-of-objects",
    ),
    "tensorrt_edge": (
        "edge-rows-copied-one-by-one",
        "edge-states-left-behind",
        "edge-last-token-of-a-capture-again",
        "edge-capture-rewritten",
        "edge-capture-without-weights",
        "edge-captures-survive-new-weights",
    ),
}


@pytest.mark.parametrize(
    ("policy", "mutant"),
    [(policy, one) for policy, own in OTHERS.items() for one in sampled(own, 5)],
)
def test_a_seeded_fault_of_another_policy_fails_a_lifecycle(policy: str, mutant: str) -> None:
    came = consume(files()[policy, "lifecycle"], parse(f"reference:mutant={mutant}"))
    assert came.failures


@pytest.mark.parametrize(
    ("mutant", "kind"),
    [
        ("hit-is-maximum-over-groups", "lookup"),
        ("window-looked-up-short", "lookup"),
        ("last-token-hit", "lookup"),
        ("shared-prefix-boundary-forgotten", "lookup"),
        ("replay-boundary-masked", "retention"),
        ("denser-than-interval", "retention"),
        ("chunk-ends-off-the-grid", "split"),
    ],
)
def test_a_seeded_fault_fails_the_rule_that_it_breaks(mutant: str, kind: str) -> None:
    came = consume(files()["vllm", kind], parse(f"reference:mutant={mutant}"))
    assert came.failures and not any(failure.got.startswith("raised") for failure in came.failures)


def test_a_failure_is_told_with_id_flag_and_both_answers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, _ = _run(
        capsys, str(VLLM / "lookup.json"), "--engine", "reference:mutant=last-token-hit"
    )
    assert code == 1
    assert "FAILED lookup/full/48-of-48" in out and "hunts    block-boundary: a length at" in out
    assert 'expected {"resume":32,' in out and 'got      {"resume":48,' in out


def _wrong(tmp_path: Path, change: Any) -> Path:
    raw = json.loads((VLLM / "sizing.json").read_bytes())
    change({vector["id"]: vector for vector in raw["vectors"]})
    raw["_info"]["hash"] = store.content_hash(raw["flags"], raw["vectors"])
    path = tmp_path / "sizing.json"
    path.write_text(json.dumps(raw), encoding="utf-8")
    return path


def test_a_fault_is_asked_of_the_policies_that_it_fits(capsys: pytest.CaptureFixture[str]) -> None:
    """A folder of every policy's vectors can be consumed with one policy's fault; the others are
    told as not run.
    """
    both = (str(VLLM / "lookup.json"), str(VLLM.parent / "furiosa" / "lifecycle.json"))
    code, out, err = _run(capsys, *both, "--engine", "reference:mutant=last-token-hit")
    assert (code, err) == (1, "") and ": mutant 'last-token-hit' fits reference, not furiosa" in out


def test_a_wrong_expected_value_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that was filled wrongly is no less a failure than a wrong engine."""
    path = _wrong(
        tmp_path,
        lambda vectors: vectors["sizing/one-group"]["expected"]["values"].update(alignment=17),
    )
    code, out, _ = _run(capsys, str(path))
    assert code == 1 and "FAILED sizing/one-group" in out and "valid 27 of 28" in out


def test_an_invalid_input_must_be_refused_and_the_field_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def change(vectors: Any) -> None:
        vectors["sizing/hash-of-nothing"]["input"]["config"] = {
            "hash_block_size": 4
        }  # now it is right, and accepted
        vectors["sizing/window-of-nothing"]["refusal"] = {"names": ["sink"]}

    code, out, _ = _run(capsys, str(_wrong(tmp_path, change)))
    assert code == 1 and "invalid 14 of 16" in out
    assert (
        "expected a refusal that says hash_block_size" in out
        and "expected a refusal that says sink" in out
    )


def test_what_an_engine_cannot_be_asked_is_not_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a reason for each, and exit code 5 if that leaves nothing."""
    reference = registry.kinds()["reference"]
    mute = EngineKind("mute", "answers nothing", ("scheduler",), reference.open, policies=("vllm",))
    only(monkeypatch, mute)
    code, out, err = _run(capsys, str(VLLM / "split.json"), "--engine", "mute")
    assert (
        code == 5
        and "not run: 61: the engine says nothing of it" in out
        and "nothing was consumed" in err
    )
    code, out, _ = _run(capsys, str(VLLM), "--engine", "mute")
    assert code == 0 and "traces for manager level; engine mute runs at scheduler" in out
    only(monkeypatch, EngineKind("mute", "", ("manager",), reference.open, policies=("x",)))
    code, out, _ = _run(capsys, str(VLLM), "--engine", "mute")
    assert code == 5 and "engine mute follows x, not vllm" in out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("/nowhere/vectors",), "there is no such file or folder"),
        (
            (str(VLLM), "--engine", "refrence"),  # codespell:ignore refrence
            "did you mean 'reference'?",
        ),
        (
            (str(VLLM / "lookup.json"), "--engine", "reference:mutant=last-token"),
            "no mutant is called 'last-token'",
        ),
        ((str(VLLM / "lifecycle.json"), "--engine", "reference:release=9.9"), "known are 0.22"),
        ((), "Missing argument"),
    ],
)
def test_a_mistake_of_the_users_is_one_line(
    argv: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = _run(capsys, *argv)
    assert code == 4 and message in err and err.count("\n") == 1


def test_an_empty_folder_consumes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(capsys, str(tmp_path))[0] == 5


FREE = LifecycleExpected(
    [Facts(0, hits=[("a", 0, 0)]), Facts(2, unpublished=[(0, "a", 16)], counts=[(0, 1, 2, 3)])],
    free_from=2,
    free=["victims"],
)


def test_a_free_choice_is_excused_where_it_may_show() -> None:
    """Another victim is; it must be in the very operation in which the engine parts from what
    was expected.
    """
    comparison = Comparison(FREE)
    comparison.compare(0, Facts(0, hits=[("a", 0, 0)]))
    assert not comparison.parted
    comparison.compare(2, Facts(2, unpublished=[(0, "b", 16)], counts=[(0, 1, 2, 3)]))
    assert comparison.parted and comparison.excused


@pytest.mark.parametrize(
    "got",
    [
        pytest.param(Facts(0, hits=[("a", 0, 16)]), id="before the choice"),
        pytest.param(
            Facts(2, unpublished=[(0, "a", 16)], counts=[(0, 2, 1, 3)]), id="something else"
        ),
        pytest.param(Facts(1, unpublished=[(0, "a", 16)]), id="where nothing was expected"),
    ],
)
def test_a_difference_that_is_no_free_choice_is_not_excused(got: Facts) -> None:
    comparison = Comparison(FREE)
    comparison.compare(got.op, got)
    assert comparison.parted and not comparison.excused
