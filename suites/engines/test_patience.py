"""How long an operation may take."""

from __future__ import annotations

from cachewitness.core.trace_format import Extend, Finish, Step, Submit
from cachewitness.engines.patience import LONG, Patience


def test_an_operation_has_the_deadline_whatever_short_prompts_came() -> None:
    patience = Patience(60)
    short = [Submit("a", "x:70 y:5"), Step(), Submit("b", f"x:{LONG}"), Step(), Finish("a")]
    assert {patience.seconds(op) for op in short} == {60}


def test_a_long_prompt_has_longer_from_then_on() -> None:
    patience = Patience(60)
    assert patience.seconds(Submit("a", f"x:{2 * LONG} y:{2 * LONG}")) == 240
    assert patience.seconds(Step()) == patience.seconds(Submit("b", "x:9")) == 240


def test_a_session_is_as_long_as_all_its_inputs() -> None:
    patience = Patience(10)
    assert patience.seconds(Submit("a", f"x:{LONG}", session=True)) == 10
    assert patience.seconds(Submit("b", f"x:{LONG}", session=True)) == 10
    assert patience.seconds(Extend("a", f"y:{LONG}", 1)) == 20
    assert patience.seconds(Submit("a", "x:9")) == 20
