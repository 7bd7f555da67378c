"""How OpenVINO GenAI registers: its options, its configurations, its baseline and its controls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from cachewitness import (
    AnswersLevel,
    Configuration,
    Controls,
    Engine,
    EngineKind,
    EngineMissing,
    GroupSpec,
    Layout,
    OwnConfigurations,
    OwnProcess,
    Texts,
    TraceHeader,
    WrittenFor,
)
from cachewitness.engines import policy as policies
from cachewitness.engines.answering import (
    checkpoint_of,
    chosen,
    loading,
    model_folder,
    named_checkpoint,
    needs,
)
from cachewitness.engines.kind import Answer
from cachewitness.engines.known_findings import KnownFindings, by_release
from cachewitness.systems.openvino_genai.capacity import derives
from cachewitness.systems.openvino_genai.settings import (
    KV_BLOCK,
    MAX_SEQUENCES,
    MODEL,
    MULTIPLIER,
    NAME,
    POOLS,
    SPLIT_FUSE,
    STATES,
    settings_of,
)
from cachewitness.workloads.avoided import CHUNK

MODELS = "CACHEWITNESS_OPENVINO_MODELS"
"""The environment variable that names the folder of the models."""
INSTALL, MODELS_MADE = "pip install 'cachewitness[openvino]'", "ci/stage_openvino.sh"
HYBRID = ("qwen3-next", "lfm2")
ATTENTION = "llama"
SIZED = ("qwen3-next-wide", "llama-narrow")
"""Models whose blocks weigh what the published vectors of `sizing` say: a hybrid one, and one of
attention alone."""
ATTENTION_ALONE = (ATTENTION, "llama-narrow")
KNOWN = (*HYBRID, ATTENTION, *SIZED)
POLICY = "openvino_genai"
SETTINGS = ("usual", "more")
SHRINKING = 250
"""Traces that are tried in search of a smaller one: each opens a pipeline, which takes a third of a
second."""


def open_engine(header: TraceHeader, options: Mapping[str, str]) -> Engine:
    """Open a pipeline for a trace.

    Raises EngineMissing without the package or the model, UsageError for what the engine does not
    take.
    """
    own = checkpoint_of(NAME, options)
    model = chosen(NAME, options, "model", KNOWN)
    caching = chosen(NAME, options, "caching", ("on", "off")) == "on"
    chosen(NAME, options, "settings", SETTINGS)
    settings = settings_of(header)
    path = Path(own) if own else _folder(model, options)
    try:
        from cachewitness.systems.openvino_genai.pipeline import Loaded, Pipeline, checkpoint
    except ImportError as error:
        raise EngineMissing(
            f"--engine {NAME}: needs openvino-genai ({error}); {INSTALL}", INSTALL
        ) from None
    if own:
        with loading(NAME, path):
            return Pipeline(header, checkpoint(path), settings, caching=caching)
    made = Loaded(path, hybrid=model not in ATTENTION_ALONE)
    return Pipeline(header, made, settings, caching=caching)


def tokens_of(options: Mapping[str, str]) -> Callable[[str], list[int]]:
    """Return what makes a text token ids, by the tokenizer of a checkpoint.

    Raises UsageError for a model without a tokenizer, EngineMissing without OpenVINO GenAI.
    """
    named = named_checkpoint(NAME, options)
    needs(NAME, ["openvino_genai"], INSTALL)
    from cachewitness.systems.openvino_genai.pipeline import tokenizer

    return tokenizer(named)


def _folder(model: str, options: Mapping[str, str]) -> Path:
    return model_folder(NAME, model, options, MODELS, MODEL, MODELS_MADE)


def answer_vectors(policy: str, options: Mapping[str, str]) -> Mapping[str, Answer]:
    """Return how the engine answers vectors: by what a pipeline derives from a configuration.
    Raises EngineMissing.
    """
    asked = policies.get(policy).answers
    if policy != POLICY or asked is None:
        return {}
    path = _folder(chosen(NAME, options, "model", KNOWN), options)
    needs(NAME, ["openvino_genai"], INSTALL)
    answers: Mapping[str, Answer] = asked().derived(derives(path))
    return answers


def configurations() -> list[Configuration]:
    """Return what a run usually takes: snapshots at every block, prompts cut into chunks, and
    longer intervals.
    """
    return [
        Configuration(_layout(1), {}, ""),
        Configuration(_layout(2), {CHUNK: 100}, ""),
        Configuration(_layout(4), {CHUNK: 256}, ""),
    ]


def further() -> list[Configuration]:
    """Return what the option `settings=more` takes: what OpenVINO GenAI can be set to beside
    that, each in turn.
    """
    return [
        Configuration(_layout(1), {SPLIT_FUSE: False}, ""),
        Configuration(_layout(2), {SPLIT_FUSE: False, MAX_SEQUENCES: 2}, ""),
        Configuration(_layout(2), {CHUNK: 1}, ""),
        Configuration(_layout(8), {MULTIPLIER: "unset", CHUNK: 8192}, ""),
        Configuration(_layout(8), {}, ""),
        Configuration(_layout(1), {STATES: 24}, ""),
        Configuration(_layout(2), {POOLS: "dynamic"}, ""),
    ]


def chosen_configurations(options: Mapping[str, str]) -> list[Configuration]:
    """Return what a run takes by the option `settings` of the engine's name."""
    return further() if options.get("settings") == SETTINGS[1] else configurations()


def _layout(multiplier: int) -> Layout:
    groups = [GroupSpec("full", KV_BLOCK), GroupSpec("recurrent", KV_BLOCK * multiplier)]
    story = f"KV blocks of {KV_BLOCK} tokens, a linear-attention block each {KV_BLOCK * multiplier}"
    return Layout(
        f"openvino-m{multiplier}",
        groups,
        story,
        "openvino.genai scheduler_config.hpp, cache_interval_multiplier",
    )


ENGINE = EngineKind(
    name=NAME,
    summary="the installed OpenVINO GenAI's continuous batching on tiny hybrid models",
    levels=("answers",),
    open=open_engine,
    options={
        "model": (
            f"{', '.join(HYBRID)} (default: the first), {ATTENTION}: attention alone; for vectors"
            f" {' or '.join(SIZED)}"
        ),
        "models": f"the folder of the models; default: {MODELS}",
        "mutant": "a seeded fault of its own (docs/systems/openvino_genai-notes.md)",
        "checkpoint": "instead of a model: a folder that optimum exported (ci/openvino_folder.py)",
        "caching": "on (default), or off: the uncached twin",
        "settings": (
            "usual (default), or more: a run takes the further configurations of"
            " docs/systems/openvino_genai-notes.md instead"
        ),
    },
    policies=None,
    replays=False,
    answers=answer_vectors,
    configurations=OwnConfigurations(chosen_configurations),
    answers_level=AnswersLevel(
        uncached={"caching": "off"},
        shrinking=SHRINKING,
        texts=Texts(tokens_of, Configuration(_layout(1), {}, "")),
    ),
    controls=Controls({"uncached": {"caching": "off"}, "attention-only": {"model": ATTENTION}}),
    process=OwnProcess(),
    written_for=WrittenFor("OpenVINO GenAI", "openvino-genai", "2026.4", "2026.4", (MODELS,)),
    known=KnownFindings(by_release({"2026.4": "openvino-genai-2026.4.txt"})),
)
