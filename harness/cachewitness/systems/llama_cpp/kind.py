"""How llama.cpp registers: its options, its configurations, its baseline and its controls."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
    TraceHeader,
    UsageError,
    WrittenFor,
)
from cachewitness.core.events import Resumes
from cachewitness.engines.answering import chosen
from cachewitness.engines.known_findings import KnownFindings, by_release
from cachewitness.systems.llama_cpp.settings import BLOCK, NAME
from cachewitness.workloads.avoided import CHUNK

MODELS = "CACHEWITNESS_LLAMA_CPP_MODELS"
"""The environment variable that names the folder of the models."""
CHILD = "cachewitness.engines.isolation.serve"
"""What runs where an engine has a process of its own; elsewhere its baseline writes to the same
log, which is left unread."""
CACHING = ("on", "off", "alone")
LOG = ("followed", "unread")
INSTALL, MODELS_MADE = "pip install 'cachewitness[llama-cpp]'", "ci/stage_llama_cpp.sh"
STATES = ("qwen3-next", "qwen35", "granite-hybrid", "falcon-h1", "lfm2", "jamba", "nemotron-h")
WINDOWS = ("gemma3", "gpt-oss")
ATTENTION = "qwen3"
FILE = ".gguf"
"""How the file of a model ends."""
ALL = (*STATES, *WINDOWS, ATTENTION)
SHRINKING = 400
"""Traces that are tried in search of a smaller one."""


def open_engine(header: TraceHeader, options: Mapping[str, str]) -> Engine:
    """Open a server for a trace.

    Raises EngineMissing without the package or the model, UsageError for what the engine does not
    take.
    """
    caching = chosen(NAME, options, "caching", CACHING)
    log = chosen(NAME, options, "log", LOG)
    path, keeps = _model(options)
    try:
        from cachewitness.systems.llama_cpp.engine import LlamaCpp
    except ImportError as error:
        raise EngineMissing(
            f"--engine {NAME}: needs xllamacpp ({error}); {INSTALL}", INSTALL
        ) from None
    followed = log == "followed" and CHILD in sys.modules and keeps
    return LlamaCpp(header, path, caching, keeps, log=bool(followed))


def _model(options: Mapping[str, str]) -> tuple[Path, Resumes]:
    """Return the file of the model, and what it keeps of a prompt; empty for a file of the user's,
    of which that is not known.

    Raises EngineMissing if it is not there.
    """
    named = options.get("model", "")
    if named.endswith(FILE):
        own = Path(named).expanduser()
        if not own.is_file():
            raise UsageError(f"--engine {NAME}: model: there is no file {own}")
        return own, ""
    model = chosen(NAME, options, "model", ALL)
    folder = options.get("models") or os.environ.get(MODELS, "")
    path = Path(folder) / f"{model}{FILE}"
    if not folder or not path.is_file():
        where = f"{path} is not there" if folder else f"name their folder, models=DIR or {MODELS}"
        raise EngineMissing(
            f"--engine {NAME}: needs the model {model}: {where}; {MODELS_MADE} makes them",
            MODELS_MADE,
        )
    keeps: Resumes = "recurrent" if model in STATES else "sliding" if model in WINDOWS else "full"
    return path, keeps


def configurations() -> list[Configuration]:
    """Return what a run takes: llama.cpp's defaults, and each part of its cache in turn smaller,
    off, or otherwise.
    """
    axes: list[dict[str, Any]] = [
        {},
        {"n_ubatch": 16, "chunk": 48},
        {"kv_unified": False, "cache_ram": 0},
        {"n_parallel": 1, "ctx_checkpoints": 3},
        {"n_parallel": 2, "swa_full": True, "checkpoint_min_step": 8},
        {"n_parallel": 2, "slot_files": True},
    ]
    return [Configuration(_layout(), options, "") for options in axes]


def _layout() -> Layout:
    groups = [GroupSpec("full", BLOCK), GroupSpec("recurrent", BLOCK)]
    return Layout(
        f"llama-cpp-{BLOCK}",
        groups,
        f"lengths around multiples of {BLOCK} tokens",
        "llama.cpp has no blocks",
    )


_LISTED = by_release({"xllamacpp 2026.10": "llama-cpp-2026.10.txt"})


def _known_lists(version: str, options: Mapping[str, str]) -> tuple[str, ...]:
    """Return the list of a release, which is about windows alone."""
    return _LISTED(version, options) if options.get("model") in WINDOWS else ()


ENGINE = EngineKind(
    name=NAME,
    summary="the installed llama.cpp's server on tiny hybrid models",
    levels=("answers",),
    open=open_engine,
    options={
        "model": (
            f"{', '.join(STATES)} (default: the first), {' or '.join(WINDOWS)}: windows,"
            f" {ATTENTION}: attention alone; or the file of any model, FILE{FILE}"
        ),
        "models": f"the folder of the models; default: {MODELS}",
        "caching": "on (default), off, or alone: off, and one slot, which is the uncached twin",
        "log": (
            "followed (default): what each request goes on from is read off the server's log; or"
            " unread"
        ),
    },
    policies=None,
    replays=False,
    configurations=OwnConfigurations(lambda options: configurations()),
    answers_level=AnswersLevel(uncached={"caching": "alone"}, shrinking=SHRINKING),
    controls=Controls({"uncached": {"caching": "off"}, "attention-only": {"model": ATTENTION}}),
    # The server cuts prompts for checkpoints by the first n_ubatch of its process.
    process=OwnProcess(fixed=("n_ubatch", CHUNK)),
    written_for=WrittenFor("llama.cpp", "xllamacpp", "2026.10", "2026.10", (MODELS,)),
    known=KnownFindings(_known_lists),
)
