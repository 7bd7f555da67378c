"""The trained checkpoints: made by the recipes that are here, and good enough at the frozen
problems to lose something.

Cold answers only; what a cache does to them is for the suites of scores.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from cachewitness._util.data import fixtures
from cachewitness.toy.problems.fixture import STOP, Item, generate, load
from cachewitness_reference.toy_model import checkpoint, dense, export
from cachewitness_reference.toy_model.paged import Chunk, step
from cachewitness_reference.toy_model.tokenizer import Tokenizer
from cachewitness_training.recipes import RECIPES, as_data

pytestmark = pytest.mark.toy
FOLDERS = {name: fixtures() / "checkpoints" / name for name in RECIPES}
PROBLEMS = [name for name in RECIPES if not RECIPES[name].packages]
TEXTS = fixtures() / "english_texts" / "texts.jsonl"
EVERY = 5
"""One problem in so many is answered here: ten of each tenant."""
NATS_MAX = 1.9
"""What a byte of English text costs the checkpoint of bytes at most."""


def asked() -> list[Item]:
    return load()[::EVERY]


def result(answer: str) -> str:
    return answer.rpartition("#### ")[2]


@pytest.mark.parametrize("name", PROBLEMS)
def test_checkpoint_is_whole_small_and_made_by_the_recipe_that_is_here(name: str) -> None:
    read = checkpoint.load(FOLDERS[name])
    assert (FOLDERS[name] / checkpoint.WEIGHTS).stat().st_size <= checkpoint.WEIGHTS_BYTES_MAX
    made = json.loads((FOLDERS[name] / checkpoint.RECIPE).read_text())
    right = made.pop("right")["nothing"]
    assert made == json.loads(json.dumps(as_data(RECIPES[name])))
    assert read.config == RECIPES[name].config
    remembers = "linear_attention" in read.config.layer_types
    assert set(right) == {"full", "window"} | ({"recurrent"} if remembers else set())
    assert min(right.values()) >= 0.98, right


def test_checkpoint_of_bytes_is_made_by_the_recipe_that_is_here_and_has_learnt() -> None:
    """Of what a byte costs before it was trained little is left, and damage to a cache costs more
    than none.
    """
    read = checkpoint.load(FOLDERS["bytes"])
    made = json.loads((FOLDERS["bytes"] / checkpoint.RECIPE).read_text())
    nats = {damage: found["nats a byte"] for damage, found in made.pop("nats").items()}
    assert made.pop("text").keys() == {"learnt", "held_out", "sha256"}
    assert made == json.loads(json.dumps(as_data(RECIPES["bytes"])))
    assert read.config == RECIPES["bytes"].config
    untrained = nats.pop("untrained")
    assert nats["nothing"] == min(nats.values()) < untrained / 3


def test_checkpoint_of_bytes_expects_english_text_and_transformers_computes_the_same() -> None:
    """Text that it was not trained on, of this repository's own pages."""
    model, tokenizer = opened("bytes")
    read = checkpoint.load(FOLDERS["bytes"])
    rows = [json.loads(line) for line in TEXTS.read_text().splitlines()][::16]
    for row in rows:
        text = row["prefix"] + row["text"]
        tokens = torch.tensor(
            [Tokenizer.load(FOLDERS["bytes"] / checkpoint.TOKENIZER).encode(text)]
        )
        assert tokens.tolist() == [tokenizer(text).input_ids] and tokens.shape[1] == len(text)
        with torch.no_grad():
            ours = dense.forward(tokens, read.weights, read.config)
            theirs = model(tokens).logits
        assert float((ours - theirs).abs().max()) < 1e-3
        nats = torch.nn.functional.cross_entropy(theirs[0, :-1], tokens[0, 1:])
        assert float(nats) < NATS_MAX


def test_frozen_problems_are_what_the_generator_makes() -> None:
    tenants, rows = generate()
    contexts = {tenant.tenant: tenant.context for tenant in tenants}
    assert [(item.row, item.context) for item in load()] == [
        (row, contexts[row.tenant]) for row in rows
    ]


def test_toy_checkpoint_answers_98_of_100_held_out_problems() -> None:
    from cachewitness.engines.answers import Ask
    from cachewitness.toy.service import ToyService

    items = asked()
    service = ToyService(FOLDERS["toy"], caching=False)
    answers = service.answer([Ask(str(i), item.prompt, (STOP,)) for i, item in enumerate(items)])
    right: dict[str, list[bool]] = {}
    for item, answer in zip(items, answers, strict=True):
        right.setdefault(item.row.group, []).append(
            answer.text.rpartition("#### ")[2] == item.row.answer.rpartition("#### ")[2]
        )
    assert set(right) == {"full", "recurrent", "window"}
    assert sum(map(sum, right.values())) >= 0.98 * len(items), {
        group: sum(found) / len(found) for group, found in right.items()
    }


def opened(name: str) -> tuple[Any, Any]:
    model = AutoModelForCausalLM.from_pretrained(FOLDERS[name], dtype=torch.float32)
    return model.eval(), AutoTokenizer.from_pretrained(FOLDERS[name])


@pytest.fixture(scope="module")
def published() -> tuple[Any, Any]:
    return opened("qwen3_5")


@pytest.mark.parametrize(
    ("name", "groups"),
    [("qwen3_5", {"full", "recurrent", "window"}), ("window", {"full", "window"})],
)
def test_published_checkpoint_answers_98_of_100_problems_in_transformers(
    name: str, groups: set[str]
) -> None:
    """Those that it has layers for."""
    model, tokenizer = opened(name)
    items = [item for item in asked() if item.row.group in groups]
    assert {item.row.group for item in items} == groups
    right = 0
    for item in items:
        prompt = tokenizer(item.prompt, return_tensors="pt").input_ids
        wanted = tokenizer(f" {item.row.answer}{STOP}", return_tensors="pt").input_ids
        with torch.no_grad():
            logits = model(torch.cat([prompt, wanted], dim=1)).logits
        # Every token of the worked answer is the likeliest one, so greedy generation writes just
        # this answer.
        right += bool((logits[0, prompt.shape[1] - 1 : -1].argmax(-1) == wanted[0]).all())
    assert right >= 0.98 * len(items)


def test_published_checkpoint_generates_what_it_finds_likeliest(published: tuple[Any, Any]) -> None:
    model, tokenizer = published
    for item in load()[::100]:
        prompt = tokenizer(item.prompt, return_tensors="pt")
        out = model.generate(**prompt, max_new_tokens=24, do_sample=False)
        text = tokenizer.decode(out[0, prompt.input_ids.shape[1] :])
        assert text.startswith(f" {item.row.answer}{STOP}")


@pytest.mark.parametrize("size", [128, 96, 50])
def test_paged_execution_of_the_published_checkpoint_is_transformers(
    published: tuple[Any, Any], size: int
) -> None:
    """Chunks on and off the grid of the delta rule: the logits of prompt and answer, within
    float32's rounding.
    """
    from cachewitness.core.events import Group
    from cachewitness.toy.model import loaded
    from cachewitness.toy.noise import floors

    theirs, tokenizer = published
    item = load()[7]
    tokens = tokenizer(f"{item.prompt} {item.row.answer}", return_tensors="pt").input_ids
    groups = [
        Group(id=i, kind=kind, pool=0, block_size=16)
        for i, kind in enumerate(("full", "recurrent"))
    ]
    model = loaded(FOLDERS["qwen3_5"], groups, precision="float32", device="cpu")
    columns = -(-tokens.shape[1] // 16)
    tables = [list(range(1, columns + 1)), list(range(columns + 1, 2 * columns + 1))]
    pools = model.pools(2 * columns + 1)
    rows = []
    for start in range(0, tokens.shape[1], size):
        chunk = tokens[0, start : start + size].tolist()
        rows.append(step(pools, [Chunk(chunk, start, tables, outputs=len(chunk))], model.weights))
    with torch.no_grad():
        expected = theirs(tokens).logits[0]
    assert float((torch.cat(rows) - expected).abs().max()) <= floors(model).logits.tolerance < 1e-3


def test_blocks_of_real_engines_fill(published: tuple[Any, Any]) -> None:
    """Four blocks of the size that vLLM gives the published shape fit into what the questions of
    every tenant share.
    """
    block = export.unified_block_size(RECIPES["qwen3_5"].config)
    assert block <= 128
    for context in {item.context for item in load()}:
        assert len(published[1](context).input_ids) >= 4 * block


def test_both_tokenizers_cut_problems_the_same(published: tuple[Any, Any]) -> None:
    ours = Tokenizer.load(FOLDERS["qwen3_5"] / checkpoint.TOKENIZER)
    for item in load()[::40]:
        assert ours.encode(item.prompt) == published[1](item.prompt).input_ids
        assert ours.decode(ours.encode(item.prompt)) == item.prompt
