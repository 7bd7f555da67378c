"""The tokens of texts are kept in runs, which say the same as a table of every token."""

from __future__ import annotations

import random
import tracemalloc

import pytest

from cachewitness.core.events import Accept
from cachewitness.core.malformed import MalformedHistory
from cachewitness.core.texts import Runs, Texts
from cachewitness.core.trace_format import SEGMENT_TOKENS_MAX, Submit, Vocabulary, segments


class Table:
    """The rule told token by token: one token at each place, and in prompts one place for each
    token.
    """

    def __init__(self) -> None:
        self.token_at: dict[tuple[str, int], int] = {}
        self.place_of: dict[int, tuple[str, int]] = {}

    def prompt(self, prompt: str, tokens: list[int]) -> bool:
        places = [
            (text, at)
            for text, first, count in segments(prompt)
            for at in range(first, first + count)
        ]
        return all(
            self.is_right(place, token, alone=True)
            for place, token in zip(places, tokens, strict=True)
        )

    def is_right(self, place: tuple[str, int], token: int, *, alone: bool) -> bool:
        right = self.token_at.setdefault(place, token) == token
        return right and (self.place_of.setdefault(token, place) == place or not alone)


def accepted(texts: Texts, r: str, prompt: str, tokens: list[int]) -> str:
    """Return what is wrong with a prompt; empty if nothing is."""
    try:
        texts.submit(Submit(r, prompt), tokens)
    except MalformedHistory as problem:
        return str(problem)
    return ""


def drawn_prompt(draw: random.Random) -> str:
    terms = [
        (draw.choice("ABC"), draw.choice((0, 0, 0, draw.randrange(9))))
        for _ in range(draw.randint(1, 3))
    ]
    return " ".join(f"{text}[{first}]:{draw.randint(0, 9)}" for text, first in terms)


@pytest.mark.parametrize("scattered", [False, True])
def test_runs_refuse_what_a_table_of_every_token_refuses(scattered: bool) -> None:
    """Right tokens, and tokens of which some stand elsewhere; also of an engine whose neighbours
    are no neighbours.
    """
    refused = 0
    for seed in range(300):
        draw = random.Random(seed)
        texts = Texts()
        table = Table()
        words = Vocabulary()
        for number in range(12):
            prompt = drawn_prompt(draw)
            tokens = words.tokens(prompt)
            if tokens and draw.random() < 0.08:
                tokens[draw.randrange(len(tokens))] += draw.choice((-1, 1, SEGMENT_TOKENS_MAX))
            if scattered:
                tokens = [token * 7919 % 100_003 for token in tokens]
            wrong = accepted(texts, f"r{number}", prompt, tokens)
            assert bool(wrong) != table.prompt(prompt, tokens), (seed, prompt, tokens, wrong)
            if wrong:
                refused += 1
                break
    assert 50 < refused < 250


def test_two_texts_may_generate_one_token_but_prompts_name_it_by_one_place() -> None:
    texts = Texts()
    for r in ("a", "b"):
        assert not accepted(texts, r, "A:1", [7])
        texts.accept(Accept(r=r, upto=2, tokens=[9]))
    assert not accepted(texts, "c", "@a:1", [9])
    assert "that is @a[0] already" in accepted(texts, "d", "@b:1", [9])


def test_another_token_at_a_known_place_is_named() -> None:
    texts = Texts()
    assert not accepted(texts, "a", "A:4", [1, 2, 3, 4])
    problem = accepted(texts, "b", "A:6", [1, 2, 8, 4, 5, 6])
    assert problem.startswith("token 8 of 'b' for A[2] - at `$.tokens`; it was 3 before")


def test_runs_are_a_map() -> None:
    """Neighbours share an entry; nothing that is there is changed."""
    for seed in range(200):
        draw = random.Random(seed)
        runs = Runs()
        table = dict[int, int]()
        for _ in range(30):
            start = draw.randrange(40)
            value = draw.randrange(3) * 100
            count = draw.randint(1, 5)
            free = not any(key in table for key in range(start, start + count))
            assert runs.put(start, value + start, count) == free
            if free:
                table |= {key: value + key for key in range(start, start + count)}
        assert [runs.get(key) for key in range(50)] == [table.get(key) for key in range(50)]
        assert len(runs) <= len(table)


def test_a_text_takes_the_room_of_a_run_and_not_of_its_tokens() -> None:
    texts = Texts()
    words = Vocabulary()
    tracemalloc.start()
    try:
        for number in range(300):
            prompt = f"t{number}:500"
            texts.submit(Submit(f"r{number}", prompt), words.tokens(prompt))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 300 * 2_000, (
        "bytes for a text of 500 tokens, each of which takes 250 in a table of its own"
    )
