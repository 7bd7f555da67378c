"""How mlx-lm registers: its options, its configurations, its baseline and its controls."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cachewitness import (
    AnswersLevel,
    Configuration,
    Controls,
    Engine,
    EngineKind,
    GroupSpec,
    Layout,
    OwnConfigurations,
    OwnProcess,
    Texts,
    TraceHeader,
    UsageError,
    WrittenFor,
)
from cachewitness.engines.answering import (
    checkpoint_of,
    chosen,
    chunk_of,
    full_and_recurrent,
    named_checkpoint,
    needs,
    takes,
)
from cachewitness.engines.known_findings import KnownFindings, by_release
from cachewitness.systems.mlx_lm.architectures import ARCHITECTURES, CONTROL

NAME, INSTALL = "mlx-lm", "pip install 'cachewitness[mlx]'"
SLOTS = ("4", "3", "2", "1")
"""So many requests are computed together: the server's --prompt-concurrency and
--decode-concurrency."""
CHUNK = 2048
"""Tokens of a prompt in a step if a trace does not limit them: what the server's
--prefill-step-size is."""
LONG = 512
"""Tokens of a system's part where real text is asked: less than a prefix that prompts share."""
SHRINKING = 250
"""Traces that are tried in search of a smaller one."""


def open_engine(header: TraceHeader, options: Mapping[str, str]) -> Engine:
    """Open the server's loop for a trace.

    Raises EngineMissing without mlx-lm, UsageError for what the engine does not take.
    """
    checkpoint = checkpoint_of(NAME, options)
    model = checkpoint or chosen(NAME, options, "model", ARCHITECTURES)
    caching = chosen(NAME, options, "caching", ("on", "off")) == "on"
    slots = int(chosen(NAME, options, "concurrency", SLOTS))
    takes(NAME, header, ("chunk", "files"))
    chunk = chunk_of(NAME, header, CHUNK)
    if type(files := header.options.get("files", False)) is not bool:
        raise UsageError(f"--engine {NAME}: files is true or false, not {files!r}")
    segment = full_and_recurrent(NAME, header, "the length of a system's part")
    needs(NAME, ("mlx", "mlx_lm"), INSTALL)
    from cachewitness.systems.mlx_lm.engine import MlxEngine

    return MlxEngine(
        header,
        model,
        caching=caching,
        chunk=chunk,
        segment=segment,
        slots=slots,
        salts=bool(checkpoint),
        files=files,
    )


def tokens_of(options: Mapping[str, str]) -> Callable[[str], list[int]]:
    """Return what makes a text token ids, by the tokenizer beside a checkpoint.

    Raises UsageError for a model without a tokenizer, EngineMissing without mlx-lm.
    """
    checkpoint = named_checkpoint(NAME, options)
    needs(NAME, ("mlx", "mlx_lm"), INSTALL)
    from cachewitness.systems.mlx_lm.server import tokenizer

    return tokenizer(checkpoint)


def configurations() -> list[Configuration]:
    """Return what a run takes: a short system's part; and a longer one, with prompts cut into
    chunks, and caches from files.
    """
    return [
        Configuration(_layout(16), {}, ""),
        Configuration(_layout(48), {"chunk": 23, "files": True}, ""),
    ]


def _layout(system: int) -> Layout:
    groups = [GroupSpec("full", 16), GroupSpec("recurrent", system)]
    story = (
        f"a cache is kept behind the first {system} tokens of a prompt, before its last, and behind"
        " the answer"
    )
    return Layout(f"mlx-{system}", groups, story, "mlx-lm 0.32 server.py, _generate")


ENGINE = EngineKind(
    name=NAME,
    summary="the installed mlx-lm's continuous batching and prompt cache on tiny hybrid models",
    levels=("answers",),
    open=open_engine,
    options={
        "mutant": "a seeded fault of its own (docs/systems/mlx_lm-notes.md)",
        "model": f"the architecture: {', '.join(ARCHITECTURES)}; default: the first",
        "checkpoint": "instead of a model: a folder that mlx-lm reads",
        "concurrency": "requests that are computed together, 1 to 4 (default)",
        "caching": "on (default), or off: the uncached twin",
    },
    policies=None,
    replays=False,
    configurations=OwnConfigurations(lambda options: configurations()),
    answers_level=AnswersLevel(
        uncached={"caching": "off"},
        shrinking=SHRINKING,
        texts=Texts(tokens_of, Configuration(_layout(LONG), {}, "")),
    ),
    controls=Controls({"uncached": {"caching": "off"}, "attention-only": {"model": CONTROL}}),
    process=OwnProcess(imports=("cachewitness.systems.mlx_lm.engine",)),
    written_for=WrittenFor("mlx-lm", "mlx-lm", "0.32", "0.32"),
    known=KnownFindings(by_release({"0.32": "mlx-lm-0.32.txt"})),
)
