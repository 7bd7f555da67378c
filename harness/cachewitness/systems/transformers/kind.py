"""How transformers registers: its options, its configurations, its baseline and its controls."""

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
    named_checkpoint,
    needs,
    takes,
)
from cachewitness.engines.known_findings import KnownFindings, by_release
from cachewitness.systems.transformers.architectures import ARCHITECTURES, CONTROL, UNSPLIT

NAME = "transformers"
INSTALL = "pip install 'cachewitness[transformers]'"
CHOICES: Mapping[str, tuple[str, ...]] = {
    "model": tuple(ARCHITECTURES),
    "caching": ("on", "off"),
    "crop": ("on", "off", "again"),
    "feed": ("chunks", "tokens"),
}
"""What the options of the engine's name take, the default first."""
ROWS = ("one", "reordered", "selected")
"""How the row of a request is chosen among those of a batch (docs/systems/transformers-notes.md).
"""
SHRINKING = 250
"""Traces that are tried in search of a smaller one."""


def open_engine(header: TraceHeader, options: Mapping[str, str]) -> Engine:
    """Open the server for a trace.

    Raises EngineMissing without transformers or torch, UsageError for what the engine does not
    take.
    """
    values = {name: chosen(NAME, options, name, known) for name, known in CHOICES.items()}
    values["checkpoint"] = checkpoint_of(NAME, options)
    takes(NAME, header, ("chunk", "record", "static", "rows"))
    chunk = chunk_of(NAME, header, UNSPLIT)
    for name in ("record", "static"):
        if type(asked := header.options.get(name, False)) is not bool:
            raise UsageError(f"--engine {NAME}: {name} is true or false, not {asked!r}")
    if (rows := header.options.get("rows", ROWS[0])) not in ROWS:
        raise UsageError(f"--engine {NAME}: rows is one of {', '.join(ROWS)}, not {rows!r}")
    kinds = [group.kind for group in header.layout.groups]
    if kinds.count("full") != 1 or set(kinds) - {"full", "recurrent"}:
        wanted = (
            "it needs a full group, in whose blocks the pool is counted, and a recurrent one, whose"
            " blocks are the interval"
        )
        raise UsageError(f"--engine {NAME}: layout {header.layout.name} does not fit: {wanted}")
    needs(NAME, ("torch", "transformers"), INSTALL)
    from cachewitness.systems.transformers.engine import TransformersEngine

    return TransformersEngine(header, values, chunk)


def tokens_of(options: Mapping[str, str]) -> Callable[[str], list[int]]:
    """Return what makes a text token ids, by the tokenizer beside a checkpoint.

    Raises UsageError for a model without a tokenizer, EngineMissing without transformers.
    """
    checkpoint = named_checkpoint(NAME, options)
    needs(NAME, ("torch", "transformers"), INSTALL)
    from cachewitness.systems.transformers.model import tokenizer

    return tokenizer(checkpoint)


def configurations() -> list[Configuration]:
    """Return what a run takes: prefixes kept often; and seldom, with prompts cut into chunks, and
    pasts that are recorded; and often, in static caches, in one row of a batch that is reordered.
    """
    return [
        Configuration(_layout(16), {}, ""),
        Configuration(_layout(48), {"chunk": 23, "record": True}, ""),
        Configuration(_layout(16), {"chunk": 23, "static": True, "rows": "reordered"}, ""),
    ]


def _layout(interval: int) -> Layout:
    groups = [GroupSpec("full", 16), GroupSpec("recurrent", interval)]
    story = (
        f"a pool of blocks of 16 tokens; a cache is kept at every {interval} tokens of a prompt,"
        " and at its end"
    )
    return Layout(f"resumed-{interval}", groups, story, "harness/cachewitness/systems/transformers")


_LISTED = by_release({one: f"transformers-{one}.txt" for one in ("5.23", "5.24")})
_LOSE_STATES = ("mamba", "jamba", "recurrent_gemma", "nemotron_h-small-steps", "zamba2-small-steps")
"""The architectures whose state is lost where several tokens follow a cache."""


def _known_lists(version: str, options: Mapping[str, str]) -> tuple[str, ...]:
    """Return the list of a release, which is about some architectures, fed in chunks."""
    listed = options.get("model") in _LOSE_STATES and options.get("feed", "chunks") == "chunks"
    return _LISTED(version, options) if listed else ()


ENGINE = EngineKind(
    name=NAME,
    summary=(
        "the installed transformers on tiny hybrid models, resumed from copies of its own caches"
    ),
    levels=("answers",),
    open=open_engine,
    options={
        "mutant": "a seeded fault of its own (docs/systems/transformers-notes.md)",
        "model": f"the architecture: {', '.join(ARCHITECTURES)}; default: the first",
        "checkpoint": "instead of a model: a folder that transformers wrote, or FILE.gguf",
        "caching": "on (default), or off: the uncached twin",
        "crop": (
            "on (default): a longer text's cache is cropped to a shorter prefix where it can be;"
            " off; again: also twice"
        ),
        "feed": "chunks (default), or tokens: one by one behind what a cache holds",
    },
    policies=None,
    replays=False,
    configurations=OwnConfigurations(lambda options: configurations()),
    answers_level=AnswersLevel(
        uncached={"caching": "off"},
        shrinking=SHRINKING,
        # Prompts are kept at their ends; at shorter intervals they take many passes.
        texts=Texts(tokens_of, Configuration(_layout(512), {}, "")),
    ),
    controls=Controls({"uncached": {"caching": "off"}, "attention-only": {"model": CONTROL}}),
    process=OwnProcess(
        imports=(
            "cachewitness.systems.transformers.engine",
            "transformers.models.llama.modeling_llama",
        )
    ),
    written_for=WrittenFor("transformers", "transformers", "5.23", "5.24"),
    known=KnownFindings(_known_lists),
)
