"""What damage costs is measured once and judged as a run of so many questions is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.score
pytest.importorskip("scipy", reason="scipy is missing: pip install 'cachewitness[score]'")

from benchmarks import sections
from benchmarks.damage_costs import (
    PLANS,
    TITLE,
    TRANSFORMERS,
    Bench,
    Row,
    fails_from,
    in_turn,
    part_of,
    rows_of,
    section,
)
from benchmarks.damage_costs_asking import Kept
from cachewitness.engines.answers import BackendError
from cachewitness.parity.likelihood.asking import Served, prove
from cachewitness.parity.likelihood.measuring import HIT, Asker, Measured
from cachewitness.parity.likelihood.questions import questions
from cachewitness.parity.likelihood.verdict import Rules, judge
from cachewitness.parity.scores import tasks
from suites.support.likelihood_double import Double


class Quiet:
    """Hears and says nothing."""

    def begins(self, arm: str, requests: int) -> None:
        pass

    def asked(self) -> None:
        pass


def measured(double: Double, limit: int) -> Measured:
    server = double.served()
    asked = questions(tasks.problems(limit), server.tokens)
    manner = prove(server, None, asked[0].tokens)
    return Asker(server, None, None, manner, PLANS[TRANSFORMERS], Quiet()).run(asked, [HIT])


@pytest.mark.parametrize("fault", ["", "stale window"])
def test_the_first_questions_are_judged_as_a_run_that_asks_no_more(fault: str) -> None:
    whole = measured(Double(fault), 32)
    (expected,) = judge(measured(Double(fault), 16), Rules())
    (found,) = judge(part_of(whole, in_turn(whole.questions)[:16]), Rules())
    assert (found.verdict, found.counted, found.prefixes) == (expected.verdict, 32, 8)
    assert found.size is not None and expected.size is not None
    assert found.size.change == pytest.approx(expected.size.change)
    assert found.p_adjusted == pytest.approx(expected.p_adjusted)


def test_a_damage_fails_from_a_number_on_and_a_sound_cache_from_none() -> None:
    damaged = measured(Double("foreign prefix"), 16)
    fewest = fails_from(damaged, HIT)
    order = in_turn(damaged.questions)
    verdicts = [judge(part_of(damaged, order[:n]), Rules())[0].verdict for n in range(1, 17)]
    assert 1 < fewest <= 16
    assert verdicts[fewest - 2] != "fail" and set(verdicts[fewest - 1 :]) == {"fail"}
    assert fails_from(measured(Double(), 16), HIT) == 0


def test_what_was_answered_is_not_asked_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path, tasks.problems(16), PLANS[TRANSFORMERS])

    def row(double: Double | None) -> Row:
        def opened() -> Any:
            assert double is not None
            return double.served()

        cold = Kept(tmp_path / "cold.json", opened, cold=True)
        return bench.row("here", "none", HIT, opened, cold)

    first = row(Double("foreign prefix"))
    assert row(None) == first
    assert first.judged.verdict == "fail"


def test_a_row_that_was_not_answered_to_its_end_is_none(tmp_path: Path) -> None:
    double = Double()
    asked = 0

    def post(path: str, body: Any, what: str) -> Any:
        nonlocal asked
        asked += path != "/tokenize"
        if asked > 50:
            raise BackendError("gone")
        return double.post(path, dict(body))

    bench = Bench(tmp_path, tasks.problems(16), PLANS[TRANSFORMERS])
    cold = Kept(tmp_path / "cold.json", Double().served, cold=True)
    with pytest.raises(BackendError, match="here: none: gone"):
        bench.row("here", "none", HIT, lambda: Served("http://double", "double", post), cold)
    assert not (tmp_path / "here").exists()


def test_an_answer_is_kept_by_its_place_where_a_cache_may_change_it(tmp_path: Path) -> None:
    double = Double()
    prompt = [*range(40)]
    kept = Kept(tmp_path / "hit.json", double.served)
    restored = [kept.ask(prompt, 1, "a prompt", cache_salt=salt).restored for salt in "ab"]
    assert restored == [0, 39]
    assert not (tmp_path / "hit.json").exists()  # half of a cache's answers are none
    cold = Kept(tmp_path / "cold.json", double.served, cold=True)
    asked = len(double.bodies)
    for salt in "ab":
        cold.ask(prompt, 1, "a prompt", cache_salt=salt, cache_prompt=False)
    assert len(double.bodies) == asked + 1
    assert (tmp_path / "cold.json").exists()


def test_a_page_keeps_the_rows_of_engines_that_are_not_measured(tmp_path: Path) -> None:
    bench = Bench(tmp_path, tasks.problems(16), PLANS[TRANSFORMERS])

    def rows(*named: tuple[str, str]) -> Iterator[Row]:
        for damage, fault in named:
            cold = Kept(tmp_path / "cold.json", Double().served, cold=True)
            yield bench.row("here", damage, HIT, Double(fault).served, cold)

    page = tmp_path / "page.md"
    row = "| another prefix | there | 0.1 |"
    gone = "| none | here | 0.2 |"
    page.write_text(f"# P\n\n{TITLE}\n\n{row}\n{gone}\n\n## Else\n\n| none | there | 0.3 |\n")
    first = {"here": lambda: rows(("none", ""), ("rounded", ""), ("another", "foreign prefix"))}
    lines = rows_of(first, ("there", "here"), page, TITLE)
    assert lines[0] == row
    assert [line.split(" | ")[0] for line in lines[1:]] == ["| none", "| rounded", "| another"]
    assert [line.endswith("| fail |") for line in lines[1:]] == [False, False, True]
    assert rows_of({}, ("there", "here"), None, TITLE) == []
    sections.put(page, section(lines, 16))
    assert page.read_text().count("| here |") == 3 and gone not in page.read_text()
    assert "## Else" in page.read_text()


def test_values_are_rounded_as_blocks_of_llama_cpp_are() -> None:
    """The steps are those of gguf's `quantize`, worked out by hand."""
    torch = pytest.importorskip("torch", reason="torch is missing: pip install 'cachewitness[toy]'")
    pytest.importorskip("transformers", reason="transformers is missing")
    from benchmarks.damage_costs_faults import q4_0, q8_0

    block = torch.zeros(1, 1, 1, 32)
    block[..., 0], block[..., 1], block[..., 2] = -8.0, 3.4, 7.9
    assert q4_0(block)[0, 0, 0, :4].tolist() == [-8.0, 3.0, 7.0, 0.0]  # 8 has no place
    block[..., 0] = 127.0
    assert q8_0(block)[0, 0, 0, :4].tolist() == [127.0, 3.0, 8.0, 0.0]


def test_states_are_damaged_as_the_name_says() -> None:
    """A cache's states are ones and its keys twos, those of the other one threes and fours."""
    torch = pytest.importorskip("torch", reason="torch is missing: pip install 'cachewitness[toy]'")
    pytest.importorskip("transformers", reason="transformers is missing")
    from benchmarks.damage_costs_faults import STATES, before

    def layer(state: float, kept: float) -> Any:
        return SimpleNamespace(
            recurrent_states={0: torch.full((1, 2), state)},
            conv_states={0: torch.tensor([[state, state + 0.25]])},
            keys=torch.full((1, 2), kept),
            values=torch.full((1, 2), kept),
        )

    third = 1 + 1 / 3
    expected = {
        "none": (third, [third, third + 0.25], 2.0),
        "recurrent states in bfloat16": (1.3359375, [third, third + 0.25], 2.0),
        "recurrent states in fp8": (1.375, [third, third + 0.25], 2.0),
        "convolutions a token off": (third, [third + 0.25, third], 2.0),
        "recurrent states skipped": (0.0, [third, third + 0.25], 2.0),
        "all states skipped": (0.0, [0.0, 0.0], 2.0),
        "all states 32 tokens stale": (3.0, [3.0, 3.25], 2.0),
        "all states of another prefix": (3.0, [3.0, 3.25], 2.0),
        "keys and values of another prefix": (third, [third, third + 0.25], 4.0),
    }
    assert [*expected] == [*STATES]
    for name, (recurrent, convolved, kept) in expected.items():
        own = layer(third, 2.0)
        STATES[name].change(own, layer(3.0, 4.0))
        assert own.recurrent_states[0][0].tolist() == pytest.approx([recurrent] * 2), name
        assert own.conv_states[0][0].tolist() == pytest.approx(convolved), name
        assert own.keys[0].tolist() == own.values[0].tolist() == [kept] * 2, name
    assert [name for name, damage in STATES.items() if damage.stale] == [
        "all states 32 tokens stale"
    ]
    assert before([*range(40)]) == [*range(8)]
