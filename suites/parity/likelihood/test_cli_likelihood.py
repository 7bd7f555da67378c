"""`score --likelihood` as a user types it, against a server over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest

pytestmark = pytest.mark.score
pytest.importorskip("scipy", reason="scipy is missing: pip install 'cachewitness[score]'")

from cachewitness._util import files
from cachewitness._util.errors import UsageError
from cachewitness.cli import invoke, schemas
from suites.support.likelihood_double import Double

FEW = ("--limit", "16", "--positions", "2", "--noise", "1", "--arms", "hit")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def score(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = invoke(["score", "--likelihood", *argv])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_a_fault_is_told_drawn_and_kept(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with Double("stale window", heeds="salts", form="vllm").serving() as url:
        code, out, _ = score(capsys, "--base-url", url, *FEW, "--out", "kept")
    assert code == 1 and "verdict: FAIL (exit code 1): hit: the cache changes" in out
    assert "moved in arm hit" in out and "log-probability by token, cached" in out
    (folder,) = (tmp_path / "kept").iterdir()
    report = (folder / "report.json").read_bytes()
    assert json.loads(report)["settings"]["cold_by"] == "salts"
    drawn = (folder / "report.html").read_bytes()
    assert invoke(["report", str(folder), "--out", "again.html"]) == 0
    assert (tmp_path / "again.html").read_bytes() == drawn


def test_a_sound_cache_passes_and_the_document_fits_its_schema(
    capsys: pytest.CaptureFixture[str],
) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    with Double().serving() as url:
        code, out, err = score(capsys, "--base-url", url, *FEW, "--margin", "5", "--json")
    whole = json.loads(out)
    assert code == whole["exit_code"] and code in (0, 2), (whole["judged"], err)
    jsonschema.validate(whole, json.loads(schemas.schema("likelihood")))
    assert whole["settings"]["cold_by"] == "cache_prompt"
    assert whole["judged"][0]["counted"] == 32


def test_another_server_is_compared(capsys: pytest.CaptureFixture[str]) -> None:
    with Double().serving() as url, Double(rounded=True).serving() as other:
        code, out, _ = score(capsys, "--base-url", url, "--against", other, *FEW[:-2])
    assert code == 1 and "the other server changes" in out
    assert "cache" not in out.split("verdict:")[1].split("kept in")[0]


def test_a_cache_that_restores_nothing_is_nothing_checked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Double(inert=True).serving() as url:
        code, _, err = score(capsys, "--base-url", url, *FEW)
    assert code == 5 and "nothing checked" in err and "is its prefix caching on?" in err


def test_a_server_that_wants_a_key_gets_the_one_that_a_variable_holds(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is named, never written: neither a refusal nor the report repeats it."""
    monkeypatch.setenv("RIGHT", "k-1")
    monkeypatch.setenv("WRONG", "k-2")
    with Double(exact=True).serving(key="k-1") as url:
        for more, why in (
            ((), "wants a key: name the variable"),
            (("--key", "WRONG"), "refuses the key that --key names"),
            (("--key", "k-1"), "is no variable of the environment that holds a key"),
        ):
            code, _, err = score(capsys, "--base-url", url, *more, *FEW)
            assert code == 4 and why in err and "k-2" not in err, err
        code, out, err = score(capsys, "--base-url", url, "--key", "RIGHT", *FEW, "--json")
    assert code in (0, 2) and json.loads(out)["judged"][0]["counted"] == 32, err
    assert "k-1" not in out + err


@pytest.mark.parametrize("name", ["echo", "prompt_logprobs"])
def test_ways_around_the_cache_are_refused(capsys: pytest.CaptureFixture[str], name: str) -> None:
    code, _, err = score(capsys, "--base-url", "http://127.0.0.1:9", "--ask", name)
    assert code == 4 and "reads no cached block, so even a damaged cache would pass" in err


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        ((), "--likelihood: asks a server"),
        (("--base-url", "http://h", "--engine", "toy"), "give one of them"),
        (
            ("--base-url", "http://h", "--floor", "1", "--jobs", "2"),
            "scores no answers; leave out --floor, --jobs",
        ),
        (("--base-url", "http://h", "--against", "http://i", "--arms", "hit"), "leave it out"),
        (("--base-url", "http://127.0.0.1:9"), "is a server running there?"),
    ],
)
def test_what_does_not_fit_is_refused(
    capsys: pytest.CaptureFixture[str], argv: tuple[str, ...], why: str
) -> None:
    code, _, err = score(capsys, *argv)
    assert code == 4 and why in err, err


def test_options_of_likelihoods_belong_to_them(capsys: pytest.CaptureFixture[str]) -> None:
    code = invoke(["score", "--positions", "4", "--noise", "1"])
    assert code == 4
    assert "--positions, --noise: only with --likelihood; add it" in capsys.readouterr().err


def test_tokens_of_another_model_and_words_for_ids_are_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Double()
    post = other.post
    monkeypatch.setattr(
        other, "post", lambda path, body: {"tokens": [1]} if "tok" in path else post(path, body)
    )
    with Double().serving() as url, other.serving() as beside:
        code, _, err = score(capsys, "--base-url", url, "--against", beside, *FEW[:-2])
        assert code == 4 and "another model" in err
    with Double(form="texts").serving() as url:
        code, _, err = score(capsys, "--base-url", url, *FEW)
        assert code == 4 and "names tokens by their text" in err


def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_asked(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "kept").write_text("no folder")
    double = Double()
    with double.serving() as url:
        code, _, err = score(capsys, "--base-url", url, *FEW, "--out", "kept")
    assert code == 4 and "kept" in err and len(double.bodies) < 8


def test_a_report_that_cannot_be_written_takes_the_verdict_from_nobody(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full when all is asked."""
    write = files.write

    def full(path: Path, content: Iterable[bytes]) -> None:
        if path.name == "report.json":
            raise UsageError(f"{path}: cannot be written (No space left on device)")
        write(path, content)

    monkeypatch.setattr(files, "write", full)
    with Double("stale window").serving() as url:
        code, out, err = score(capsys, "--base-url", url, *FEW)
    assert code == 1 and "verdict: FAIL" in out and "No space left" in err
    with Double().serving() as url:
        code, _, err = score(capsys, "--base-url", url, *FEW, "--margin", "5")
    assert code != 0 and "No space left" in err
