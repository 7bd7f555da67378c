"""`cachewitness plan`: names, both forms of output, exit codes, and what is not imported."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cachewitness._util import data
from cachewitness.cli import EXIT_USAGE, invoke
from cachewitness.plan.result import Plan
from cachewitness.plan.show import format_value
from cachewitness.plan.systems import system_of, systems
from cachewitness.workloads import layouts

EXAMPLES = {
    "openvino_genai": ["--kv-blocks", "1024", "--multiplier", "8"],
    "lmcache": ["--layout", "qwen3.5-0.8b"],
    "furiosa": ["--layout", "gemma-3-27b", "--expected-average-seq-length", "8192"],
    "vllm": [
        "--layout",
        "kimi-linear-48b-a3b",
        "--retention-interval",
        "2048",
        "--block-size",
        "128",
        "--context",
        "65536",
    ],
    "llama_cpp": ["--layout", "qwen3.5-0.8b", "--ctx-size", "8192", "--explain"],
    "sglang": ["--layout", "qwen3.5-0.8b", "--memory", "20GiB"],
    "tensorrt_edge": [
        "--layout",
        "qwen3.5-0.8b",
        "--max-batch-size",
        "4",
        "--max-sequence-length",
        "4096",
    ],
}


@pytest.mark.parametrize("system", systems())
def test_a_plan_is_a_table_or_json_with_the_same_values(
    system: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every value of the JSON is in the table, in the form that people read."""
    assert invoke(["plan", system, *EXAMPLES[system]]) == 0
    table = capsys.readouterr().out
    assert invoke(["plan", system, *EXAMPLES[system], "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["system"] == system and answer["results"]
    for name, value in answer["results"].items():
        assert name.replace("_", " ") in table and format_value(name, value).split(" (")[0] in table
    for command in answer["commands"]:
        assert f"\n{command}\n" in table, "a command is one line, ready to copy"


@pytest.mark.parametrize(
    ("spelling", "system"),
    [
        ("openvino", "openvino_genai"),
        ("openvino-genai", "openvino_genai"),
        ("OpenVINO_GenAI", "openvino_genai"),
        ("tensorrt-edge", "tensorrt_edge"),
        ("TensorRT-Edge-LLM", "tensorrt_edge"),
        ("furiosa-llm", "furiosa"),
        ("vLLM", "vllm"),
    ],
)
def test_a_system_has_many_spellings(
    spelling: str, system: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Hyphens, capitals and the products' own names."""
    assert system_of(spelling) == system
    assert invoke(["plan", spelling, *EXAMPLES[system], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["system"] == system


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["lmcach", "--layout", "qwen3.5-0.8b"], "did you mean 'lmcache'?"),
        (["vllm"], "'--layout'"),
        (["vllm", "--layout", "qwen3.5-0.8"], "did you mean 'qwen3.5-0.8b'?"),
        (["vllm", "--layout", "full-mamba"], "no table `model`"),
        (["vllm", "--layout", "gone.toml"], "gone.toml: cannot be read"),
        (["openvino", "--kv-blocks", "many"], "'--kv-blocks'"),
        (["openvino", "--kv-blocks", "-1"], "'--kv-blocks'"),
        (["openvino", "--kv-blocks", str(2**49), "--release", "2026.2"], "num_kv_blocks"),
        (["openvino", "--kv-blocks", "8", "--multiplier", str(2**58)], "cache_interval_multiplier"),
        (["openvino", "--kv-blocks", "9" * 5000], "'--kv-blocks'"),
        (["openvino", "--device", "npu"], "'--device'"),
        (["openvino", "--max-num-batched-tokens", "all"], "'--max-num-batched-tokens'"),
        (
            ["furiosa", "--layout", "gemma-3-27b", "--expected-average-seq-length", "long"],
            "EXPECTED_AVERAGE_SEQ_LENGTH",
        ),
        (
            [
                "tensorrt-edge",
                "--layout",
                "qwen3.5-0.8b",
                "--max-batch-size",
                "0",
                "--max-sequence-length",
                "1",
            ],
            "'--max-batch-size'",
        ),
        (["vllm", "--layout", "qwen3.5-0.8b", "--context", str(2**62)], "--prompt-tokens"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_4(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It names the option or the field, and leaves no traceback."""
    assert invoke(["plan", *arguments]) == EXIT_USAGE
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("cachewitness: ") and printed.err.count("\n") == 1
    assert named in printed.err and "Traceback" not in printed.err


def test_a_layout_of_ones_own_with_a_mistyped_field_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """File and field, in one line."""
    text = (
        (data.fixtures() / "layouts" / "qwen3.5-0.8b.toml")
        .read_text()
        .replace("kv_heads = 2", 'kv_heads = "two"')
    )
    path = tmp_path / "mine.toml"
    path.write_text(text)
    assert invoke(["plan", "lmcache", "--layout", str(path)]) == EXIT_USAGE
    assert capsys.readouterr().err.startswith(
        f"cachewitness: {path}: Expected `int`, got `str` - at `$.model.caches[1].kv_heads`"
    )


def test_the_manual_lists_the_models_and_what_of_them_is_unverified() -> None:
    """One row a model, in the words of its file."""
    text = (data.fixtures().parent / "docs" / "reference" / "plan.md").read_text(encoding="utf-8")
    for name in layouts.models():
        assert f"| {name} | {'; '.join(layouts.model(name).unverified) or 'nothing'} |\n" in text


def test_nothing_heavy_is_imported() -> None:
    """No extra, no test tool, no runner, no other policy's scheduler; for JSON not even rich."""
    code = (
        "import sys, json; from cachewitness.cli import invoke;"
        " [invoke(['plan', *words, '--json']) for words in json.loads(sys.argv[1])];"
        " print(*(name for"
        " name in ('torch', 'transformers', 'hypothesis', 'jinja2', 'rich', 'xllamacpp',"
        " 'cachewitness.sessions.run') if name in sys.modules), file=sys.stderr)"
    )
    asked = json.dumps([[system, *EXAMPLES[system]] for system in systems()])
    command = [sys.executable, "-c", code, asked]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr.strip() == ""
    assert done.stdout.count('"results"') == len(systems())


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("kv_blocks", 1024, "1,024"),
        ("kv_bytes", 1023, "1,023"),
        ("kv_bytes", 1536, "1,536 (1.50 KiB)"),
        ("pool_share", 0.8, "80.0 %"),
        ("dynamic", True, "yes"),
        ("most", None, "-"),
    ],
)
def test_values_are_told_in_their_units(
    name: str, value: int | float | bool | None, shown: str
) -> None:
    """The unit is the end of the name."""
    assert format_value(name, value) == shown


def test_a_value_that_is_not_there_is_an_error() -> None:
    """No default hides a misspelt name."""
    with pytest.raises(KeyError):
        Plan("vllm", "0.33").value("blocks")
