"""CacheGen, KIVI and CacheBlend are refused by name, however they are asked for; with all turned
off the same command runs.
"""

from __future__ import annotations

import pytest

from cachewitness.cli import invoke
from cachewitness.engines.environment import exported
from cachewitness.systems.lmcache.reference import FEATURE_VARIABLES
from cachewitness_reference.lmcache.features import refusal

RUN = ("run", "--policy", "lmcache", "--layout", "full", "--suite", "scheduler")
FUZZ = ("fuzz", "--policy", "lmcache", "--layout", "full", "--operations", "50")
PLAN = ("plan", "lmcache", "--layout", "qwen3.5-0.8b")

REFUSED = {
    "cachegen": (
        (*RUN, "--option", "remote_serde=cachegen"),
        "CacheGen is refused: its compression is lossy",
    ),
    "cachegen by name": ((*RUN, "--option", "cachegen=true"), "CacheGen is refused"),
    "cachegen in capitals": ((*RUN, "--option", "remote_serde=CacheGen"), "CacheGen is refused"),
    "kivi": ((*RUN, "--option", "remote_serde=kivi"), "kivi is refused: LMCache 0.5.6 compresses"),
    "cacheblend": (
        (*RUN, "--option", "enable_blending=true"),
        "CacheBlend is refused: it serves chunks that are no prefix",
    ),
    "cacheblend by name": ((*RUN, "--option", "cacheblend=1"), "CacheBlend is refused"),
    "the engine of cacheblend": (
        (*RUN, "--option", "engine_type=blend_legacy"),
        "CacheBlend is refused",
    ),
    "a campaign": ((*FUZZ, "--option", "engine_type=blend"), "CacheBlend is refused"),
    "a plan, blend": ((*PLAN, "--engine-type", "blend"), "CacheBlend is refused"),
    "a plan, cachegen": ((*PLAN, "--remote-serde", "cachegen"), "CacheGen is refused"),
    "a plan, kivi": ((*PLAN, "--remote-serde", "kivi"), "kivi is refused"),
}


@pytest.mark.parametrize(("argv", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_changes_the_content_of_pages_is_refused_in_one_line(
    argv: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The document, caveats: cached pages are byte-opaque. The line names what was asked for and
    says why.
    """
    code = invoke(argv)
    err = capsys.readouterr().err
    assert (
        code == 4 and err.startswith("cachewitness: ") and err.count("\n") == 1 and message in err
    )


@pytest.mark.parametrize("command", [RUN, FUZZ, PLAN], ids=lambda command: command[0])
@pytest.mark.parametrize(
    ("name", "value"), [("LMCACHE_REMOTE_SERDE", "cachegen"), ("LMCACHE_ENABLE_BLENDING", "True")]
)
def test_the_environment_is_no_way_round(
    command: tuple[str, ...],
    name: str,
    value: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(name, value)
    code = invoke(command)
    err = capsys.readouterr().err
    assert code == 4 and f"{name}={value}: Cache" in err and err.count("\n") == 1


OFF = {
    "options": (
        *RUN,
        "--option",
        "remote_serde=naive",
        "--option",
        "engine_type=default",
        "--option",
        "enable_blending=false",
    ),
    "a plan": (*PLAN, "--engine-type", "default", "--remote-serde", "naive"),
}


@pytest.mark.parametrize("argv", OFF.values(), ids=OFF.keys())
def test_what_is_turned_off_is_not_refused(
    argv: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And sets nothing: it is no option of the store."""
    for name, value in (("LMCACHE_REMOTE_SERDE", "naive"), ("LMCACHE_ENABLE_BLENDING", "False")):
        monkeypatch.setenv(name, value)
    assert exported(FEATURE_VARIABLES, ()) == []
    assert invoke(argv) == 0, capsys.readouterr().err


@pytest.mark.parametrize("option", ["chunk_size", "release", "separate_object_groups"])
def test_other_options_are_none_of_its_business(option: str) -> None:
    assert refusal(option, "blend cachegen true") == ""
