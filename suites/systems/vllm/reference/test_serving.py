"""`plan vllm` with the flags of `vllm serve`: against numbers that servers printed and that vLLM's
own specifications gave.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import plan_configs, plan_logs
from cachewitness._util import data, pages
from cachewitness._util.errors import UsageError
from cachewitness.cli import EXIT_USAGE, invoke
from cachewitness.plan.config import read
from cachewitness.plan.rank import KV_DTYPES, Types
from cachewitness.plan.serving import Serving, rank_of
from cachewitness.systems.vllm.reference.plan import Request, plan
from cachewitness.systems.vllm.reference.serve_command import read as read_command
from cachewitness.workloads import layouts
from cachewitness.workloads.model import model_of
from suites.support.model_configs import PUBLISHED, written

GIB = 2**30
QWEN_27B = {
    "model_type": "qwen3_5_text",
    "dtype": "bfloat16",
    "num_hidden_layers": 64,
    "full_attention_interval": 4,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 48,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "mamba_ssm_dtype": "float32",
    "max_position_embeddings": 262144,
    "mtp_num_hidden_layers": 1,
}
QWEN_35B = QWEN_27B | {
    "num_hidden_layers": 40,
    "num_key_value_heads": 2,
    "linear_num_value_heads": 32,
}
SERVE = "-tp 2 --kv-cache-dtype fp8 --max-model-len 131072"
NANO = {
    "model_type": "nemotron_h",
    "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "mamba_num_heads": 64,
    "mamba_head_dim": 64,
    "ssm_state_size": 128,
    "n_groups": 8,
    "conv_kernel": 4,
    "max_position_embeddings": 262144,
}
FALCON = {
    "model_type": "falcon_h1",
    "num_hidden_layers": 44,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "hidden_size": 3072,
    "mamba_d_ssm": 3072,
    "mamba_n_heads": 24,
    "mamba_d_head": 128,
    "mamba_n_groups": 1,
    "mamba_d_state": 256,
    "mamba_d_conv": 4,
    "max_position_embeddings": 262144,
}


def answered(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert invoke(["plan", "vllm", *arguments, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_log_of_two_gpus_comes_out_of_its_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A server with 4.99 GiB printed 302,921 tokens and 2.31x; vLLM's specifications give 90
    blocks for a request.
    """
    config = str(written(tmp_path, QWEN_27B))
    line = f"VLLM_USE_V1=1 vllm serve Qwen/Qwen3.8-27B-FP8 {SERVE} --max_num_seqs=2 --port 8000"
    for named in (
        ["--serve", line, "--config", config],
        ["--serve", f"vllm serve {config} {SERVE}"],
    ):
        found = answered(capsys, *named, "--memory", "4.99GiB")
        results = found["results"]
        assert results["unified_block_tokens"] == 1568
        assert (results["pool_blocks"], results["longest_request_blocks"]) == (208, 90)
        assert results["cache_size_tokens"] == 302_921
        assert f"{results['concurrency']:.2f}" == "2.31"
        assert found["units"]["cache_size_tokens"] == "tokens"


@pytest.mark.parametrize(
    ("config", "flags", "blocks", "each"),
    [
        (QWEN_35B, "--kv-cache-dtype fp8 --max-model-len 131072", 95, 66),
        (QWEN_27B, "--max-model-len 32768", 1487, 45),
        (QWEN_27B, "-tp 2 --max-model-len 122633", 161, 160),
    ],
)
def test_three_logs_come_out_with_caching_off(
    config: dict[str, Any],
    flags: str,
    blocks: int,
    each: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Blocks and blocks of a request, as vLLM's own specifications gave them."""
    path = written(tmp_path, config)
    override = f"--num-gpu-blocks-override {blocks} --kv-cache-memory-bytes 1G"
    line = f"vllm serve {path} {flags} --no-enable-prefix-caching {override}"
    results = answered(capsys, "--serve", line)["results"]
    assert (results["pool_blocks"], results["longest_request_blocks"]) == (blocks, each)
    assert results["concurrency"] == blocks / each
    assert results["requests_cached"] == 0


STATES = {
    "granite": (PUBLISHED["granite-4.0-h-small"], [1_074_688, 538_112, 269_824]),
    "nemotron": (NANO, [1_067_008, 533_504, 266_752]),
    "falcon": (FALCON, [798_720, 400_896, 201_984]),
}


@pytest.mark.parametrize("name", STATES)
def test_a_mamba_2_state_at_any_number_of_ranks(name: str, tmp_path: Path) -> None:
    """Bytes on 2, 4 and 8 ranks, as vLLM's own calculator gave them: groups are repeated until
    every rank's heads have theirs.
    """
    config, states = STATES[name]
    path = str(written(tmp_path, config))
    for ranks, state in zip((2, 4, 8), states, strict=True):
        answer = plan(Request(path, tensor_parallel_size=ranks))
        assert answer.value("state_bytes") == state


QUANTIZED: dict[str, tuple[dict[str, Any], str]] = {
    "modelopt": ({"quant_method": "modelopt", "kv_cache_quant_algo": "FP8"}, "fp8_e4m3"),
    "modelopt, nested": (
        {"producer": {"name": "modelopt"}, "quantization": {"kv_cache_quant_algo": "FP8"}},
        "fp8_e4m3",
    ),
    "modelopt, a scheme": (
        {
            "quant_method": "modelopt",
            "kv_cache_scheme": {"num_bits": 8, "type": "float", "dynamic": False},
        },
        "fp8_e4m3",
    ),
    "modelopt, four bits": (
        {"quant_method": "modelopt", "kv_cache_scheme": {"num_bits": 4, "type": "float"}},
        "nvfp4",
    ),
    "modelopt, unknown": ({"quant_method": "modelopt", "kv_cache_quant_algo": "INT8"}, ""),
    "compressed-tensors": (
        {"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 8, "type": "float"}},
        "fp8",
    ),
    "weights alone": ({"quant_method": "fp8", "activation_scheme": "dynamic"}, ""),
    "weights alone, compressed": (
        {"quant_method": "compressed-tensors", "kv_cache_scheme": None},
        "",
    ),
}


@pytest.mark.parametrize("case", QUANTIZED)
def test_what_a_checkpoint_says_of_its_keys_and_values_is_read(case: str, tmp_path: Path) -> None:
    """As vLLM's `resolve_kv_cache_dtype_string` resolves `auto`; a flag outranks it."""
    table, dtype = QUANTIZED[case]
    path = written(tmp_path, QWEN_27B | {"quantization_config": table})
    assert read.model(path).kv_cache_dtype == dtype
    own = plan(Request(str(path))).value("attention_token_bytes")
    head = {"": 4 * 256, "nvfp4": 2 * (128 + 16)}.get(dtype, 2 * 256)
    assert own == 4 * head
    asked = plan(Request(str(path), kv_cache_dtype="bfloat16"))
    assert asked.value("attention_token_bytes") == 4 * 4 * 256
    assert not any("not read" in note for note in asked.notes)


def test_a_modelopt_checkpoint_with_64_value_heads_has_blocks_of_4176(tmp_path: Path) -> None:
    """Two KV heads of 256 in 8 bits are 1,024 bytes a token, and a state is 4,268,032."""
    quantized = {"quant_method": "modelopt", "kv_cache_quant_algo": "FP8"}
    heads = {"num_key_value_heads": 2, "linear_num_value_heads": 64}
    path = written(tmp_path, QWEN_27B | heads | {"quantization_config": quantized})
    answer = plan(Request(str(path)))
    assert answer.value("state_bytes") == 64 * 128 * 128 * 4 + 3 * (2 * 16 + 64) * 128 * 2
    assert answer.value("unified_block_tokens") == 4176


@pytest.mark.parametrize(
    "table",
    [
        {"quant_method": "awq", "kv_cache_scheme": {"num_bits": 8}},
        {"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 4, "type": "int"}},
        {"quant_method": 7},
        "fp8",
    ],
)
def test_a_scheme_that_is_not_worked_out_is_refused(
    table: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No number is printed beside a note that something was not read."""
    path = written(tmp_path, QWEN_27B | {"quantization_config": table})
    assert invoke(["plan", "vllm", "--config", str(path)]) == EXIT_USAGE
    printed = capsys.readouterr()
    assert printed.out == "" and "quantization_config" in printed.err


@pytest.mark.parametrize(
    ("system", "more"),
    [
        ("openvino", ["--kv-blocks", "64"]),
        ("furiosa", []),
        ("tensorrt-edge", ["--max-batch-size", "1", "--max-sequence-length", "64"]),
        ("sglang", ["--memory", "20GiB"]),
    ],
)
def test_a_system_that_does_not_follow_it_refuses_it(
    system: str, more: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quantized = {"quant_method": "modelopt", "kv_cache_quant_algo": "FP8"}
    path = str(written(tmp_path, QWEN_27B | {"quantization_config": quantized}))
    assert invoke(["plan", system, "--config", path, *more]) == EXIT_USAGE
    assert "keys and values in fp8_e4m3" in capsys.readouterr().err


def test_a_file_beside_the_configuration_says_it_too(tmp_path: Path) -> None:
    """Older checkpoints of modelopt have `hf_quant_config.json`."""
    path = written(tmp_path, QWEN_27B)
    beside = {"producer": {"name": "modelopt"}, "quantization": {"kv_cache_quant_algo": "FP8"}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(beside))
    assert read.model(path).kv_cache_dtype == "fp8_e4m3"


REFUSED = {
    "vllm serve m --kv-cache-dtyp fp8": "no flag of vllm serve in 0.33.0; did you mean --kv-cache",
    "vllm serve m --pipeline-parallel-size 2": "does not say in which order its layers come",
    "vllm serve m -dcp 2": "2 does not divide --tensor-parallel-size 1",
    "vllm serve m -tp 8 -dcp 4": "at most 2 with 4 KV heads on 8 ranks",
    "vllm serve m -tp 2 -pcp 4 -dcp 2": "2 is none of 1, 4 and 8",
    'vllm serve m -sc \'{"model": "d", "num_speculative_tokens": 2}\'': "give it as --draft-config",
    "vllm serve m --hf-overrides '{}'": "--hf-overrides: fields given on the command line",
    "vllm serve m --mamba-block-size 512": "--mamba-block-size: blocks of states of another length",
    "vllm serve m --mamba-cache-mode all": "--mamba-cache-mode: 'all' is not worked out; align is",
    "vllm serve m --prefix-match-unit 16": "--prefix-match-unit: hits that end inside a block",
    "vllm serve m --max-model-len 1.5K": "--max-model-len: '1.5K' is no value",
    "vllm serve m --block-size": "--block-size wants a value",
    "vllm serve m n": "two models: 'm' and 'n'",
    "vllm chat": "no `vllm serve` in it",
    "vllm serve 'm": "No closing quotation",
    "vllm serve m -sc '[]'": "--speculative-config: no table",
    "vllm serve m --speculative-config.method mtp": "num_speculative_tokens: missing",
    "vllm serve m --kv-transfer-config '{}'": "--kv-transfer-config: a connector may switch",
}


@pytest.mark.parametrize("line", REFUSED)
def test_a_command_line_that_is_not_understood_is_one_line(
    line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["plan", "vllm", "--layout", "qwen3.6-27b", "--serve", line]) == EXIT_USAGE
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1 and REFUSED[line] in printed.err


@pytest.mark.parametrize(
    ("line", "fields"),
    [
        ("vllm serve m --max-model-len 32K", {"max_model_len": 32768}),
        ("vllm serve m --max_model_len=32k", {"max_model_len": 32000}),
        ("vllm serve m --max-model-len auto", {"max_model_len": -1}),
        ("vllm serve m --kv-cache-memory-bytes 40G", {"memory": 40 * GIB}),
        ("vllm serve m --disable-prefix-caching", {"enable_prefix_caching": False}),
        ("vllm serve m --trust-remote-code --host ::1 -O3", {}),
        ("vllm serve m --served-model-name a b --dtype half", {"dtype": "float16"}),
        (
            "python -m vllm.entrypoints.openai.api_server --model m -tp=4",
            {"tensor_parallel_size": 4},
        ),
        (
            "vllm serve m --speculative-config.method qwen3_next_mtp"
            " --speculative-config.num_speculative_tokens 2",
            {"speculative_method": "mtp", "num_speculative_tokens": 2},
        ),
        (
            'vllm serve m \\\n  -sc \'{"method": "ngram", "num_speculative_tokens": 3}\'',
            {"speculative_method": "ngram", "num_speculative_tokens": 3},
        ),
    ],
)
def test_flags_are_read_by_every_spelling_that_vllm_takes(
    line: str, fields: dict[str, Any]
) -> None:
    found = read_command(line)
    assert (found.model, found.fields) == ("m", fields)


def test_memory_is_what_a_device_has_left(capsys: pytest.CaptureFixture[str]) -> None:
    """The part of it that vLLM may use, less what weights and graphs take; without that it is not
    told.
    """
    base = [
        "--layout",
        "qwen3.6-27b",
        "--device-memory",
        "80GiB",
        "--gpu-memory-utilization",
        "0.9",
    ]
    found = answered(capsys, *base, "--used-memory", "60GiB")
    assert found["results"]["memory_bytes"] == 12 * GIB
    assert invoke(["plan", "vllm", *base]) == EXIT_USAGE
    assert "activations and graphs come off first" in capsys.readouterr().err


def test_the_answer_comes_first_and_the_derivation_when_it_is_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    base = ["plan", "vllm", "--layout", "qwen3-next-80b-a3b", "--memory", "40GiB"]
    base += ["--request-tokens", "8192"]
    assert invoke(base) == 0
    short = capsys.readouterr().out
    assert short.splitlines()[0] == (
        "8,192 tokens: 145 requests run at once, 178 finished ones stay hittable (53 if dense);"
        " longest prompt 262,144"
    )
    assert "page bytes" not in short and "cache size tokens" in short
    assert invoke([*base, "--explain"]) == 0
    assert "page bytes" in capsys.readouterr().out


def test_a_server_that_does_not_start_says_how_long_a_request_may_be(tmp_path: Path) -> None:
    """163 blocks of a request and the null block are more than 161; without it 158 blocks of 784
    tokens stay.
    """
    path = str(written(tmp_path, QWEN_27B))
    asked = Request(
        path,
        tensor_parallel_size=2,
        enable_prefix_caching=False,
        max_model_len=132_000,
        memory=161 * 25_690_112,
        release="0.28",
    )
    answer = plan(asked)
    assert answer.value("starts") is False
    assert answer.value("longest_prompt_tokens") == 158 * 784 == 123_872
    assert answer.answer == "vLLM does not start with 132,000 tokens a request; 123,872 tokens fit"


def test_a_release_whose_check_counts_the_null_block_starts_and_one_that_leaves_it_out_does_not(
    tmp_path: Path,
) -> None:
    path = str(written(tmp_path, QWEN_27B))

    def answer(release: str) -> Any:
        memory = 160 * 25_690_112
        return plan(
            Request(
                path,
                tensor_parallel_size=2,
                enable_prefix_caching=False,
                max_model_len=122_633,
                memory=memory,
                release=release,
            )
        )

    older = answer("0.28")
    assert older.value("starts") is True
    assert any("never runs: nobody gets the null block" in note for note in older.notes)
    assert answer("0.29").value("starts") is False


def test_requests_that_may_run_are_bounded_by_the_states(tmp_path: Path) -> None:
    """The bound is that of graphs for decoding; without them there is none."""
    path = str(written(tmp_path, QWEN_27B))
    asked = Request(path, max_model_len=8192, memory=2 * GIB, max_num_seqs=512)
    bound = "--max-num-seqs (512) exceeds available Mamba cache blocks (41); lower it to at most 41"
    assert any(bound in note for note in plan(asked).notes)
    eager = Request(path, max_model_len=8192, memory=2 * GIB, max_num_seqs=512, enforce_eager=True)
    assert not any("exceeds" in note for note in plan(eager).notes)


@pytest.mark.parametrize("name", layouts.models())
def test_built_in_layouts_are_planned_at_their_own_length(name: str) -> None:
    """With enough memory for a request of all that the model takes; one is refused, with the true
    reason.
    """
    longest = layouts.model(name).max_length
    asked = Request(name, prompt_tokens=longest, memory=1 << 45)
    if name == "deepseek-v4-flash":
        with pytest.raises(UsageError, match="packs by a rule of their own"):
            plan(asked)
    else:
        assert plan(asked).value("longest_prompt_tokens") == longest


def log(folder: Path, *lines: str) -> str:
    path = folder / "server.log"
    path.write_text("\n".join(lines))
    return str(path)


def test_a_log_names_the_flag_that_explains_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Keys and values in 8 bits, which the arguments of the log do not say."""
    config = str(written(tmp_path, QWEN_27B))
    path = log(
        tmp_path,
        "INFO non-default args: {'model': 'a/b', 'max_model_len': 131072, 'max_num_seqs': 2}",
        "INFO Initializing a V1 LLM engine (v0.28.0) with config: model='a/b',"
        " dtype=torch.bfloat16, tensor_parallel_size=2, pipeline_parallel_size=1",
        "(Worker_TP0) INFO Available KV cache memory: 4.99 GiB",
        "(Worker_TP1) INFO Available KV cache memory: 5.02 GiB",
        "INFO GPU KV cache size: 302,921 tokens",
        "INFO Maximum concurrency for 131,072 tokens per request: 2.31x",
    )
    found = answered(capsys, "--from-log", path, "--config", config)
    assert found["release"] == "0.28"
    assert found["answer"] == "0 of 2 numbers of the log come out"
    assert found["tables"]["log"][0]["off"] == "-1.11"
    assert "with --kv-cache-dtype fp8 2 of 2 come out" in found["notes"]
    right = answered(capsys, "--from-log", path, "--config", config, "--kv-cache-dtype", "fp8")
    assert right["answer"] == "all 2 numbers of the log come out to the last digit"


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (["nothing"], "no line of a start"),
        (["Maximum concurrency for 8 tokens per request: 1.00x"], "give its configuration"),
        (["non-default args: {'a': f()}"], "the line of non-default args cannot be read"),
        (["with config: model='m', pipeline_parallel_size=2"], "the log is of several stages"),
    ],
)
def test_a_log_that_says_nothing_is_refused(
    lines: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["plan", "vllm", "--from-log", log(tmp_path, *lines)]) == EXIT_USAGE
    assert says in capsys.readouterr().err


def test_stages_of_a_pipeline_share_the_layers(tmp_path: Path) -> None:
    """64 layers in three stages: 21, 22 and 21. The last one has six of the attention layers, the
    others five, and no group of states has more: its blocks, of six pages, are the largest.
    """
    path = str(written(tmp_path, QWEN_27B))
    whole = plan(Request(path, memory=4 * GIB))
    staged = plan(Request(path, memory=4 * GIB, pipeline_parallel_size=3))
    page = int(str(whole.value("page_bytes")))
    assert whole.value("pool_block_bytes") == 16 * page
    assert staged.value("pool_block_bytes") == 6 * page
    assert staged.value("pool_blocks") == 4 * GIB // (6 * page)
    alone = plan(Request("llama-3.1-8b", memory=4 * GIB, pipeline_parallel_size=3))
    assert alone.value("pool_block_bytes") == 11 * 16 * 4096


def test_an_order_that_leaves_a_layer_out_is_refused(tmp_path: Path) -> None:
    table = read.table_of(written(tmp_path, QWEN_27B))
    assert model_of(table, tmp_path).order == [[0], [0], [0], [1]] * 16
    for wrong in ([[0]] * 64, [[0], [0], [0], [2]] * 16, [[1]]):
        with pytest.raises(UsageError, match="each as often as it has layers"):
            model_of(table | {"order": wrong}, tmp_path)


def test_a_drafter_with_a_checkpoint_of_its_own_lies_in_the_same_pool(tmp_path: Path) -> None:
    """One layer of EAGLE beside 32 of Llama 3.1 8B, in the target's type; another of its own."""
    drafter = tmp_path / "drafter.json"
    config = {"model_type": "llama", "num_hidden_layers": 1, "num_attention_heads": 16}
    config |= {"num_key_value_heads": 2, "head_dim": 128, "max_position_embeddings": 4096}
    drafter.write_text(json.dumps(config | {"dtype": "float16"}))
    fields: dict[str, Any] = {"speculative_method": "eagle3", "num_speculative_tokens": 3}
    fields |= {"draft_config": str(drafter), "memory": GIB}
    for types, block in (
        ({}, 16 * (32 * 4096 + 1024)),
        ({"kv_cache_dtype": "fp8"}, 16 * (32 * 2048 + 512)),
        ({"draft_kv_cache_dtype": "fp8"}, 16 * (32 * 4096 + 512)),
    ):
        answer = plan(Request("llama-3.1-8b", **fields, **types))
        assert answer.value("pool_block_bytes") == block
    with pytest.raises(UsageError, match="on other ranks than the model's 2"):
        plan(
            Request("llama-3.1-8b", tensor_parallel_size=2, draft_tensor_parallel_size=1, **fields)
        )


def test_no_flags_give_qwen3_next_a_block_of_4176_tokens() -> None:
    """Which docs/results/plan-logs.md says."""
    model = layouts.model("qwen3-next-80b-a3b")
    blocks = set()
    for kv, state, ranks, drafted in itertools.product(
        ["auto", *KV_DTYPES], ["auto", "float32", "bfloat16"], [1, 2, 4, 8], range(9)
    ):
        types = Types(kv, "auto", state, "auto", drafted)
        serving = Serving(types, ranks, method="ngram" if drafted else "")
        blocks.add(rank_of(model, serving, "--layout").block)
    assert 2096 in blocks and 4176 not in blocks


def test_public_logs_come_out_or_the_page_says_why_not() -> None:
    """No log that comes out has a reason, and every other one has."""
    rows = plan_logs.rows()
    assert len(rows) >= 20
    assert [row.source for row in rows if row.comes_out == bool(row.why)] == []
    page = pages.folder("results") / f"{plan_logs.PAGE}.md"
    assert page.read_text(encoding="utf-8") == plan_logs.rendered()
    assert (data.fixtures() / "server_logs" / "vllm.toml").exists()


def test_published_configurations_are_planned_or_refused_with_a_reason() -> None:
    rows = plan_configs.rows()
    assert len(rows) >= 25 and all(row.refused or row.answer for row in rows)
    assert [row.kind for row in rows if "is not known here" in row.refused] == []
    page = pages.folder("results") / f"{plan_configs.PAGE}.md"
    assert page.read_text(encoding="utf-8") == plan_configs.rendered()
