"""The page on what a run enters of vLLM: shares are those of all functions, and each that is
left out has its reason.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.vllm_coverage import ROOT, Share, _never, parts


def function(entered: int, lines: int, branches: tuple[int, int] = (0, 0)) -> dict[str, Any]:
    return {
        "summary": {
            "covered_lines": entered,
            "num_statements": lines,
            "covered_branches": branches[0],
            "num_branches": branches[1],
        }
    }


def test_a_share_is_that_of_all_lines_and_not_the_mean_of_functions() -> None:
    share = Share.of([function(1, 1), function(0, 9), function(5, 10, (1, 4))])
    assert share == Share((2, 3), (6, 20), (1, 4))
    assert share.cells() == ["2 of 3", "30 %", "25 %"]
    assert Share.of([]).cells() == ["0 of 0", "-", "-"]


def test_who_is_never_entered_is_listed_once_with_the_first_reason_that_fits() -> None:
    """What has lines that ran, or none, is not; of what no reason fits it is said that none is
    known.
    """
    functions = {
        "BlockPool.touch": function(3, 3),
        "KVCacheManager.get_block_ids@66": function(0, 0),
        "HiSparseHotManager.has_hot": function(0, 1),
        "BlockPool.get_usage": function(0, 4),
        "BlockPool.surprise": function(0, 4),
    }
    groups = _never(functions)
    assert sorted(name for names in groups.values() for name in names) == [
        "`BlockPool.get_usage`",
        "`BlockPool.surprise`",
        "`HiSparseHotManager.has_hot`",
    ]
    assert groups["not known"] == ["`BlockPool.surprise`"] and len(groups) == 3


def test_every_part_is_a_command_of_its_own_in_the_process_that_is_measured() -> None:
    commands = parts(Path("tree"), 120, Path("list"))
    assert all(" ".join(words).count("--isolate no") == 1 for words in commands.values())
    assert {words[0] for words in commands.values()} == {
        "run",
        "fuzz",
        "replay",
    } and "120" in commands["fuzz"]
    replayed = [words[1] for words in commands.values() if words[0] == "replay"]
    assert replayed and all((ROOT / path).is_file() for path in replayed)
