"""A checkpoint of OpenVINO GenAI: a folder that optimum exported, its texts, and faults in its
blocks.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cachewitness._util.errors import UsageError
from cachewitness.core.trace_format import Finish, Op, Submit, Trace
from cachewitness.engines.registry import parse
from cachewitness.parity.answers.compare import runs
from cachewitness.systems.openvino_genai.kind import MODELS, configurations
from cachewitness.systems.openvino_genai.settings import KV_BLOCK
from cachewitness.workloads.answer_stories import write
from cachewitness.workloads.avoided import ROOMY
from cachewitness_faults.openvino_genai.block_faults import FAULTS
from suites.support.real_openvino import engine, installed

VOCABULARY = 272
"""Ids of the models that ci/openvino_models.py makes."""


def exported(model: str) -> Path:
    return Path(os.environ[MODELS]) / model


def grown() -> Trace:
    """Two prompts, each of which a longer one goes on behind, in a pool that is mapped apart."""
    prompts = {"a": "doc:330", "b": "other:340", "c": "doc:330 more:9", "d": "doc:300 end:7"}
    ops = [op for r, prompt in prompts.items() for op in (Submit(r, prompt, generate=4), Finish(r))]
    header = write(configurations()[0].shape("answers"), "idle", 0).header
    return Trace(msgspec.structs.replace(header, pages=ROOMY), list[Op](ops))


@installed
@pytest.mark.parametrize("model", ["llama", "qwen3-next"])
def test_a_folder_answers_right_and_restores(model: str) -> None:
    """Attention alone, and a hybrid, of which the folder does not tell that it is one."""
    spec = engine(f"checkpoint={exported(model)}")
    opened = spec.open(grown().header)
    answering = opened.describe().rules.answering
    opened.close()
    assert answering is not None and answering.vocabulary == VOCABULARY
    result = runs(grown(), spec)
    assert (result.findings, result.activity.hits) == ([], 2)


@installed
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_its_blocks_is_found_and_only_with_the_cache(fault: str) -> None:
    named = f"checkpoint={exported('llama')},mutant={fault}"
    found = [finding.anomaly for finding in runs(grown(), engine(named)).findings]
    assert found == [FAULTS[fault].anomaly] * 2
    assert runs(grown(), engine(f"{named},caching=off")).findings == []


@installed
def test_its_tokenizer_makes_tokens_of_a_text() -> None:
    """That of these models knows bytes, in the order of their letters: `!` is the first, and those
    without a letter of their own come last.
    """
    assert tokens(exported("llama"))("ba ab") == [65, 64, 220, 64, 65]


def _without(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def _cut(name: str) -> Callable[[Path], None]:
    return lambda folder: os.truncate(folder / name, (folder / name).stat().st_size // 2)


def _emptied(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()


DAMAGES = {
    "empty": _emptied,
    "no-model": _without("openvino_model.xml"),
    "no-weights": _without("openvino_model.bin"),
    "cut-model": _cut("openvino_model.xml"),
    "cut-weights": _cut("openvino_model.bin"),
}


@installed
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_folder_that_is_no_checkpoint_is_one_line(damage: str, tmp_path: Path) -> None:
    folder = tmp_path / "llama"
    shutil.copytree(exported("llama"), folder)
    DAMAGES[damage](folder)
    with pytest.raises(UsageError, match=f"checkpoint {folder}: ") as refused:
        engine(f"checkpoint={folder}").open(grown().header)
    assert "\n" not in str(refused.value)


@installed
def test_a_folder_without_a_tokenizer_has_no_texts(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"checkpoint {tmp_path}: "):
        tokens(tmp_path)


def tokens(folder: Path) -> Callable[[str], list[int]]:
    level: Any = parse("openvino-genai").kind.answers_level
    made: Callable[[str], list[int]] = level.texts.tokens({"checkpoint": str(folder)})
    return made


@installed
def test_what_costs_are_measured_of_damages_what_its_name_says() -> None:
    """Blocks 0 to 19 are a request's and 20 to 39 another prompt's; each holds its number."""
    import numpy as np

    from benchmarks.damage_costs_openvino import DAMAGES

    own = [*range(20)]
    other = [*range(20, 40)]
    expected: dict[str, dict[int, int]] = {
        "another prefix": dict(zip(own, other, strict=True)),
        "the last 512 tokens of another prefix": {block: block + 20 for block in range(4, 20)},
        "a block of 32 tokens of another prefix": {19: 39},
        "the last two blocks, two blocks stale": {18: 16, 19: 17},
        "two blocks of the window lost": {12: 0, 13: 0},
        "one token lost": {},
    }
    assert {*expected} == {*DAMAGES}
    for name, changed in expected.items():
        tensor = np.repeat(np.arange(40, dtype=np.uint8)[:, None], KV_BLOCK * 4, axis=1)
        DAMAGES[name](tensor, own, other)
        assert [*tensor[:, 0]] == [changed.get(block, block) for block in range(40)], name
        assert [*tensor[:, -1]] == [
            0 if (name, block) == ("one token lost", 19) else changed.get(block, block)
            for block in range(40)
        ]
