"""Training: what it asks for, which paths it cuts, and that it can be killed and overwrites
nothing unasked.
"""

from __future__ import annotations

import os
import re
import signal
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from random import Random

import click
import pytest
import torch
from click.testing import CliRunner

from cachewitness._util.data import fixtures
from cachewitness._util.errors import UsageError
from cachewitness.toy.problems import __main__ as problems
from cachewitness.toy.problems.contexts import Size
from cachewitness_reference.toy_model import checkpoint, dense
from cachewitness_reference.toy_model.weights import random_weights
from cachewitness_training import __main__ as command
from cachewitness_training import loop, text
from cachewitness_training import needs as held_out
from cachewitness_training.branches import IGNORED, Branches
from cachewitness_training.loop import train
from cachewitness_training.paths import ZERO, branch, carriers, draw_sources
from cachewitness_training.recipes import BYTES, RECIPES, Recipe, Stage

pytestmark = pytest.mark.toy
torch.set_num_threads(1)  # as the command does: with more, sums are not rounded the same way twice
STAGE = Stage(0, (0, 1), Size(4, 3, 0))
TINY = {"hidden_size": 32, "intermediate_size": 16}
CONFIG = replace(RECIPES["toy"].config, **TINY)
STEPS = 6


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Recipe:
    """Return a recipe of a few steps, kept after every second one, and found under its name."""
    monkeypatch.setattr(loop, "KEPT_EVERY_STEPS", 2)
    monkeypatch.setattr(loop, "REPORTED_EVERY_STEPS", 2)
    monkeypatch.setattr(held_out, "TOKENS", 600)
    monkeypatch.setattr(held_out, "QUESTIONS", 4)
    recipe = Recipe("tiny", CONFIG, (STAGE,), steps=STEPS, decay_start=3, tokens_per_step=400)
    monkeypatch.setitem(RECIPES, "tiny", recipe)
    monkeypatch.setattr(command.main.params[0], "type", click.STRING)
    return recipe


def killed_at(step: int, recipe: Recipe, kept: Path) -> None:
    """Train in a process of its own that is ended by SIGKILL when it reports a step."""

    def report(now: int, *_: object) -> None:
        if now == step:
            os.kill(os.getpid(), signal.SIGKILL)

    child = get_context("fork").Process(target=train, args=(recipe, kept, report))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL


def quiet(*_: object) -> None: ...


def test_training_that_was_killed_goes_on_to_the_same_parameters(
    tiny: Recipe, tmp_path: Path
) -> None:
    through, _ = train(tiny, tmp_path / "through", quiet)
    killed_at(4, tiny, tmp_path / "kept")
    steps: list[int] = []
    resumed, _ = train(tiny, tmp_path / "kept", lambda step, *_: steps.append(step))
    assert steps == [6]
    assert all(torch.equal(through[name], resumed[name]) for name in through)


def test_what_was_kept_of_another_recipe_is_refused(tiny: Recipe, tmp_path: Path) -> None:
    killed_at(4, tiny, tmp_path / "kept")
    with pytest.raises(UsageError, match="of another recipe than tiny is now"):
        train(replace(tiny, seed=2), tmp_path / "kept", quiet)


def test_command_prints_as_it_goes_and_overwrites_only_when_asked_to(
    tiny: Recipe, tmp_path: Path
) -> None:
    folder = str(tmp_path / "made")
    done = CliRunner().invoke(command.main, ["tiny", folder])
    assert done.exit_code == 0, done.output
    assert (
        len(re.findall(r"step +\d+  loss", done.output)) == STEPS // 2
        and "recurrent zeroed" in done.output
    )
    assert (
        not (tmp_path / "made.training").exists()
        and checkpoint.load(tmp_path / "made").config == CONFIG
    )
    again = CliRunner().invoke(command.main, ["tiny", folder])
    assert again.exit_code == 1 and "holds files already" in again.output
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").write_text("mine")
    assert CliRunner().invoke(command.main, ["tiny", str(tmp_path / "notes")]).exit_code == 1
    assert CliRunner().invoke(command.main, ["tiny", folder, "--overwrite"]).exit_code == 0


def test_text_is_learnt_and_says_what_it_was(
    tiny: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The docstrings of a package, but of the files that are held out."""
    monkeypatch.setattr(text, "HELD_OUT_ONE_IN", 2)
    monkeypatch.setattr(text, "ROWS", 2)
    config = replace(CONFIG, vocab_size=len(BYTES), head_dim=16)
    reading = {"packages": ("click",), "window": text.BEHIND + 32, "tokens_per_step": 320}
    recipe = replace(tiny, config=config, stages=(), steps=2, decay_start=1, **reading)
    _, found = train(recipe, tmp_path / "kept", quiet)
    assert found["text"]["learnt"] > 10_000 and found["text"]["held_out"] > 10_000
    nats = {damage: one["nats a byte"] for damage, one in found["nats"].items()}
    assert {"nothing", "untrained", "recurrent zeroed", "full of another"} <= set(nats)
    assert nats["nothing"] < nats["untrained"]


def test_text_is_split_by_files_and_of_a_package_that_is_installed() -> None:
    found = [*text.docstrings(["click"])]
    learnt, held_out = text.split(found)
    assert len(learnt) + len(held_out) == len(found) == len({one for _, one in found})
    assert all(len(one) >= text.SHORTEST and name.startswith("click/") for name, one in found)
    with pytest.raises(UsageError, match="no_such_package: is not installed"):
        [*text.docstrings(["no_such_package"])]


def test_problems_are_written_and_overwritten_only_when_asked_to(tmp_path: Path) -> None:
    asked = [str(tmp_path / "made")]
    assert CliRunner().invoke(problems.main, asked).exit_code == 0
    for file in (fixtures() / "gsm8k_format").glob("*.jsonl"):
        assert (tmp_path / "made" / file.name).read_bytes() == file.read_bytes()
    again = CliRunner().invoke(problems.main, asked)
    assert again.exit_code == 1 and "holds files already" in again.output
    assert CliRunner().invoke(problems.main, [*asked, "--overwrite"]).exit_code == 0
    assert CliRunner().invoke(problems.main, []).exit_code == 1


def test_every_path_but_its_own_is_cut_and_a_layer_is_cut_with_its_path() -> None:
    for fact, own in carriers(CONFIG).items():
        drawn = [draw_sources(Random(seed), fact, 1, 3, CONFIG, 0.8) for seed in range(200)]
        assert all(sources[layer] == 1 for sources in drawn for layer in own)
        for layer in set(range(len(CONFIG.layer_types))) - set(own):
            seen = [sources[layer] for sources in drawn]
            assert (
                set(seen) == {ZERO, 0, 1, 2}
                and 0.7 < sum(source != 1 for source in seen) / len(seen) < 0.9
            )


def test_each_recurrent_layer_has_a_fact_of_its_own() -> None:
    assert carriers(CONFIG) == {"price": [3], "has": [0], "owes": [2], "rule": [1]}
    assert carriers(RECIPES["window"].config) == {"price": [2], "rule": [0, 1]}
    assert carriers(RECIPES["qwen3_5"].config) == {
        "price": [1, 3],
        "has": [0],
        "owes": [2],
        "rule": [0],
    }


def test_branch_on_its_own_prefix_is_the_text_in_one_piece_and_on_another_it_is_not() -> None:
    batch = Branches(CONFIG, 0.0).batch(Random(0), STAGE, 400)
    weights = {name: tensor.double() for name, tensor in random_weights(CONFIG, 0).items()}
    _, left = dense.resume(batch.prefixes, weights, CONFIG, 0, [None] * 4)
    length = batch.prefixes.shape[1]
    last = len(batch.rows) - 1
    whole = dense.forward(
        torch.cat([batch.prefixes[batch.rows[last]], batch.tokens[last]])[None], weights, CONFIG
    )[0, length:]

    def resumed(sources: torch.Tensor) -> torch.Tensor:
        return dense.resume(batch.tokens, weights, CONFIG, length, branch(left, sources, CONFIG))[
            0
        ][last]

    assert float((resumed(batch.sources) - whole).abs().max()) < 1e-9
    for layer in range(4):
        for source in (ZERO, 0):
            other = batch.sources.clone()
            other[layer] = source
            assert float((resumed(other) - whole).abs().max()) > 1e-4


def test_what_is_to_be_predicted_is_the_answer_or_the_numbers_of_a_recital() -> None:
    made = Branches(CONFIG, 0.8)
    for recitals in (0.0, 1.0):
        batch = made.batch(Random(1), replace(STAGE, recitals=recitals), 400)
        for row, group in enumerate(batch.groups):
            wanted = batch.targets[row] != IGNORED
            *ends, _ = wanted.nonzero().flatten().tolist()
            assert [int(batch.targets[row, at]) for at in ends] == [
                int(batch.tokens[row, at + 1]) for at in ends
            ]
            assert (group == "recital") == bool(recitals) and bool(wanted.any())
            if recitals:
                assert set(batch.targets[row][wanted].tolist()) <= made._numbers
