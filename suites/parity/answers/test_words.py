"""Prompts of a checkpoint are pieces of a real text, in its own tokens."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise

from cachewitness import AnswersLevel, Controls, Texts, UsageError
from cachewitness.core.events import Submitted
from cachewitness.core.trace_format import Finish, Op, Submit, Trace
from cachewitness.engines.registry import EngineSpec, parse
from cachewitness.parity.answers.compare import runs
from cachewitness.parity.answers.words import words_of
from cachewitness.systems.sample.engine import configurations
from cachewitness.systems.sample.model import VOCABULARY
from cachewitness.workloads.answer_stories import write
from cachewitness.workloads.spelling import PIECE, Spelling

WORDS = [*range(1000, 1400)]


def test_a_prompt_is_made_of_pieces_of_a_text_and_no_two_texts_are_alike() -> None:
    spelling = Spelling(2000, words=WORDS)
    one, other = (spelling.tokens(f"{name}:{3 * PIECE + 5}", (), {}) for name in ("doc", "more"))
    assert one is not None and other is not None and set(one) <= set(WORDS)
    steps = [(b - a) % len(WORDS) for a, b in pairwise(one)]
    assert [place + 1 for place, step in enumerate(steps) if step != 1] == [16, 32, 48]
    assert one[:PIECE] != other[:PIECE]
    assert spelling.tokens(f"doc:{3 * PIECE + 5}", (), {}) == one


def test_a_part_of_a_text_begins_where_it_is_cut() -> None:
    """What goes on behind a cut prompt has its tokens, and an answer's are its own."""
    spelling = Spelling(2000, words=WORDS)
    whole, start = (spelling.tokens(f"doc:{count}", (), {}) for count in (40, 21))
    assert whole is not None and start == whole[:21]
    assert spelling.tokens("doc:21 @a:2", ["a"], {"a": [7, 8, 9]}) == [*whole[:21], 7, 8]


def spec(tokens: Callable[[Mapping[str, str]], Callable[[str], list[int]]]) -> EngineSpec:
    """Return the engine `sample` as one with a checkpoint."""
    kind = parse("sample").kind
    assert isinstance(kind.answers_level, AnswersLevel)
    level = replace(kind.answers_level, texts=Texts(tokens, configurations()[0]))
    opened = kind.open

    def plain(header: object, options: Mapping[str, str]) -> object:
        named = {name: value for name, value in options.items() if name != "checkpoint"}
        return opened(header, named)  # type: ignore[arg-type]

    kind = replace(kind, answers_level=level, open=plain)  # type: ignore[arg-type]
    return EngineSpec(kind, {"checkpoint": "DIR"}, "sample")


def by_word(_: Mapping[str, str]) -> Callable[[str], list[int]]:
    return lambda text: [zlib.crc32(word.encode()) % VOCABULARY for word in text.split()]


def test_a_run_asks_the_text_of_a_checkpoint() -> None:
    """Every 16 tokens of its prompts lie together in the problems' contexts."""
    words = words_of(spec(by_word), VOCABULARY)
    header = write(configurations()[0].shape("answers"), "idle", 0).header
    trace = Trace(header, list[Op]([Submit("a", "doc:40", generate=2), Finish("a")]))
    result = runs(trace, spec(by_word))
    (asked,) = [event for event in result.history.events if isinstance(event, Submitted)]
    runs_of_words = {tuple(words[at : at + PIECE]) for at in range(len(words))}
    assert result.findings == [] and tuple(asked.tokens[:PIECE]) in runs_of_words


def test_without_a_tokenizer_ids_are_asked() -> None:
    def none(_: Mapping[str, str]) -> Callable[[str], list[int]]:
        raise UsageError("no tokenizer")

    assert words_of(spec(none), VOCABULARY) == () == words_of(parse("sample"), VOCABULARY)


def test_tokens_that_say_nothing_are_not_asked() -> None:
    """A tokenizer that knows no word, and one of a larger model."""
    assert words_of(spec(lambda options: lambda text: [3] * len(text)), VOCABULARY) == ()
    assert words_of(spec(by_word), VOCABULARY - 10) == ()


def test_another_model_is_no_control_of_a_checkpoint() -> None:
    controls = Controls({"uncached": {"caching": "off"}, "attention-only": {"model": "llama"}})
    assert [*controls.beside({})] == ["uncached", "attention-only"]
    assert [*controls.beside({"checkpoint": "DIR"})] == ["uncached"]
