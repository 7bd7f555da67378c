"""Step 1 of LMCache's document: N is read from vLLM's log."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cachewitness._util.errors import UsageError
from cachewitness.cli import invoke
from cachewitness.systems.lmcache.reference.plan import Request, plan
from cachewitness.workloads import layouts

BEFORE = "INFO 11-20 10:00:00 [__init__.py:38] Available plugins\n"
LINE = (
    "INFO 11-20 10:00:09 [interface.py:670] Setting attention block size to {n} tokens to {why}.\n"
)
MAMBA = "ensure that attention page size is >= mamba page size"
XPU = (
    "\x1b[32mINFO\x1b[0m [xpu.py:518] [XPU]Setting attention block size to {n} tokens to ensure"
    " multiple of 64.\n"
)
QUANTIZED = (
    "INFO Setting attention block size to {n} tokens so the quantized primary KV page covers the"
    " padded-spec page.\n"
)


def line(n: object = 784, why: str = MAMBA) -> str:
    """Return the line as vLLM prints it."""
    return LINE.format(n=n, why=why)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "vllm.log"


LOGS = {
    "the line": (BEFORE + line(), 784),
    "of several workers": (line() + BEFORE + line(), 784),
    "wrapped as in the document": (
        "INFO ... interface.py:670] Setting attention block size to 784 tokens to\nensure that\n",
        784,
    ),
    "raised for quantized pages first": (QUANTIZED.format(n=128) + line(), 784),
    "raised for quantized pages alone": (QUANTIZED.format(n=1024), 1024),
    "raised on XPU": (line() + XPU.format(n=832), 832),
    "with bytes that are no text": (BEFORE + "\udcff\udcfe\n" + line(), 784),
}


@pytest.mark.parametrize(("text", "tokens"), LOGS.values(), ids=LOGS.keys())
def test_n_is_what_the_engine_said_last(
    text: str, tokens: int, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The whole derivation needs the log alone: both flags follow from N."""
    log.write_text(text, encoding="utf-8", errors="surrogateescape")
    assert invoke(["plan", "lmcache", "--from-log", str(log), "--release", "0.5.3", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    names = ("unified_block_tokens", "chunk_tokens", "max_num_batched_tokens")
    assert [answer["results"][name] for name in names] == [tokens] * 3
    server, engine = answer["commands"]
    assert f"--chunk-size {tokens} " in server and f"--max-num-batched-tokens {tokens} " in engine
    assert answer["how"]["unified_block_tokens"].startswith(f"N: {log}: line ")


BAD = {
    "empty": ("", ": no line says 'Setting attention block size to N tokens'"),
    "of a model without states": (BEFORE, ": no line says"),
    "no number": (BEFORE + line("many"), ": line 2: N: 'many' is no number of tokens"),
    "nothing": (line(0), ": line 1: N: '0' is no number of tokens"),
    "negative": (line(-784), ": line 1: N: '-784' is no number of tokens"),
    "too large": (line(10**30), ": line 1: N: "),
    "a fraction": (line("784.5"), ": line 1: N: '784.5'"),
    "of two engines": (line() + BEFORE + line(544), ": line 3: N: 544 tokens, but line 1 says 784"),
}


@pytest.mark.parametrize(("text", "message"), BAD.values(), ids=BAD.keys())
def test_a_log_without_a_single_n_is_refused_with_file_line_and_field(
    text: str, message: str, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log.write_text(text)
    code = invoke(["plan", "lmcache", "--from-log", str(log)])
    err = capsys.readouterr().err
    assert code == 4 and err.startswith(f"cachewitness: {log}{message}") and err.count("\n") == 1


@pytest.mark.parametrize("name", ["gone.log", "."])
def test_a_log_that_cannot_be_read_is_named(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = invoke(["plan", "lmcache", "--from-log", str(tmp_path / name)])
    err = capsys.readouterr().err
    assert code == 4 and "cannot be read" in err and err.count("\n") == 1


def test_a_layout_beside_the_log_must_agree(log: Path) -> None:
    """It adds the model's bytes; where the kernels of the log were others, they are to be named."""
    log.write_text(line(576))
    with pytest.raises(
        UsageError,
        match=(
            r"line 1: N: 576 tokens, but --layout qwen3\.5-0\.8b has 544"
            r" .*--checkpoint-alignment 64"
        ),
    ):
        plan(Request("qwen3.5-0.8b", from_log=log))
    for agreeing in (
        Request("qwen3.5-0.8b", log, checkpoint_alignment=64),
        Request("qwen3.5-0.8b-hopper", log),
    ):
        assert plan(agreeing).value("unified_block_tokens") == 576
    with pytest.raises(
        UsageError, match=r"line 1: N: --layout gemma-3-27b has no recurrent layers"
    ):
        plan(Request("gemma-3-27b", log))


def test_what_belongs_to_a_layout_is_refused_beside_a_log_alone(log: Path) -> None:
    log.write_text(line())
    with pytest.raises(
        UsageError, match="--kernel-block, --checkpoint-alignment: N is read from the log"
    ):
        plan(Request(from_log=log, checkpoint_alignment=64))
    with pytest.raises(UsageError, match="--layout: name one"):
        plan(Request())


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in layouts.models()
        if "recurrent" in {g.kind for g in layouts.load(name).groups}
    ],
)
def test_the_n_of_a_log_and_of_the_layout_that_it_is_of_are_one(name: str, log: Path) -> None:
    """Every hybrid layout: what vLLM prints for it is what its groups have."""
    (block,) = {group.block_size for group in layouts.load(name).groups}
    log.write_text(line(block))
    assert plan(Request(name, log)).value("unified_block_tokens") == block
