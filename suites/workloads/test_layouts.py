"""Layouts load as written, and a bad name or file is refused with what is wrong and where."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from cachewitness._util.errors import UsageError
from cachewitness.core.trace_format import GroupSpec
from cachewitness.workloads import layouts
from cachewitness.workloads.model import (
    Compressor,
    Full,
    Indexer,
    Latent,
    Recurrent,
    Sliding,
    Statement,
)

GOOD = 'name = "mine"\n[[groups]]\nkind = "sliding"\nblock_size = 16\nwindow = 32\n'

BAD = {
    "not TOML": ("name = ", "not TOML"),
    "no name": (GOOD.replace('name = "mine"\n', ""), "missing required field `name`"),
    "no groups": ('name = "mine"\n', "missing required field `groups`"),
    "empty groups": ('name = "mine"\ngroups = []\n', "$.groups"),
    "groups no list": ('name = "mine"\ngroups = 3\n', "$.groups"),
    "a group no table": ('name = "mine"\ngroups = [3]\n', "$.groups[0]"),
    "unknown kind": (
        GOOD.replace('"sliding"', '"slidng"'),
        "$.groups[0].kind`; did you mean 'sliding'?",
    ),
    "kind no text": (GOOD.replace('"sliding"', "7"), "$.groups[0].kind"),
    "block size zero": (GOOD.replace("16", "0"), "$.groups[0].block_size"),
    "block size a text": (GOOD.replace("16", '"16"'), "$.groups[0].block_size"),
    "no layers": (GOOD + "layers = 0\n", "$.groups[0].layers"),
    "sliding without window": (GOOD.replace("window = 32\n", ""), "$.groups[0].window"),
    "chunked without chunk": (
        GOOD.replace('"sliding"', '"chunked"').replace("window = 32\n", ""),
        "$.groups[0].chunk",
    ),
    "full with a window": (
        GOOD.replace('"sliding"', '"full"'),
        "$.groups[0].window`; a full group has no window",
    ),
    "misspelt field of a group": (GOOD.replace("window", "windw"), "did you mean 'window'?"),
    "misspelt field of the layout": ("storey = 'x'\n" + GOOD, "did you mean 'story'?"),
}


def _file(folder: Path, text: str) -> Path:
    path = folder / "mine.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", layouts.names())
def test_every_packaged_layout_tells_what_it_is(name: str) -> None:
    """The name is the file's, the story is one line, and the source says where the numbers come
    from.
    """
    layout = layouts.load(name)
    assert layout.name == name
    assert layout.story and "\n" not in layout.story
    assert layout.source.strip()


def test_the_toy_layouts_are_those_the_default_suite_is_written_for() -> None:
    """Kinds, block sizes and windows of the made-up layouts, in allocation order."""
    full = GroupSpec("full", 16)
    recurrent = GroupSpec("recurrent", 16)
    sliding = GroupSpec("sliding", 16, window=32)
    expected = {
        "full": [full],
        "full-mamba": [full, recurrent],
        "full-swa": [full, sliding],
        "full-swa-mamba": [full, sliding, recurrent],
        "full-mamba-unequal": [GroupSpec("full", 4), GroupSpec("recurrent", 8)],
        "full-swa-unequal": [full, GroupSpec("sliding", 8, window=32)],
        "full-full-narrow": [GroupSpec("full", 8), full, GroupSpec("sliding", 16, window=10)],
        "full-sparse": [GroupSpec("full", 16, layers=4), GroupSpec("full", 16, layers=2)],
    }
    assert {name: layouts.load(name).groups for name in expected} == expected


# Per model: bytes of one layer's state, bytes of one token in one attention layer, alignment in
# tokens; from the comments of the files, which name their sources.
STATES = {
    "qwen3.5-0.8b": (3 * 6144 * 2 + 16 * 128 * 128 * 4, 2 * 512 * 2, 16),
    "qwen3.5-0.8b-hopper": (3 * 6144 * 2 + 16 * 128 * 128 * 4, 2 * 512 * 2, 64),
    "qwen3.6-27b": (3 * 10240 * 2 + 48 * 128 * 128 * 4, 2 * 1024 * 2, 16),
    "qwen3-next-80b-a3b": (3 * 8192 * 2 + 32 * 128 * 128 * 2, 2 * 512 * 2, 16),
    "kimi-linear-48b-a3b": (3 * 12288 * 2 + 32 * 128 * 128 * 4, 576 * 2, 128),
    "falcon-h1-0.5b": (3 * 1792 * 2 + 24 * 64 * 128 * 2, 2 * 128 * 2, 16),
}


@pytest.mark.parametrize("name", STATES)
def test_a_hybrid_block_is_the_smallest_aligned_one_that_holds_a_state(name: str) -> None:
    """The rule of vLLM 0.33.0, platforms/interface.py, _align_hybrid_block_size, worked out
    again from the sizes.
    """
    state_bytes, token_bytes, alignment = STATES[name]
    smallest = alignment * math.ceil(state_bytes / (alignment * token_bytes))
    assert {group.block_size for group in layouts.load(name).groups} == {smallest}


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("qwen3.5-0.8b", {"recurrent": 18, "full": 6}),
        ("qwen3.5-0.8b-hopper", {"recurrent": 18, "full": 6}),
        ("qwen3-next-80b-a3b", {"recurrent": 36, "full": 12}),
        ("kimi-linear-48b-a3b", {"recurrent": 20, "full": 7}),
        ("falcon-h1-0.5b", {"recurrent": 36, "full": 36}),
        ("gpt-oss-20b", {"sliding": 12, "full": 12}),
        ("gpt-oss-120b", {"sliding": 18, "full": 18}),
        ("gemma-2-9b", {"sliding": 21, "full": 21}),
        ("gemma-3-27b", {"sliding": 52, "full": 10}),
        ("gemma-4-31b", {"sliding": 50, "full": 10}),
        ("qwen3.6-27b", {"recurrent": 48, "full": 16}),
    ],
)
def test_the_layers_of_a_kind_are_dealt_out_over_groups_of_the_rarer_kind(
    name: str, layers: dict[str, int]
) -> None:
    """The rule of vLLM 0.33.0, v1/core/kv_cache_planning.py: ceil(n / rarest) groups, layer i to
    group i modulo those.
    """
    rarest = min(layers.values())
    dealt = {
        kind: [len(range(i, n, math.ceil(n / rarest))) for i in range(math.ceil(n / rarest))]
        for kind, n in layers.items()
    }
    groups = layouts.load(name).groups
    assert {
        kind: [group.layers for group in groups if group.kind == kind] for kind in layers
    } == dealt


# Layers of a model by kind of attention, as published; the files name their sources.
LAYERS = {
    "deepseek-v4-flash": 43,
    "falcon-h1-0.5b": 36,
    "gemma-2-9b": 42,
    "gemma-3-27b": 62,
    "gemma-4-31b": 60,
    "glm-5.1": 78,
    "glm-5.2": 78,
    "gpt-oss-120b": 36,
    "gpt-oss-20b": 24,
    "kimi-linear-48b-a3b": 27,
    "llama-3.1-8b": 32,
    "llama-4-scout": 48,
    "mistral-7b-v0.2": 32,
    "qwen3-4b": 36,
    "qwen3-next-80b-a3b": 48,
    "qwen3.5-0.8b": 24,
    "qwen3.5-0.8b-hopper": 24,
    "qwen3.6-27b": 64,
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_model_says_what_its_layers_are_and_where_that_was_read(name: str) -> None:
    """As many layers as published (Falcon-H1 has both kinds in each), a source each, and nothing
    left out silently.
    """
    model = layouts.model(name)
    kept = [cache.layers for cache in model.caches if isinstance(cache, Full | Sliding | Recurrent)]
    kept += [
        cache.layers
        for cache in model.caches
        if isinstance(cache, Latent) and cache.tokens_per_entry == 1
    ]
    assert sum(kept) == LAYERS[name] * (2 if name.startswith("falcon") else 1)
    assert model.config.startswith("https://huggingface.co/") and model.checkpoint in model.config
    assert model.sources and all(model.unverified)


def test_every_layout_of_a_published_model_has_its_model() -> None:
    """The made-up ones have none; a new file of a model must be added above, with its number of
    layers.
    """
    assert layouts.models() == sorted(LAYERS)
    assert set(layouts.names()) - set(layouts.models()) == {
        name for name in layouts.names() if name.startswith("full")
    }


def test_the_caches_of_deepseek_v4_follow_from_its_compression_ratios() -> None:
    """Ratios 0, 0, then 4 and 128 in turn over 43 layers; ratio 4 alone has an indexer; every
    layer has a window.
    """
    ratios = [0, 0, *([4, 128] * 21)][:43]
    caches = layouts.model("deepseek-v4-flash").caches
    assert [(c.layers, c.window) for c in caches if isinstance(c, Latent) and c.window] == [
        (len(ratios), 128)
    ]
    compressed = {
        c.tokens_per_entry: c.layers for c in caches if isinstance(c, Latent) and not c.window
    }
    assert compressed == {4: ratios.count(4), 128: ratios.count(128)}
    assert [(c.layers, c.tokens_per_entry) for c in caches if isinstance(c, Indexer)] == [
        (ratios.count(4), 4)
    ]
    assert [c.layers for c in caches if isinstance(c, Compressor)] == [
        ratios.count(4),
        ratios.count(4),
        ratios.count(128),
    ]


@pytest.mark.parametrize(("name", "frequency", "offset"), [("glm-5.1", 1, 2), ("glm-5.2", 4, 3)])
def test_the_indexers_of_glm_follow_from_their_frequency(
    name: str, frequency: int, offset: int
) -> None:
    """The rule of vLLM 0.33.0, deepseek_v2.py: an indexer where max(i - offset + 1, 0) is a
    multiple of index_topk_freq.
    """
    own = sum(max(layer - offset + 1, 0) % frequency == 0 for layer in range(78))
    assert [cache.layers for cache in layouts.model(name).caches if isinstance(cache, Indexer)] == [
        own
    ]


MODEL = """
name = "mine"
[model]
checkpoint = "me/mine"
config = "https://example.org/config.json"
sources = ["nobody"]
unverified = []
max_length = 4096
[[model.caches]]
kind = "sliding"
layers = 2
kv_heads = 4
head_dim = 64
dtype = "bfloat16"
window = 128
[[model.caches]]
kind = "recurrent"
layers = 6
family = "gdn"
conv_channels = 256
conv_kernel = 4
conv_dtype = "bfloat16"
state_shape = [2, 64, 64]
state_dtype = "float32"
[[model.statements]]
system = "lmcache"
verdict = "supported"
says = "yes"
source = "nobody"
since = "0.4.7"
[[groups]]
kind = "full"
block_size = 16
"""

BAD_MODELS = {
    "no table": (
        MODEL.replace("model", "modl"),
        "unknown field 'modl' - at `$`; did you mean 'model'?",
    ),
    "a table no table": ('model = 3\nname = "x"\n', "Expected `object`, got `int` - at `$.model`"),
    "no checkpoint": (
        MODEL.replace('checkpoint = "me/mine"\n', ""),
        "missing required field `checkpoint` - at `$.model`",
    ),
    "nothing said of what is unverified": (
        MODEL.replace("unverified = []\n", ""),
        "`unverified` - at `$.model`",
    ),
    "no length": (MODEL.replace("max_length = 4096", "max_length = 0"), "`$.model.max_length`"),
    "empty address": (
        MODEL.replace("https://example.org/config.json", ""),
        "empty - at `$.model.config`",
    ),
    "no alignment": (
        MODEL.replace("max_length", "checkpoint_alignment = 0\nmax_length"),
        "`$.model.checkpoint_alignment`",
    ),
    "no caches": (
        MODEL.split("[[model.caches]]")[0] + "caches = []\n",
        "empty - at `$.model.caches`",
    ),
    "unknown kind": (
        MODEL.replace('"sliding"', '"slidng"'),
        "`$.model.caches[0].kind`; did you mean 'sliding'?",
    ),
    "no kind": (MODEL.replace('kind = "sliding"\n', ""), "`$.model.caches[0]`"),
    "kind no text": (MODEL.replace('kind = "sliding"', "kind = 3"), "`$.model.caches[0].kind`"),
    "no heads": (
        MODEL.replace("kv_heads = 4\n", ""),
        "missing required field `kv_heads` - at `$.model.caches[0]`",
    ),
    "heads a text": (
        MODEL.replace("kv_heads = 4", 'kv_heads = "4"'),
        "`$.model.caches[0].kv_heads`",
    ),
    "heads a share": (
        MODEL.replace("kv_heads = 4", "kv_heads = 4.5"),
        "`$.model.caches[0].kv_heads`",
    ),
    "heads true": (
        MODEL.replace("kv_heads = 4", "kv_heads = true"),
        "`$.model.caches[0].kv_heads`",
    ),
    "zero heads": (
        MODEL.replace("kv_heads = 4", "kv_heads = 0"),
        "0 - at `$.model.caches[0].kv_heads`",
    ),
    "too many heads": (
        MODEL.replace("kv_heads = 4", f"kv_heads = {2**49}"),
        "`$.model.caches[0].kv_heads`; it is at least 1",
    ),
    "misspelt field": (
        MODEL.replace("window = 128", "windw = 128"),
        "`$.model.caches[0]`; did you mean 'window'?",
    ),
    "a field of another kind": (
        MODEL.replace("window = 128", "window = 128\nwidth = 3"),
        "unknown field 'width'",
    ),
    "unknown type": (
        MODEL.replace('dtype = "bfloat16"\nwindow', 'dtype = "bf16"\nwindow'),
        "`$.model.caches[0].dtype`",
    ),
    "empty shape": (
        MODEL.replace("[2, 64, 64]", "[]"),
        "empty - at `$.model.caches[1].state_shape`",
    ),
    "shape with a zero": (
        MODEL.replace("[2, 64, 64]", "[2, 0, 64]"),
        "0 - at `$.model.caches[1].state_shape[1]`",
    ),
    "unknown family": (MODEL.replace('"gdn"', '"rnn"'), "`$.model.caches[1].family`"),
    "unknown verdict": (MODEL.replace('"supported"', '"maybe"'), "`$.model.statements[0].verdict`"),
    "no release": (MODEL.replace('"0.4.7"', '"soon"'), "'soon' - at `$.model.statements[0].since`"),
    "misspelt statement": (
        MODEL.replace("verdict =", "verdit ="),
        "`$.model.statements[0]`; did you mean 'verdict'?",
    ),
}


def test_a_model_of_ones_own_is_read_by_its_path(tmp_path: Path) -> None:
    """Bytes follow from heads, sizes and types; a trace layout in the same file is read as ever."""
    path = _file(tmp_path, MODEL)
    sliding, recurrent = layouts.model(path).caches
    assert isinstance(sliding, Sliding) and sliding.token_bytes == 2 * 4 * 64 * 2
    assert isinstance(recurrent, Recurrent) and recurrent.state_bytes == 2 * 64 * 64 * 4
    assert recurrent.conv_bytes(3) == 3 * 256 * 2
    assert layouts.load(path).groups == [GroupSpec("full", 16)]


@pytest.mark.parametrize("fault", BAD_MODELS)
def test_a_bad_model_is_refused_with_file_and_field(tmp_path: Path, fault: str) -> None:
    """One line: which file, which field, what is wrong."""
    text, expected = BAD_MODELS[fault]
    path = _file(tmp_path, text)
    read = layouts.load if fault == "no table" else layouts.model
    with pytest.raises(UsageError) as caught:
        read(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ") and expected in message and "\n" not in message, message


def test_a_layout_without_a_model_is_refused_where_one_is_needed() -> None:
    """The made-up layouts cannot be planned; those that can are named."""
    with pytest.raises(UsageError, match=r"full\.toml: no table `model`.*gpt-oss-20b"):
        layouts.model("full")


@pytest.mark.parametrize(
    ("since", "until", "release", "holds"),
    [
        ("", "", "0.4.4", True),
        ("0.4.7", "", "0.4.6", False),
        ("0.4.7", "", "0.4.7", True),
        ("0.4.7", "", "0.4.10", True),
        ("", "0.5.6", "0.5.5", True),
        ("", "0.5.6", "0.5.6", False),
    ],
)
def test_a_statement_holds_from_a_release_to_before_another(
    since: str, until: str, release: str, holds: bool
) -> None:
    """Releases are compared as numbers: 0.4.10 comes after 0.4.7."""
    statement = Statement(
        system="lmcache", verdict="supported", says="x", source="y", since=since, until=until
    )
    assert statement.holds_in(release) is holds


def test_an_unknown_name_is_answered_with_the_nearest_one() -> None:
    """A typing error costs one line of reading."""
    with pytest.raises(
        UsageError, match=r"no layout is called 'ful-mamba'; did you mean 'full-mamba'\?"
    ):
        layouts.load("ful-mamba")


def test_a_file_of_ones_own_is_read_by_its_path(tmp_path: Path) -> None:
    """Both forms of a path are accepted, and mean the same."""
    path = _file(tmp_path, GOOD)
    assert layouts.load(path) == layouts.load(str(path))
    assert layouts.load(path).groups == [GroupSpec("sliding", 16, window=32)]


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    """No traceback for a wrong path."""
    with pytest.raises(UsageError, match=r"gone\.toml: cannot be read"):
        layouts.load(tmp_path / "gone.toml")


@pytest.mark.parametrize("fault", BAD)
def test_a_bad_file_is_refused_with_file_and_field(tmp_path: Path, fault: str) -> None:
    """One line: which file, which field, what is wrong."""
    text, expected = BAD[fault]
    path = _file(tmp_path, text)
    with pytest.raises(UsageError) as caught:
        layouts.load(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ") and expected in message and "\n" not in message, message


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (
            '[[groups]]\nkind = "full"\nblock_size = 1000000000000\n',
            "`$.groups[0].block_size`; a full group needs",
        ),
        (
            '[[groups]]\nkind = "sliding"\nblock_size = 4\nwindow = 99999999999999\n',
            "`$.groups[0].window`; a sliding group",
        ),
        ('[[groups]]\nkind = "full"\nblock_size = 4\n' * 300, "300 groups - at `$.groups`"),
        (
            "".join(
                f'[[groups]]\nkind = "full"\nblock_size = {size}\n' for size in (65_521, 65_519)
            ),
            "that all groups share",
        ),
    ],
    ids=["a block", "a window", "groups", "a common multiple"],
)
def test_what_no_trace_could_reach_is_refused(groups: str, message: str, tmp_path: Path) -> None:
    """Sizes beyond the longest prompt would keep a run busy for ever; they are a line with file
    and field.
    """
    path = tmp_path / "mine.toml"
    path.write_text(f'name = "mine"\n{groups}')
    with pytest.raises(UsageError) as refused:
        layouts.load(path)
    assert message in str(refused.value) and str(refused.value).startswith(f"{path}: ")
