"""What `cachewitness score` tells of a run while it goes."""

from __future__ import annotations

from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from cachewitness._util import output
from cachewitness.cli.status_line import StatusLine, left

if TYPE_CHECKING:
    from cachewitness.parity.scores.document import Document
    from cachewitness.parity.scores.gate import Noise, Rules
    from cachewitness.parity.scores.named_task import AnyTask
    from cachewitness.parity.scores.pairs import Scores


class ScoreProgress:
    """Tells a run while it goes: what it can show before it begins, how far it is, and what came
    of it.
    """

    def __init__(
        self, engine: str, task: AnyTask, rules: Rules, seed: int, *, as_json: bool
    ) -> None:
        from cachewitness.parity.scores import power_analysis, terminal
        from cachewitness.report.terminal import console, print_wrapped

        self._json = as_json
        self._rules = rules
        self._out = console()
        self._status = StatusLine(shown=not as_json, at_once=True)
        self._line = ("", 0, 0)
        self._pace = (0, monotonic())
        if not as_json:
            terminal.heading(
                engine, f"{task.name} ({task.source})", len(task.asked), seed, self._out
            )
            print_wrapped(power_analysis.before(len(task.asked), rules), self._out)

    def begins(self, arm: str, questions: int, reused: int) -> None:
        """Note the arm that begins."""
        self._line = (arm, reused, questions)
        self._pace = (reused, monotonic())
        if reused and not self._json:
            from cachewitness.report.terminal import print_wrapped

            print_wrapped(
                [
                    f"arm {arm}: {reused:,} of {questions:,} answers are kept from a run that was"
                    " cut short"
                ],
                self._out,
            )
        self.answered(0)

    def answered(self, count: int) -> None:
        """Rewrite the line that says how far the arm is."""
        arm, done, questions = self._line
        done += count
        self._line = (arm, done, questions)
        (before, began) = self._pace
        rest = (
            (questions - done) * (monotonic() - began) / (done - before) if done > before else None
        )
        self._status.tell(lambda: f"{arm}: {done:,} of {questions:,} questions{left(rest)}")

    def measured(self, cold: Scores, again: Scores | None) -> None:
        """Say what the rest can show, now that the noise floor is known."""
        from cachewitness.parity.scores import power_analysis
        from cachewitness.parity.scores.gate import noise_floor
        from cachewitness.report.terminal import print_wrapped

        if not self._json:
            self.clear()
            noise: Noise = noise_floor(cold, again, self._rules)
            print_wrapped(power_analysis.measured(noise, self._rules), self._out)

    def clear(self) -> None:
        """Wipe the line."""
        self._status.clear()

    def deliver(self, whole: Document, content: bytes, folder: Path) -> None:
        """Print the report."""
        if self._json:
            output.echo(content, nl=False)
            return
        from cachewitness.parity.scores import terminal

        terminal.print_score(whole, self._out)
        output.echo(f"kept in {folder}: report.html, report.json, answers.parquet, answers.csv")
