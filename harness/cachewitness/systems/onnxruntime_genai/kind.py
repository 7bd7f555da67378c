"""How ONNX Runtime GenAI registers: its options, its configurations, its baseline and its
controls.
"""

from __future__ import annotations

from collections.abc import Mapping

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
    TraceHeader,
    WrittenFor,
)
from cachewitness.engines.answering import (
    chosen,
    chunk_of,
    full_and_recurrent,
    model_folder,
    needs,
    takes,
)
from cachewitness.engines.known_findings import KnownFindings, by_release
from cachewitness.systems.onnxruntime_genai.settings import (
    CONTROL,
    NAME,
    REWINDS,
    UNSPLIT,
    Ways,
)

MODELS = "CACHEWITNESS_ONNXRUNTIME_GENAI_MODELS"
"""The environment variable that names the folder of the models."""
INSTALL = "pip install 'cachewitness[onnxruntime-genai]'"
MODELS_MADE = "ci/stage_onnxruntime_genai.sh"
CHOICES: Mapping[str, tuple[str, ...]] = {
    "model": tuple(REWINDS),
    "caching": ("on", "off"),
    "buffer": ("shared", "grown"),
    "answer": ("computed", "left"),
}
"""What the options of the engine's name take, the default first."""
SHRINKING = 250
"""Traces that are tried in search of a smaller one."""


def open_engine(header: TraceHeader, options: Mapping[str, str]) -> Engine:
    """Open the server for a trace.

    Raises EngineMissing without the package or the model, UsageError for what the engine does not
    take.
    """
    values = {name: chosen(NAME, options, name, known) for name, known in CHOICES.items()}
    takes(NAME, header, ("chunk",))
    chunk = chunk_of(NAME, header, UNSPLIT)
    interval = full_and_recurrent(NAME, header, "where snapshots are")
    folder = model_folder(NAME, values["model"], options, MODELS, "genai_config.json", MODELS_MADE)
    needs(NAME, ("onnxruntime", "onnxruntime_genai"), INSTALL)
    from cachewitness.systems.onnxruntime_genai.engine import GenaiEngine

    ways = Ways(
        rewinds=REWINDS[values["model"]],
        interval=interval,
        chunk=chunk,
        shared=values["buffer"] == "shared",
        computed=values["answer"] == "computed",
    )
    return GenaiEngine(header, folder, ways, caching=values["caching"] == "on")


def configurations() -> list[Configuration]:
    """Return what a run takes: snapshots often; and seldom, with prompts cut into chunks."""
    return [Configuration(_layout(16), {}, ""), Configuration(_layout(48), {"chunk": 23}, "")]


def _layout(interval: int) -> Layout:
    groups = [GroupSpec("full", 16), GroupSpec("recurrent", interval)]
    story = (
        f"kept generators; of a model with states a snapshot at the last of every {interval}"
        " tokens of a prompt"
    )
    source = "ONNX Runtime GenAI 0.18, Generator.rewind_to and snapshot_state"
    return Layout(f"rewound-{interval}", groups, story, source)


_LEFT = by_release({"0.18": "onnxruntime-genai-0.18-left.txt"})
_GROWN = by_release({"0.18": "onnxruntime-genai-0.18-grown.txt"})


def _known_lists(version: str, options: Mapping[str, str]) -> tuple[str, ...]:
    """Return the lists of a release: one is about answers whose last token is left, one about
    buffers that grow.
    """
    left = _LEFT(version, options) if options.get("answer") == "left" else ()
    return left + (_GROWN(version, options) if options.get("buffer") == "grown" else ())


ENGINE = EngineKind(
    name=NAME,
    summary="the installed ONNX Runtime GenAI's generators, kept and rewound, on tiny models",
    levels=("answers",),
    open=open_engine,
    options={
        "mutant": "a seeded fault of its own (docs/systems/onnxruntime_genai.md)",
        "model": f"the architecture: {', '.join(REWINDS)}; default: the first",
        "models": f"the folder of the models; default: {MODELS}",
        "caching": "on (default), or off: the uncached twin",
        "buffer": "shared (default) by past and present keys and values, or grown with each call",
        "answer": (
            "computed (default) to its last token before its generator is kept, or left: the last"
            " token is the library's to compute"
        ),
    },
    policies=None,
    replays=False,
    configurations=OwnConfigurations(lambda options: configurations()),
    answers_level=AnswersLevel(uncached={"caching": "off"}, shrinking=SHRINKING),
    controls=Controls({"uncached": {"caching": "off"}, "attention-only": {"model": CONTROL}}),
    process=OwnProcess(imports=("cachewitness.systems.onnxruntime_genai.engine",)),
    written_for=WrittenFor("ONNX Runtime GenAI", NAME, "0.18", "0.18", (MODELS,)),
    known=KnownFindings(_known_lists),
)
