"""The worker's side of drafts in flight: what fell, and what was guessed."""

from __future__ import annotations

from cachewitness.systems.vllm.drafts import Flight, Flights


def test_what_falls_moves_the_later_runs_until_the_request_was_admitted_anew() -> None:
    """Two steps were scheduled behind three drafts; one draft stood, so both start two tokens
    earlier.
    """
    flights = Flights()
    for start, admitted in ((10, False), (14, False), (18, False), (0, True), (5, False)):
        flights.begin({"r": Flight((start, start + 4), [7, 8, 9], [], admitted=admitted)})
    assert flights.awaited("r") == 20
    flights.run_oldest()
    flights.fall("r", 2)
    assert [flights.run_oldest()["r"].fell for _ in range(4)] == [2, 2, 0, 0]


def test_a_run_verifies_what_was_guessed_when_its_request_ran_last() -> None:
    """Fewer of them if fewer have a place, and none right after it came back."""
    flights = Flights()
    for admitted in (False, True):
        flights.begin({"r": Flight((8, 11), [0, 0], [], admitted=admitted)})
    flights.guess({"r": [5, 6, 7], "other": [1]})
    first = flights.run_oldest()["r"]
    second = flights.run_oldest()["r"]
    assert (first.drafts, second.drafts) == ([5, 6], [0, 0])
    assert first.known == 9
