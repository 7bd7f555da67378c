"""Layouts load as written, and a bad name or file is refused with what is wrong and where."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from harness import data, layouts
from harness.errors import UsageError
from harness.trace import GroupSpec

GOOD = 'name = "mine"\n[[groups]]\nkind = "sliding"\nblock_size = 16\nwindow = 32\n'

BAD = {
    "not TOML": ("name = ", "not TOML"),
    "no name": (GOOD.replace('name = "mine"\n', ""), "missing required field `name`"),
    "no groups": ('name = "mine"\n', "missing required field `groups`"),
    "empty groups": ('name = "mine"\ngroups = []\n', "$.groups"),
    "groups no list": ('name = "mine"\ngroups = 3\n', "$.groups"),
    "a group no table": ('name = "mine"\ngroups = [3]\n', "$.groups[0]"),
    "unknown kind": (GOOD.replace('"sliding"', '"slidng"'), "$.groups[0].kind`; did you mean 'sliding'?"),
    "kind no text": (GOOD.replace('"sliding"', "7"), "$.groups[0].kind"),
    "block size zero": (GOOD.replace("16", "0"), "$.groups[0].block_size"),
    "block size a text": (GOOD.replace("16", '"16"'), "$.groups[0].block_size"),
    "no layers": (GOOD + "layers = 0\n", "$.groups[0].layers"),
    "sliding without window": (GOOD.replace("window = 32\n", ""), "$.groups[0].window"),
    "chunked without chunk": (GOOD.replace('"sliding"', '"chunked"').replace("window = 32\n", ""), "$.groups[0].chunk"),
    "full with a window": (GOOD.replace('"sliding"', '"full"'), "$.groups[0].window`; a full group has no window"),
    "misspelt field of a group": (GOOD.replace("window", "windw"), "did you mean 'window'?"),
    "misspelt field of the layout": ("storey = 'x'\n" + GOOD, "did you mean 'story'?"),
}


def _file(folder: Path, text: str) -> Path:
    path = folder / "mine.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", layouts.names())
def test_every_packaged_layout_tells_what_it_is(name: str) -> None:
    """The name is the file's, the story is one line, and the source says where the numbers come from."""
    layout = layouts.load(name)
    assert layout.name == name
    assert layout.story and "\n" not in layout.story
    assert layout.source.strip()


def test_the_toy_layouts_are_those_the_default_suite_is_written_for() -> None:
    """Kinds, block sizes and windows of the made-up layouts, in allocation order."""
    full, recurrent, sliding = GroupSpec("full", 16), GroupSpec("recurrent", 16), GroupSpec("sliding", 16, window=32)
    expected = {
        "full": [full],
        "full-mamba": [full, recurrent],
        "full-swa": [full, sliding],
        "full-swa-mamba": [full, sliding, recurrent],
        "full-mamba-unequal": [GroupSpec("full", 4), GroupSpec("recurrent", 8)],
        "full-swa-unequal": [full, GroupSpec("sliding", 8, window=32)],
    }
    assert {name: layouts.load(name).groups for name in expected} == expected


# Per model: bytes of one layer's state, bytes of one token in one attention layer, alignment in tokens; from the
# comments of the files, which name their sources.
STATES = {
    "qwen3.5-0.8b": (3 * 6144 * 2 + 16 * 128 * 128 * 4, 2 * 512 * 2, 64),
    "qwen3-next-80b-a3b": (3 * 8192 * 2 + 32 * 128 * 128 * 2, 2 * 512 * 2, 64),
    "kimi-linear-48b-a3b": (3 * 12288 * 2 + 32 * 128 * 128 * 4, 576 * 2, 128),
    "falcon-h1-0.5b": (3 * 1792 * 2 + 24 * 64 * 128 * 2, 2 * 128 * 2, 16),
}


@pytest.mark.parametrize("name", STATES)
def test_a_hybrid_block_is_the_smallest_aligned_one_that_holds_a_state(name: str) -> None:
    """The rule of vLLM 0.33.0, platforms/interface.py, _align_hybrid_block_size, worked out again from the sizes."""
    state_bytes, token_bytes, alignment = STATES[name]
    smallest = alignment * math.ceil(state_bytes / (alignment * token_bytes))
    assert {group.block_size for group in layouts.load(name).groups} == {smallest}


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("qwen3.5-0.8b", {"recurrent": 18, "full": 6}),
        ("qwen3-next-80b-a3b", {"recurrent": 36, "full": 12}),
        ("kimi-linear-48b-a3b", {"recurrent": 20, "full": 7}),
        ("falcon-h1-0.5b", {"recurrent": 36, "full": 36}),
        ("gpt-oss-20b", {"sliding": 12, "full": 12}),
        ("gemma-3-27b", {"sliding": 52, "full": 10}),
    ],
)
def test_the_layers_of_a_kind_are_dealt_out_over_groups_of_the_rarer_kind(name: str, layers: dict[str, int]) -> None:
    """The rule of vLLM 0.33.0, v1/core/kv_cache_planning.py: ceil(n / rarest) groups, layer i to group i modulo those."""
    rarest = min(layers.values())
    dealt = {
        kind: [len(range(i, n, math.ceil(n / rarest))) for i in range(math.ceil(n / rarest))] for kind, n in layers.items()
    }
    groups = layouts.load(name).groups
    assert {kind: [group.layers for group in groups if group.kind == kind] for kind in layers} == dealt


def test_an_unknown_name_is_answered_with_the_nearest_one() -> None:
    """A typing error costs one line of reading."""
    with pytest.raises(UsageError, match=r"no layout is called 'ful-mamba'; did you mean 'full-mamba'\?"):
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


def test_the_data_folders_exist() -> None:
    """What a checkout and a wheel both carry."""
    assert (data.fixtures() / "layouts").is_dir()
    assert (data.suites() / "harness").is_dir()
