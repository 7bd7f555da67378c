"""`cachewitness score`: the same questions with and without a cache, through lm-eval, judged in
pairs.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from cachewitness.cli.json_option import json_option
from cachewitness.cli.likelihood import (
    compare_likelihoods,
    likelihood_options,
    refuse_without_likelihood,
)
from cachewitness.cli.named_task import generating, is_named
from cachewitness.cli.options import (
    Finite,
    expectations_of,
    expected_options,
    finish,
    policy_option,
    release_option,
)
from cachewitness.cli.report_option import drawn_or_problems
from cachewitness.cli.score_report import ScoreProgress

if TYPE_CHECKING:
    from collections.abc import Callable

    from cachewitness.parity.scores.arm_run import Open
    from cachewitness.parity.scores.asking import Asking
    from cachewitness.parity.scores.document import Document
    from cachewitness.parity.scores.gate import Tokens
    from cachewitness.parity.scores.named_task import AnyTask
    from cachewitness.parity.scores.tasks import Task

_FILE = click.Path(path_type=Path)


@click.command()
@click.option(
    "--engine",
    default="toy",
    show_default=True,
    metavar="NAME[:KEY=VALUE,…]",
    help="The engine that answers the questions.",
)
@policy_option
@release_option
@click.option(
    "--base-url",
    metavar="URL",
    help="Ask an OpenAI-compatible server instead of an engine: http://HOST:PORT.",
)
@click.option(
    "--cold-url",
    metavar="URL",
    help="A second server of the same model without prefix caching, for the cold arms.",
)
@click.option(
    "--model",
    default="",
    metavar="NAME",
    help="The server's model; default: the first that it lists.",
)
@click.option(
    "--concurrent",
    type=click.IntRange(min=1),
    default=16,
    show_default=True,
    help="The number of requests that a server gets at a time.",
)
@click.option(
    "--key",
    default="",
    metavar="VARIABLE",
    help=(
        "The variable of the environment that holds the servers' key, which is sent as a bearer"
        " token to each of them."
    ),
)
@click.option(
    "--timeout",
    type=click.IntRange(min=1),
    default=300,
    show_default=True,
    metavar="S",
    help="The seconds after which a server has not answered a request.",
)
@click.option(
    "--task",
    metavar="NAME",
    help=(
        "The questions to ask: problems, gsm8k, or a task of lm-eval by its name; default:"
        " problems, or gsm8k if --gsm8k is given."
    ),
)
@click.option(
    "--data",
    type=_FILE,
    metavar="DIR",
    help=(
        "A folder with the documents of lm-eval's task (test.jsonl, train.parquet, …), or with its"
        " definition as well (NAME.yaml); default: from where lm-eval has them, the hub."
    ),
)
@click.option(
    "--gsm8k", metavar="FILE|hub", help="gsm8k's questions: a file of JSON lines, or `hub`."
)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    metavar="N",
    help="The number of questions, taken from all tenants alike; default: all.",
)
@click.option(
    "--shots",
    type=click.IntRange(min=0),
    default=5,
    show_default=True,
    help="The number of examples in front of the questions of gsm8k, or of lm-eval's task.",
)
@click.option(
    "--shots-from",
    default="",
    metavar="FILE",
    help=(
        "A file of rows for the examples; default: the first rows of --gsm8k, which are then not"
        " asked."
    ),
)
@click.option(
    "--random-shots",
    is_flag=True,
    help="Draw other examples for every question, which is gsm8k's own way.",
)
@click.option(
    "--max-tokens",
    type=click.IntRange(min=1),
    metavar="N",
    help="The longest answer in tokens; default: 64, gsm8k 256.",
)
@click.option(
    "--arms",
    metavar="LIST",
    help=(
        "The arms to run; default: off,off-again,miss,hit,replay, and tier for a policy whose"
        " prefixes lie in a second tier (lmcache). Also known: preempted, drafts, scarce, turns,"
        " turns-drafts."
    ),
)
@click.option(
    "--margin",
    type=Finite(min=0, min_open=True, max=100),
    default=1.0,
    show_default=True,
    help="The largest loss that is accepted if it cannot be excluded, in points.",
)
@click.option(
    "--tokens",
    type=click.Choice(["auto", "strict", "report"]),
    default="auto",
    show_default=True,
    help=(
        "Whether one changed token fails an arm: of an engine that declares to be bit-exact (auto),"
        " of any (strict), or of none (report), so that the score decides."
    ),
)
@click.option(
    "--bit-exact",
    is_flag=True,
    help="Declare that the engine or server answers the same every time.",
)
@click.option(
    "--floor",
    type=Finite(0, 100),
    help=(
        "A model that answers fewer questions right, cold and cached, is too weak to pass by; in"
        " points; default: 90 for a server that is asked the problems, else 10."
    ),
)
@click.option(
    "--min-share",
    type=Finite(0, 100),
    default=50.0,
    show_default=True,
    help=(
        "The least share of its prompts that a warm arm must restore, in percent; of turns, of the"
        " hits that must reach into an answer."
    ),
)
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    default="cpu",
    show_default=True,
    help="The device that the engine computes on.",
)
@click.option(
    "--dtype", default="", metavar="NAME", help="The precision; default: the checkpoint's."
)
@click.option(
    "--checkpoint", default="", metavar="DIR", help="The model; default: the engine's own."
)
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    metavar="N",
    help=(
        "The number of arms that run at a time, in processes of their own; default: one for each"
        " core, from 100 questions on. A server gets one arm after the other."
    ),
)
@click.option(
    "--out",
    type=_FILE,
    metavar="DIR",
    help="The folder that keeps runs; default: .cachewitness/score.",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="The seed of --random-shots.",
)
@likelihood_options
@expected_options
@json_option("score", otherwise="with --likelihood `schema likelihood`")
def score(**options: Any) -> int:
    """Ask an engine the same questions cold and cached, and judge whether the cache cost answers.

    Every answer is kept in .cachewitness/score as it comes; a run that was cut short goes on where
    it ended when the same command is given again. With --likelihood a server is asked for the
    log-probabilities of what comes next instead, which needs no model that answers right.
    """
    if options["likelihood"]:
        return compare_likelihoods(options)
    refuse_without_likelihood(options)
    from cachewitness.core.result import EXIT_UNKNOWN
    from cachewitness.engines import policy as policies
    from cachewitness.engines.answers import BackendError, Opening
    from cachewitness.parity.scores import arms, offline
    from cachewitness.parity.scores.gate import Rules
    from cachewitness.parity.scores.pairs import Unpaired, near_tie_of

    tensors = policies.get(options["policy"]).tensors
    tiered = tensors.tiered
    chosen = arms.named(arms.usual(tiered=tiered) if options["arms"] is None else options["arms"])
    if not tensors.keeps_answers:
        arms.refuse_turns(chosen, options["policy"])
    known = expectations_of(options["expected"], options["strict_expected"])
    engine = _engine(options)
    named = is_named(options)
    if not named:
        offline.prepare(online=options["gsm8k"] == "hub", client=bool(options["base_url"]))
    task = generating(options) if named else _task(options)
    rules = Rules(
        tiered=tiered,
        tokens=_tokens(options, engine.bit_exact),
        near_tie=near_tie_of(engine.dtype),
        margin=options["margin"] / 100,
        min_share=options["min_share"] / 100,
        primary=task.primary,
        floor=(
            task.floor(server=engine.lm is not None)
            if options["floor"] is None
            else options["floor"] / 100
        ),
    )
    opening = Opening(
        **{key: options[key] for key in ("policy", "device", "dtype", "checkpoint", "seed")}
    )
    folder, settings = _folder(engine.name, task, options)
    progress = ScoreProgress(engine.name, task, rules, options["seed"], as_json=options["as_json"])
    from cachewitness.parity.scores.arm_run import Questions
    from cachewitness.parity.scores.run import Runner
    from cachewitness.parity.scores.side_by_side import jobs_for

    nonce = _nonce() if options["base_url"] else ""
    asked = Questions(task=task, opener=engine.open, folder=folder, opening=opening, nonce=nonce)
    jobs = 1 if engine.lm or named else jobs_for(asked, chosen, options["jobs"])
    runner = Runner(asked, listener=progress, model=engine.lm, jobs=jobs)
    try:
        outcome = runner.run(chosen, rules)
    except (BackendError, Unpaired) as error:
        progress.clear()
        kept = f"what was answered is kept in {folder}, and the same command goes on from there"
        click.echo(f"cachewitness: {' '.join(str(error).split())}; {kept}", err=True)
        _debug(error)
        return EXIT_UNKNOWN
    finally:
        progress.clear()
    from cachewitness._util import files
    from cachewitness.parity.scores import answer_store, document, frames
    from cachewitness.parity.scores.expected import with_expectations

    outcome = with_expectations(outcome, task.name, known)
    whole = document.document(engine.name, outcome, rules, settings)
    content = document.render(whole)
    frames.write(outcome, engine.name, options["seed"], folder)
    files.write(folder / answer_store.REPORT, [content])
    progress.deliver(whole, content, folder)
    return _draw(whole, folder)


def _draw(whole: Document, folder: Path) -> int:
    """Write the page of the score, or say why there is none, and return the exit code."""
    from cachewitness.parity.scores import page as score_page
    from cachewitness.sessions.run import store

    return finish(
        whole.exit_code,
        *drawn_or_problems(folder / store.PAGE, lambda: score_page.of_score(whole)),
        quiet=True,
    )


def _debug(error: Exception) -> None:
    """Print the traceback of an engine that died, if the user asked for tracebacks."""
    import traceback

    if click.get_current_context().find_root().obj:
        click.echo("".join(traceback.format_exception(error)), err=True)


class _Engine(NamedTuple):
    """The engine's name, how it is opened for an arm, and lm-eval's model for it if that is not the
    in-process one.

    `dtype` is what it computes in, empty if nobody said: most servers compute in bfloat16.
    """

    name: str
    open: Open
    lm: Callable[[Asking], Any] | None = None
    bit_exact: bool = False
    dtype: str = ""


def _engine(options: dict[str, Any]) -> _Engine:
    """Return what answers. Raises UsageError for options that do not fit it."""
    from cachewitness._util.errors import UsageError
    from cachewitness.cli.options import answerer_of

    if options["base_url"]:
        from cachewitness.parity.scores.remote import Server, key_of

        if options["release"] is not None:
            raise UsageError(
                "--release: a server has the release that it is; leave it out beside --base-url"
            )
        chosen = {key: options[key] for key in ("model", "concurrent", "timeout")}
        secret = key_of(options["key"])
        server = Server(options["base_url"], options["cold_url"] or "", key=secret, **chosen)
        return _Engine(server.name, server.open, server.lm, dtype=options["dtype"] or "bfloat16")
    if options["cold_url"] or options["model"] or options["key"]:
        raise UsageError("--cold-url, --model, --key: only with a server; give --base-url")
    spec, prompts = answerer_of(options["engine"], options["policy"], options["release"])
    chosen = {key: options[key] for key in ("dtype", "device") if options[key]} | spec.options
    exact = prompts.bit_exact is not None and prompts.bit_exact(chosen)
    return _Engine(
        spec.text,
        partial(prompts.open, dict(spec.options)),
        bit_exact=exact,
        dtype=chosen.get("dtype", ""),
    )


def _tokens(options: dict[str, Any], exact: bool) -> Tokens:
    """Return whether tokens decide, as the engine is known to be exact or not; raises UsageError
    for an unused declaration.
    """
    from cachewitness._util.errors import UsageError

    if options["bit_exact"] and options["tokens"] == "report":
        raise UsageError(
            "--bit-exact: declares that tokens decide, and --tokens report that they do not; leave"
            " one out"
        )
    if options["tokens"] != "auto":
        return "strict" if options["tokens"] == "strict" else "reported"
    return "declared" if options["bit_exact"] or exact else "reported"


def _task(options: dict[str, Any]) -> Task:
    import msgspec

    from cachewitness._util.errors import UsageError
    from cachewitness.parity.scores import tasks

    name = options["task"] or ("gsm8k" if options["gsm8k"] else "problems")
    limit = options["limit"] or 0
    if name == "problems" and options["gsm8k"]:
        raise UsageError("--gsm8k: its questions are asked with --task gsm8k, not problems")
    if name == "problems":
        task = tasks.problems(limit)
    elif not options["gsm8k"]:
        raise UsageError("--task gsm8k: say where its questions are: --gsm8k FILE, or --gsm8k hub")
    else:
        chosen = {key: options[key] for key in ("shots", "random_shots", "shots_from")}
        task = tasks.gsm8k(options["gsm8k"], limit=limit, **chosen)
    return msgspec.structs.replace(task, max_tokens=options["max_tokens"] or task.max_tokens)


def _folder(engine: str, task: AnyTask, options: dict[str, Any]) -> tuple[Path, dict[str, Any]]:
    """Return the folder of the run, and everything that its answers depend on, by which it is
    named.
    """
    from cachewitness.parity.scores import answer_store
    from cachewitness.parity.scores.run import installed

    settings = {
        "engine": engine,
        "cold_url": options["cold_url"] or "",
        "task": task.name,
        "source": task.source,
        "rows": task.digest,
        "limit": task.limit,
        "shots": task.num_shots,
        "random_shots": task.random_shots,
        "max_tokens": task.max_tokens,
        "installed": installed(),
    } | {key: options[key] for key in ("policy", "device", "dtype", "checkpoint", "seed")}
    return (
        answer_store.folder_of(options["out"] or answer_store.DEFAULT_FOLDER, engine, settings),
        settings,
    )


def _nonce() -> str:
    """Return what no other run salts its requests with: a server may remember an earlier one."""
    import secrets

    return secrets.token_hex(4)
