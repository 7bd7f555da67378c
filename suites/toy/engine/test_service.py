"""Prompts answered over the paged cache: the same tokens cold and cached, and what was restored
is told per group.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from cachewitness._util.errors import UsageError
from cachewitness.engines.answers import Answer, Ask, BackendError
from cachewitness.parity.scores.pairs import NEAR_TIE
from suites.support.random_checkpoint import random_checkpoint
from suites.support.toy_questions import ENDS, asks, tokens

pytestmark = pytest.mark.toy


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_checkpoint(tmp_path_factory.mktemp("checkpoint"))


def service(folder: Path, **options: Any) -> Any:
    from cachewitness.toy.service import ToyService

    return ToyService(folder, pages=600, dtype="float64", **options)


@pytest.fixture(scope="module")
def cold(folder: Path) -> list[Answer]:
    return list(service(folder, caching=False).answer(asks()))


def test_cold_answers_restore_nothing_and_are_alike_in_any_company(
    folder: Path, cold: list[Answer]
) -> None:
    alone = [service(folder, caching=False).answer([ask])[0] for ask in asks()[:2]]
    assert tokens(alone) == tokens(cold)[:2]
    assert [answer.restored for answer in cold] == [
        {"": 0, "full": 0, "sliding": 0, "recurrent": 0}
    ] * len(ENDS)
    assert all(
        len(answer.tokens) == len(answer.margins) == 6 and min(answer.margins) >= 0
        for answer in cold
    )


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"budget": 48},
        {"batch": 2},
        {"preempt_every": 3},
        {"drafts": 2},
        {"retention_interval": 0},
    ],
    ids=lambda options: ",".join(options) or "plain",
)
def test_cached_answers_are_the_cold_ones(
    folder: Path, cold: list[Answer], options: dict[str, Any]
) -> None:
    engine = service(folder, **options)
    engine.answer(asks(max_tokens=1, ends=("",)))
    answers = engine.answer(asks())
    assert tokens(answers) == tokens(cold)
    assert [answer.text for answer in answers] == [answer.text for answer in cold]
    for answer in answers:
        assert answer.restored[""] == answer.restored["full"] == answer.restored["recurrent"] >= 64
    if "preempt_every" in options:
        assert sum(answer.preemptions for answer in answers) > 0


def test_replay_comes_from_the_second_tier_after_a_reset_of_the_first(
    folder: Path, cold: list[Answer]
) -> None:
    engine = service(folder, tier_pages=600)
    engine.answer(asks())
    assert engine.reset()
    answers = engine.answer(asks())
    assert tokens(answers) == tokens(cold)
    assert answers[0].from_tier == answers[0].restored[""] > 64
    plain = service(folder)
    plain.answer(asks())
    assert plain.reset()
    assert plain.answer(asks()[:1])[0].restored[""] == 0


def test_other_salts_share_nothing(folder: Path, cold: list[Answer]) -> None:
    engine = service(folder)
    engine.answer(asks(salt="x"))
    (answer,) = engine.answer(asks(salt="y")[:1])
    assert answer.restored[""] == 0 and answer.tokens == cold[0].tokens


def test_answer_ends_before_a_stop_and_at_its_length(folder: Path, cold: list[Answer]) -> None:
    stop = cold[0].text[len(cold[0].text) // 2 :][:1]
    (answer,) = service(folder, caching=False).answer(
        [Ask(id="a", prompt=asks()[0].prompt, stop=(stop,), max_tokens=6)]
    )
    assert answer.text == cold[0].text[: cold[0].text.index(stop)]
    assert answer.tokens == cold[0].tokens[: len(answer.tokens)]


@pytest.mark.parametrize("seed", range(20))
def test_text_that_grows_token_by_token_is_that_of_all_tokens(seed: int) -> None:
    """Characters come in parts, wrong ones among them; a stop may begin in one token and end in
    another, and may hold the mark of a character that is not whole.
    """
    from cachewitness.toy.service import _Job
    from cachewitness_reference.toy_model.tokenizer import END, Tokenizer, vocabulary

    chance = random.Random(seed)
    tokenizer = Tokenizer(vocabulary(["aé", "bc"]))
    pieces = [*"abé€😀".encode(), *b"\xff\xf0\x80"]
    numbers = [tokenizer.vocabulary[f"<0x{byte:02X}>"] for byte in pieces]
    numbers += [tokenizer.vocabulary[piece] for piece in ("aé", "bc", "c", "<|pad|>")]
    stops = tuple(chance.sample(["ca", "é€", "bca", "\ufffdb", "aaa"], chance.randrange(4)))
    job = _Job(Ask("q", "a", stop=stops, max_tokens=60), tokenizer)
    for _ in range(80):
        job.take([chance.choice(numbers)])
        whole = tokenizer.decode(job.tokens)
        found = [whole.find(stop) for stop in stops if stop in whole]
        assert job.text == (whole[: min(found)] if found else whole)
        assert job.done == (bool(found) or len(job.tokens) == 60)
    assert tokenizer.decode([tokenizer.vocabulary[END]]) == ""


def test_planted_fault_changes_answers(folder: Path) -> None:
    """A block that is keyed by its own tokens alone is hit behind another prefix, and the answer
    is another.
    """
    one, other = (
        Ask(id=words, prompt=_blocks(words), max_tokens=6)
        for words in ("cat dog mat on", "dog cat mat on")
    )
    (right,) = service(folder, caching=False).answer([other])
    engine = service(folder, mutant="hash-without-parent", block_size=16)
    engine.answer([one])
    (wrong,) = engine.answer([other])
    assert wrong.restored[""] == 48
    assert (wrong.tokens, wrong.margins) != (right.tokens, right.margins)
    sound = service(folder, block_size=16)
    sound.answer([one])
    (again,) = sound.answer([other])
    assert again.tokens == right.tokens


def _blocks(words: str) -> str:
    """Return a prompt of a block of 16 tokens for each word."""
    return "".join(f" {word}" * 16 for word in words.split())


def test_versions_name_what_a_repetition_needs(folder: Path) -> None:
    versions = service(folder, mutant="salt-left-out").versions()
    assert {"engine", "policy", "checkpoint", "device", "dtype", "torch", "kernels"} == set(
        versions
    )
    assert "salt-left-out" in versions["engine"] and len(versions["checkpoint"]) == 64


def test_what_cannot_run_is_said_in_one_line(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--checkpoint"):
        service(tmp_path / "nowhere")
    with pytest.raises(BackendError, match="question long"):
        service(folder).answer([Ask(id="long", prompt="the " * 5000)])
    with pytest.raises(BackendError, match="nothing was computed"):
        from cachewitness.toy.service import ToyService

        ToyService(folder, pages=20).answer(asks()[:1])


def test_choice_between_logits_that_are_no_numbers_is_no_near_tie() -> None:
    """Where NaN decided, another token is a hard divergence and nothing that rounding could
    excuse.
    """
    import torch

    from cachewitness.toy.greedy import NO_TIE, Choice, _choices

    rows = torch.tensor([[1.0, 3.0, 2.5], [float("nan"), 1.0, 2.0], [float("inf"), 1.0, 0.0]])
    even, poisoned, overflown = _choices({"r": rows})["r"]
    assert even == Choice(1, 0.5)
    assert poisoned.margin == overflown.margin == NO_TIE > NEAR_TIE


@pytest.mark.parametrize("batch", [2, 4])
def test_so_many_requests_run_at_a_time_as_the_option_batch_says(folder: Path, batch: int) -> None:
    from cachewitness.engines.answers import Opening
    from cachewitness.toy.kind import open_service

    opened: Any = open_service(
        {"batch": f"{batch}", "dtype": "float64"}, Opening(checkpoint=f"{folder}")
    )
    running = list[int]()
    execute = opened.engine.tensors.execute

    def counted(begin: Any, *args: Any) -> Any:
        running.append(len(begin.runs))
        return execute(begin, *args)

    opened.engine.tensors.execute = counted
    opened.answer(asks())
    assert max(running) == batch < len(ENDS)


def test_batch_that_is_no_number_is_refused() -> None:
    from cachewitness.engines.answers import Opening
    from cachewitness.toy.kind import open_service

    with pytest.raises(UsageError, match="batch '0' is not a whole number, at least 1"):
        open_service({"batch": "0"}, Opening())
