"""`cachewitness score --likelihood`: the log-probabilities of what comes next, cold against cached,
or of two servers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cachewitness._util import output
from cachewitness.cli.named_task import is_named, load_named, warn

if TYPE_CHECKING:
    from cachewitness.parity.likelihood.asking import Served, Subject
    from cachewitness.parity.likelihood.choices import Choices
    from cachewitness.parity.likelihood.measuring import Plan
    from cachewitness.parity.likelihood.questions import Question
    from cachewitness.parity.scores.named_task import AnyTask

LIMIT = 32
"""Questions that are asked unless --limit says otherwise."""
CONTINUATIONS = "continuations"
ELSEWHERE = (
    *("policy", "release", "concurrent", "random_shots", "max_tokens", "tokens"),
    *("bit_exact", "floor", "device", "dtype", "checkpoint", "jobs", "seed"),
    *("expected", "strict_expected"),
)
"""Options of `score` that mean nothing for likelihoods."""
OF_SERVERS = ("cold_url", "against", "model", "key")
"""Options of likelihoods that mean nothing for engines."""
OF_TASKS = ("task", "data", "gsm8k", "shots", "shots_from")
"""Options that mean nothing for texts."""
OWN = ("against", "positions", "noise", "ask", "texts")
"""Options that mean nothing without --likelihood."""


def likelihood_options(command: Any) -> Any:
    """Add the options of --likelihood to a command."""
    options: list[Callable[[Any], Any]] = [
        click.option(
            "--likelihood",
            is_flag=True,
            help=(
                "Compare the log-probabilities of what comes next, cold against cached, instead of"
                " answers: of a server (--base-url), or of an engine that knows texts (--engine"
                " transformers:checkpoint=DIR, mlx-lm:checkpoint=DIR). --margin is then in"
                " hundredths of a nat a token, --arms any of hit, replay and tier (the first two"
                " unless given), --limit 32 unless given."
            ),
        ),
        click.option(
            "--against",
            metavar="URL",
            help=(
                "With --likelihood: compare another server of the same tokens (quantised keys,"
                " other kernels) with --base-url, instead of a cache."
            ),
        ),
        click.option(
            "--positions",
            type=click.IntRange(2, 64),
            default=8,
            show_default=True,
            help="With --likelihood: the tokens of each answer that are compared.",
        ),
        click.option(
            "--noise",
            type=click.IntRange(min=0),
            default=2,
            show_default=True,
            help=(
                "With --likelihood: the positions of each answer that are asked cold once more, in"
                " other batches; with 0 nothing can be judged."
            ),
        ),
        click.option(
            "--texts",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help=(
                "With --likelihood: ask behind texts of your own, JSON lines with a `prefix`, which"
                " several share, and the `text` that follows it, instead of a task."
            ),
        ),
        click.option(
            "--ask",
            type=click.Choice([CONTINUATIONS, "echo", "prompt_logprobs"]),
            default=CONTINUATIONS,
            show_default=True,
            help=(
                "With --likelihood: how a cached arm is asked; echo and prompt_logprobs, lm-eval's"
                " way, are refused, since they bypass the cache."
            ),
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def refuse_without_likelihood(options: dict[str, Any]) -> None:
    """Raise UsageError for an option that belongs to --likelihood."""
    from cachewitness._util.errors import UsageError

    given = _given(OWN)
    if given:
        raise UsageError(f"{', '.join(given)}: only with --likelihood; add it")


def compare_likelihoods(options: dict[str, Any]) -> int:
    """Compare likelihoods, print and keep what came of it, and return the exit code."""
    from cachewitness.core.result import EXIT_NOTHING_CHECKED, EXIT_UNKNOWN
    from cachewitness.engines.answers import BackendError
    from cachewitness.parity.likelihood.asking import NothingRestored
    from cachewitness.parity.scores import offline

    _check(options)
    offline.prepare_statistics()
    progress = _Progress(as_json=options["as_json"])
    try:
        task = _task(options)
        with _subjects(options) as subjects:
            return _compared(options, task, progress, *subjects)
    except NothingRestored as error:
        progress.clear()
        click.echo(f"cachewitness: nothing checked: {error}", err=True)
        return EXIT_NOTHING_CHECKED
    except BackendError as error:
        progress.clear()
        click.echo(f"cachewitness: {' '.join(str(error).split())}", err=True)
        return EXIT_UNKNOWN
    finally:
        progress.clear()


def _compared(
    options: dict[str, Any],
    task: AnyTask,
    progress: _Progress,
    server: Subject,
    cold: Subject | None,
    other: Served | None,
) -> int:
    from msgspec.structs import replace

    from cachewitness.cli.options import finish
    from cachewitness.cli.report_option import drawn_or_problems
    from cachewitness.parity.likelihood import document, page, terminal
    from cachewitness.parity.likelihood.asking import check_tier, prove
    from cachewitness.parity.likelihood.measuring import AGAINST, TIER, Asker
    from cachewitness.parity.likelihood.verdict import Rules
    from cachewitness.parity.scores import answer_store
    from cachewitness.report.terminal import console
    from cachewitness.sessions.run import store

    progress.note("tokens of the prompts")
    choices, asked = _asked(task, server)
    if other is not None:
        _check_tokens(asked[0], other)
    plan = _plan(options)
    arms = [AGAINST] if other is not None else _arms(options["arms"])
    out = console()
    prefixes = len({question.prefix for question in asked})
    if not options["as_json"]:
        progress.clear()
        terminal.heading(server.name, len(asked), prefixes, _requests(asked, plan, arms), out)
    progress.note("how a request is asked cold")
    manner = prove(server, cold, asked[0].tokens)
    if TIER in arms:
        check_tier(server, manner)
    others = [one.url for one in (cold, other) if one]
    by_itself = choices.by_itself(asked[0], others) if choices else None
    progress.clear()
    warn(by_itself.traps if by_itself else ())
    settings = _settings(options, task, manner.way, plan)
    folder = answer_store.folder_of(
        options["out"] or answer_store.DEFAULT_FOLDER, server.name, settings
    )
    found = Asker(server, cold, other, manner, plan, progress).run(asked, arms)
    progress.clear()
    rules = Rules(margin=options["margin"] / 100, min_share=plan.min_share)
    whole = document.document(server.name, other.name if other else "", found, rules, settings)
    if choices and by_itself:
        whole = replace(whole, lm_eval=choices.scored(by_itself, found))
    content = document.render(whole)
    if options["as_json"]:
        output.echo(content, nl=False)
    else:
        terminal.print_likelihood(whole, out)
        output.echo(f"kept in {folder}: report.html, report.json")
    pages, problems = drawn_or_problems(folder / store.PAGE, lambda: page.of_likelihood(whole))
    made = {folder / answer_store.REPORT: content, **pages}
    return finish(whole.exit_code, made, problems, quiet=True)


class _Progress:
    """Says how far it is, on one line."""

    def __init__(self, *, as_json: bool) -> None:
        from cachewitness.cli.status_line import StatusLine

        self._status = StatusLine(shown=not as_json, anywhere=True, at_once=True, every=30.0)
        self._arm = ("", 0, 0)
        self._began = 0.0

    def note(self, what: str) -> None:
        """Say what is done in front of the arms."""
        self._status.note(what)

    def begins(self, arm: str, requests: int) -> None:
        """Note the arm that begins."""
        from time import monotonic

        self._arm = (arm, 0, requests)
        self._began = monotonic()
        self._tell()

    def asked(self) -> None:
        """Note a request that was answered."""
        arm, done, requests = self._arm
        self._arm = (arm, done + 1, requests)
        self._tell()

    def clear(self) -> None:
        """Wipe the line."""
        self._status.clear()

    def _tell(self) -> None:
        from time import monotonic

        from cachewitness.cli.status_line import left

        arm, done, requests = self._arm
        rest = (requests - done) * (monotonic() - self._began) / done if done else None
        self._status.tell(lambda: f"{arm}: {done:,} of {requests:,} requests{left(rest)}")


def _check(options: dict[str, Any]) -> None:
    """Raise UsageError for options that do not fit --likelihood."""
    from cachewitness._util.errors import UsageError
    from cachewitness.parity.likelihood.asking import BYPASS

    if options["ask"] != CONTINUATIONS:
        raise UsageError(BYPASS.format(name=options["ask"]))
    engine = bool(_given(("engine",)))
    if bool(options["base_url"]) == engine:
        raise UsageError(
            "--likelihood: asks a server, --base-url http://HOST:PORT, or an engine, --engine"
            " transformers:checkpoint=DIR; give one of them"
        )
    if engine and (others := _given(OF_SERVERS)):
        raise UsageError(f"--engine: is no server; leave out {', '.join(others)}")
    if engine and is_named(options):
        raise UsageError(
            f"--task {options['task']}: an engine chooses its own tokens, so the continuations of a"
            " task cannot be asked of it; ask a server, or --task problems or gsm8k"
        )
    given = _given(ELSEWHERE)
    if given:
        raise UsageError(f"--likelihood: scores no answers; leave out {', '.join(given)}")
    if options["against"] and options["arms"]:
        raise UsageError("--arms: two servers are compared by the one arm `against`; leave it out")


def _given(names: tuple[str, ...]) -> list[str]:
    """Return those options, as they are written, that the user gave."""
    from click.core import ParameterSource

    context = click.get_current_context()
    return [
        f"--{name.replace('_', '-')}"
        for name in names
        if context.get_parameter_source(name) not in (ParameterSource.DEFAULT, None)
    ]


def _task(options: dict[str, Any]) -> AnyTask:
    """Return the questions: texts, or a task's; gsm8k's and those of lm-eval's tasks with examples
    for every prefix.
    """
    from cachewitness._util.errors import UsageError
    from cachewitness.parity.likelihood.questions import PREFIXES
    from cachewitness.parity.scores import tasks

    limit = options["limit"] or LIMIT
    if options["texts"]:
        if others := _given(OF_TASKS):
            raise UsageError(
                f"--texts: the lines of the file are asked, and no task; leave out"
                f" {', '.join(others)}"
            )
        return tasks.texts(options["texts"], limit)
    if is_named(options):
        return load_named(options, PREFIXES, limit)
    name = options["task"] or ("gsm8k" if options["gsm8k"] else "problems")
    if name == "problems":
        if options["gsm8k"]:
            raise UsageError("--gsm8k: its questions are asked with --task gsm8k, not problems")
        return tasks.problems(limit)
    if not options["gsm8k"]:
        raise UsageError("--task gsm8k: say where its questions are: --gsm8k FILE, or --gsm8k hub")
    shots = options["shots"] * PREFIXES
    return tasks.gsm8k(options["gsm8k"], limit=limit, shots=shots, shots_from=options["shots_from"])


def _asked(task: AnyTask, server: Subject) -> tuple[Choices | None, list[Question]]:
    """Return the questions, with lm-eval's side of them; a task of this package's needs none."""
    from cachewitness.parity.likelihood.asking import Served
    from cachewitness.parity.likelihood.questions import questions
    from cachewitness.parity.scores.tasks import Task

    if isinstance(task, Task):
        return None, questions(task, server.tokens)
    from cachewitness.parity.likelihood.choices import Choices

    assert isinstance(server, Served)
    choices = Choices(task, server)
    return choices, choices.questions()


@contextmanager
def _subjects(
    options: dict[str, Any],
) -> Iterator[tuple[Subject, Subject | None, Served | None]]:
    """Give who is asked, who is asked cold, and which server is compared."""
    if options["base_url"]:
        server = _named(options, "base_url", "--base-url", options["model"])
        assert server is not None
        cold = _named(options, "cold_url", "--cold-url", server.model)
        yield server, cold, _named(options, "against", "--against", "")
        return
    from dataclasses import replace

    from cachewitness.cli.options import Isolate, engine_of
    from cachewitness.parity.likelihood.of_engine import opened

    spec = engine_of(options["engine"], isolate=Isolate())
    if spec.isolation is not None:
        spec = replace(spec, isolation=replace(spec.isolation, deadline=options["timeout"]))
    with opened(spec) as (engine, twin):
        yield engine, twin, None


def _named(options: dict[str, Any], name: str, option: str, model: str) -> Served | None:
    """Return the server that the user named under an option, None without it."""
    from cachewitness.parity.likelihood.asking import Served
    from cachewitness.parity.scores.remote import key_of

    url = options[name]
    secret = key_of(options["key"])
    return Served.at(url, model, option, options["timeout"], secret) if url else None


def _check_tokens(question: Question, other: Served) -> None:
    """Raise UsageError if the other server has other tokens."""
    from cachewitness._util.errors import UsageError

    if other.tokens(question.prompt) != question.tokens:
        raise UsageError("--against: that server makes other tokens of a prompt: another model")


def _arms(names: str | None) -> list[str]:
    """Return the arms of a list. Raises UsageError for one that likelihoods do not have."""
    from cachewitness._util.errors import UsageError
    from cachewitness.parity.likelihood.measuring import ARMS, COLD, OFF, TIER

    known = (*ARMS, TIER)
    chosen = [name.strip() for name in (names or ",".join(ARMS)).split(",") if name.strip()]
    unknown = [name for name in chosen if name not in (*known, *COLD)]
    if unknown or not set(chosen) & {*known}:
        raise UsageError(
            f"--arms: {names!r}: --likelihood compares any of {', '.join(known)} with {OFF}"
        )
    return [arm for arm in known if arm in chosen]


def _plan(options: dict[str, Any]) -> Plan:
    from cachewitness.parity.likelihood.measuring import Plan

    return Plan(options["positions"], options["noise"], options["min_share"] / 100)


def _requests(asked: list[Question], plan: Plan, arms: list[str]) -> int:
    """Return how many requests are counted."""
    control = len({question.prefix for question in asked}) if plan.noise else 0
    total = control
    for question in asked:
        given = len(question.nodes(plan.positions))
        positions = given or plan.positions
        noise = min(plan.noise, given or plan.positions - 1)
        total += (given or 1) + noise + positions * len(arms)
    return total


def _settings(options: dict[str, Any], task: AnyTask, way: str, plan: Plan) -> dict[str, Any]:
    """Return what the measurement depends on, by which its folder is named."""
    return {
        "likelihood": True,
        "server": options["base_url"] or options["engine"],
        "cold_url": options["cold_url"] or "",
        "against": options["against"] or "",
        "cold_by": way,
        "task": task.name,
        "source": task.source,
        "rows": task.digest,
        "limit": task.limit or options["limit"] or LIMIT,
        "shots": task.num_shots,
        "positions": plan.positions,
        "noise": plan.noise,
    }
