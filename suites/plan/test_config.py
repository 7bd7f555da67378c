"""`plan --config`: what a published configuration says of caches, and what is refused, by file
and field.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cachewitness._util.errors import UsageError
from cachewitness.cli import EXIT_USAGE, invoke
from cachewitness.plan.config import read
from cachewitness.plan.config.families import FAMILIES, PLAIN
from cachewitness.plan.sources import layout
from cachewitness.systems.vllm.reference.plan import Request, plan
from cachewitness.workloads import layouts
from cachewitness.workloads.model import Full, Latent, Model, Recurrent, Sliding
from suites.support.model_configs import PUBLISHED, written
from suites.support.model_families import BY_FIELDS

WITH_LAYOUT = [name for name in PUBLISHED if name in layouts.names()]


def model_of(tmp_path: Path, name: str, **changed: Any) -> Model:
    return read.model(written(tmp_path, PUBLISHED[name] | changed))


@pytest.mark.parametrize("name", WITH_LAYOUT)
def test_a_configuration_is_the_model_and_the_groups_of_the_layout_worked_out_by_hand(
    name: str, tmp_path: Path
) -> None:
    """Six layouts say in comments how their numbers follow from a configuration; the reader has
    to come to the same.
    """
    path = written(tmp_path, PUBLISHED[name])
    found = read.model(path)
    expected = layouts.model(name)
    assert found.caches == expected.caches
    assert found.max_length == expected.max_length
    assert layout(str(path)).groups == layouts.load(name).groups


# Family, channels and kernel of the convolution, shape and type of the state, layers of state and
# of attention, KV heads of a size, and vLLM's block: computed by hand from the fields.
BY_HAND = {
    "jamba-1.5-mini": ("mamba1", 2 * 4096, 4, [2 * 4096, 16], "bfloat16", 28, 4, 8, 4096 // 32, 80),
    "nemotron-h-8b": (
        "mamba2",
        128 * 64 + 2 * 8 * 128,
        4,
        [128, 64, 128],
        "float32",
        24,
        4,
        8,
        128,
        1040,
    ),
    "nemotron-3-nano-4b": (
        "mamba2",
        96 * 80 + 2 * 8 * 128,
        4,
        [96, 80, 128],
        "float32",
        21,
        4,
        8,
        128,
        976,
    ),
    "granite-4.0-h-small": (
        "mamba2",
        2 * 4096 + 2 * 128,
        4,
        [128, 64, 128],
        "bfloat16",
        36,
        4,
        8,
        128,
        528,
    ),
    "lfm2-8b-a1b": ("short_conv", 2048, 3, [], "bfloat16", 18, 6, 8, 64, 16),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_states_and_heads_of_the_other_families(name: str, tmp_path: Path) -> None:
    family, channels, kernel, shape, dtype, states, attention, heads, size, block = BY_HAND[name]
    path = written(tmp_path, PUBLISHED[name])
    caches = {type(cache): cache for cache in read.model(path).caches}
    state = caches[Recurrent]
    full = caches[Full]
    assert isinstance(state, Recurrent) and isinstance(full, Full) and len(caches) == 2
    assert (state.family, state.conv_channels, state.conv_kernel) == (family, channels, kernel)
    assert (state.state_shape, state.state_dtype, state.layers) == (shape, dtype, states)
    assert (full.layers, full.kv_heads, full.head_dim) == (attention, heads, size)
    assert plan(Request(str(path))).value("unified_block_tokens") == block
    assert (state.state_bytes > 0) is bool(shape)


def test_a_window_is_the_files_or_the_class_s_unless_it_says_none(tmp_path: Path) -> None:
    """Mistral's class has a window, which version 0.1 has too and 0.2 takes away; 0 is none, as
    vLLM reads it.
    """

    def caches(name: str, without: str = "", **changed: Any) -> list[Any]:
        raw = {
            field: value for field, value in (PUBLISHED[name] | changed).items() if field != without
        }
        return read.model(written(tmp_path, raw)).caches

    (windowed,) = caches("mistral-7b-v0.1")
    assert isinstance(windowed, Sliding) and (
        windowed.layers,
        windowed.window,
        windowed.head_dim,
    ) == (32, 4096, 128)
    assert caches("mistral-7b-v0.2", without="sliding_window") == [windowed]
    for whole in (
        caches("mistral-7b-v0.2"),
        caches("mistral-7b-v0.1", sliding_window=0),
        caches("mixtral-8x7b-v0.1"),
    ):
        assert [type(cache) for cache in whole] == [Full]
    (qwen,) = caches("qwen2.5-7b")
    assert isinstance(qwen, Full) and (qwen.layers, qwen.kv_heads, qwen.head_dim) == (28, 4, 128)
    words = ["sliding_attention", *["full_attention"] * 31]
    assert {
        type(cache): cache.layers
        for cache in caches("llama-3.1-8b", layer_types=words, sliding_window=8)
    } == {Sliding: 1, Full: 31}


@pytest.mark.parametrize(("name", "layers"), [("deepseek-v3", 61), ("deepseek-v2-lite", 27)])
def test_latent_attention_alone(name: str, layers: int, tmp_path: Path) -> None:
    """A token weighs 576 numbers of 2 bytes in a layer, on every rank, and a block has 64 of
    them.
    """
    path = written(tmp_path, PUBLISHED[name])
    (cache,) = read.model(path).caches
    assert isinstance(cache, Latent) and (cache.layers, cache.entry_bytes) == (
        layers,
        (512 + 64) * 2,
    )
    for ranks in (1, 8):
        answer = plan(Request(str(path), memory=1 << 34, tensor_parallel_size=ranks))
        assert answer.value("pool_block_bytes") == 64 * 576 * 2 * layers
    assert any("others take 16 to 128" in note for note in read.model(path).unverified)


def test_every_family_has_a_published_configuration_here() -> None:
    kinds = {raw.get("text_config", raw)["model_type"] for raw in PUBLISHED.values()}
    of_the_same_fields = {"gemma3", "lfm2", "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text"}
    others = {case.table["model_type"] for case in BY_FIELDS.values()}
    alike = {"gemma4", "llama4", "falcon_mamba", "deepseek_v32", "hunyuan_v1_moe"} | {*PLAIN}
    assert kinds | of_the_same_fields | others | alike == set(FAMILIES)


def test_a_value_that_the_class_supplies_is_told(tmp_path: Path) -> None:
    """Nothing is taken in silence: the field, the number, and whose default it is."""
    granite = model_of(tmp_path, "granite-4.0-h-small")
    notes = [
        each
        for each in granite.unverified
        if "is the default of its class (transformers 5.23.0)" in each
    ]
    assert [each.split(":")[0] for each in notes] == ["mamba_n_heads", "mamba_n_groups"]
    assert "state_dtype: the configuration names none" in granite.unverified[-1]
    assert invoke(["plan", "vllm", "--config", str(tmp_path / "config.json"), "--json"]) == 0


def test_weights_in_float32_are_told(tmp_path: Path) -> None:
    """What vLLM serves in another type is not followed in silence."""
    served = model_of(tmp_path, NEXT, torch_dtype="float32")
    assert {cache.dtype for cache in served.caches if isinstance(cache, Full)} == {"bfloat16"}
    assert "torch_dtype is float32, which vLLM's `auto` serves in bfloat16" in served.unverified[0]
    assert (
        "dtype: not in the configuration"
        in model_of(tmp_path, NEXT, torch_dtype=None).unverified[0]
    )


def test_the_remarks_are_told_by_every_system(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(written(tmp_path, PUBLISHED["granite-4.0-h-small"]))
    for system, more in (
        ("vllm", []),
        ("lmcache", []),
        ("openvino", ["--kv-blocks", "64"]),
        ("tensorrt-edge", ["--max-batch-size", "1", "--max-sequence-length", "64"]),
    ):
        assert invoke(["plan", system, "--config", path, "--json", *more]) == 0
        answer = json.loads(capsys.readouterr().out)
        assert any(
            note.startswith("mamba_n_heads: not in the configuration; 128")
            for note in answer["notes"]
        ), system
    gemma = str(written(tmp_path, PUBLISHED["gemma-3-27b"]))
    assert invoke(["plan", "furiosa", "--config", gemma, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["notes"][-1].startswith(
        "max_position_embeddings: not in"
    )


@pytest.mark.parametrize("system", ["vllm", "lmcache"])
@pytest.mark.parametrize("name", WITH_LAYOUT)
def test_a_plan_of_a_configuration_is_that_of_the_layout(
    system: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = []
    for named in (["--layout", name], ["--config", str(written(tmp_path, PUBLISHED[name]))]):
        assert invoke(["plan", system, *named, "--json"]) == 0
        results.append(json.loads(capsys.readouterr().out)["results"])
    assert results[0] == results[1]


NEXT, GEMMA, KIMI = "qwen3-next-80b-a3b", "gemma-3-27b", "kimi-linear-48b-a3b"
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "a type that is not known": (
        NEXT,
        {"model_type": "mystery"},
        "model_type: 'mystery' is not known here; what it keeps would follow from full_atten",
    ),
    "a type that is nearly known": (
        NEXT,
        {"model_type": "jambo"},
        "head_dim, linear_conv_kernel_dim, linear_key_head_dim",
    ),
    "no type": (NEXT, {"model_type": None}, "model_type: missing, or no text"),
    "a type that is no text": (NEXT, {"model_type": ["jamba"]}, "model_type: missing, or no text"),
    "a text": (NEXT, {"num_key_value_heads": "2"}, "num_key_value_heads: '2' is no whole number"),
    "a fraction": (NEXT, {"head_dim": 2.5}, "head_dim: 2.5 is no whole number"),
    "yes": (NEXT, {"head_dim": True}, "head_dim: True is no whole number"),
    "zero": (NEXT, {"linear_num_key_heads": 0}, "linear_num_key_heads: 0 is not from 1 to"),
    "null": (NEXT, {"linear_num_key_heads": None}, "linear_num_key_heads: null is no whole number"),
    "a number that no model has": (
        NEXT,
        {"linear_key_head_dim": 2**31},
        "linear_key_head_dim: 2147483648 is not from 1",
    ),
    "a number of many digits": (
        NEXT,
        {"head_dim": 10**4000},
        "head_dim: a number of 13288 bits is not from 1",
    ),
    "channels that no model has": (
        NEXT,
        {"linear_key_head_dim": 2**30},
        "$.model.caches[0].conv_channels",
    ),
    "layers without end": (
        NEXT,
        {"num_hidden_layers": 2**31 - 1},
        "num_hidden_layers: 2147483647 layers; at most 4096",
    ),
    "too few kinds": (
        NEXT,
        {"layer_types": ["full_attention"]},
        "layer_types: 1 layers, and num_hidden_layers says 48",
    ),
    "no kinds": (NEXT, {"layer_types": []}, "layer_types: [] is no list of 1 to 4096 layers"),
    "kinds that are no list": (NEXT, {"layer_types": 7}, "layer_types: 7 is no list"),
    "an unknown kind": (
        NEXT,
        {"layer_types": ["mystery"] * 48},
        "layer_types[0]: 'mystery' is none of full_attention",
    ),
    "a kind that is no text": (
        NEXT,
        {"layer_types": [["x"]] * 48},
        "layer_types[0]: ['x'] is none of",
    ),
    "an unknown type": (
        NEXT,
        {"torch_dtype": "int3"},
        "torch_dtype: 'int3' is none of bfloat16, float16, float32",
    ),
    "a text part that is none": (GEMMA, {"text_config": "here"}, "text_config: no table"),
    "a window of some layers of Qwen": (
        "qwen2.5-7b",
        {"use_sliding_window": True},
        "use_sliding_window: which layers vLLM",
    ),
    "a window below none": (
        "mistral-7b-v0.1",
        {"sliding_window": -1},
        "sliding_window: -1 is not from 0 to",
    ),
    "a window in words": (
        "mistral-7b-v0.1",
        {"sliding_window": "all"},
        "sliding_window: 'all' is no whole number",
    ),
    "windows of Qwen by name": (
        "qwen3-4b",
        {"layer_types": ["sliding_attention"] * 36},
        "layer_types[0]: 'sliding_attention' is",
    ),
    "no window": (
        GEMMA,
        {"text_config": PUBLISHED[GEMMA]["text_config"] | {"sliding_window": None}},
        "text_config.sliding_window",
    ),
    "both directions": (
        GEMMA,
        {"text_config": PUBLISHED[GEMMA]["text_config"] | {"use_bidirectional_attention": True}},
        "text_config.use_bidirectional_attention: a model that reads in both directions",
    ),
    "an offset beyond the period": (
        "jamba-1.5-mini",
        {"attn_layer_offset": 8},
        "attn_layer_offset: 8 is not below",
    ),
    "a letter": (
        "nemotron-h-8b",
        {"hybrid_override_pattern": "M" * 51 + "S"},
        "hybrid_override_pattern[51]: 'S' is none of",
    ),
    "neither letters nor words": (
        "nemotron-h-8b",
        {"hybrid_override_pattern": None},
        "hybrid_override_pattern: null is no",
    ),
    "heads that do not divide": (
        "granite-4.0-h-small",
        {"mamba_n_heads": 3},
        "mamba_n_heads: 8192 channels cannot be",
    ),
    "a head that does not fit": (
        "falcon-h1-0.5b",
        {"mamba_d_head": 65},
        "mamba_d_head: 24 heads of this size",
    ),
    "a size that does not divide": (
        "jamba-1.5-mini",
        {"hidden_size": 4097},
        "hidden_size: 4097 cannot be divided by",
    ),
    "a layer named twice": (
        KIMI,
        {
            "linear_attn_config": (
                PUBLISHED[KIMI]["linear_attn_config"] | {"full_attn_layers": [4, 4]}
            )
        },
        "linear_attn_config.full_attn_layers: a layer is named twice",
    ),
    "a layer named nowhere": (
        KIMI,
        {"linear_attn_config": PUBLISHED[KIMI]["linear_attn_config"] | {"full_attn_layers": [4]}},
        "they do not name each of 27 layers once",
    ),
    "no size in an inner table": (
        KIMI,
        {"linear_attn_config": {"kda_layers": [1], "full_attn_layers": [2]}},
        "linear_attn_config",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_configuration_is_one_line_with_file_and_field(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, changed, says = REFUSED[case]
    path = written(tmp_path, PUBLISHED[name] | changed)
    assert invoke(["plan", "vllm", "--config", str(path)]) == EXIT_USAGE
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1
    assert printed.err.startswith(f"cachewitness: {path}: ") and says in printed.err


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"[]", "no table of fields"),
        (b"\xff\xfe{", "not JSON"),
        (b'{"a": ' + b"[" * 200_000, "not JSON"),
        (b'{"a": ' + b"9" * 5_000 + b"}", "not JSON"),
        (b" " * (read.SIZE_MAX + 1), "larger than 4,194,304 bytes"),
    ],
    ids=["empty", "cut", "list", "encoding", "depth", "digits", "size"],
)
def test_a_file_that_is_none_is_one_line(text: bytes, says: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(text)
    with pytest.raises(UsageError) as caught:
        read.model(path)
    assert (
        str(caught.value).startswith(f"{path}: ")
        and says in str(caught.value)
        and "\n" not in str(caught.value)
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--config", "gone.json"], "gone.json: cannot be read"),
        (["--config", "config.toml"], "a configuration is a file whose name ends in .json"),
        (
            ["--config", "a.json", "--layout", "gemma-3-27b"],
            "--layout and --config both name a model",
        ),
        ([], "name a model: '--layout' NAME|PATH (`ls layouts`), '--config' FILE, or '--serve'"),
    ],
)
def test_how_a_model_is_named(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["plan", "vllm", *arguments]) == EXIT_USAGE
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("name", ["x; rm -rf ~", "$(id)", "-x", "a/b/c", "a\nb", 7, "x" * 200])
def test_a_name_that_no_checkpoint_has_is_not_repeated(name: Any, tmp_path: Path) -> None:
    """The commands of an answer are there to be copied."""
    assert model_of(tmp_path, NEXT, _name_or_path=name).checkpoint == read.UNNAMED
    assert model_of(tmp_path, NEXT).checkpoint == "Qwen/Qwen3-Next-80B-A3B-Instruct"
