"""How servers behind a URL register: the options, the configuration, the baseline and the
control.
"""

from __future__ import annotations

from collections.abc import Mapping
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
)
from cachewitness.engines.answering import chosen, takes
from cachewitness.systems.openai_server.address import NAME, address_of
from cachewitness.systems.openai_server.engine import OpenAiServer, ServerChoice

BLOCK, VOCABULARY = 16, 256
DTYPES = ("bfloat16", "float16", "float32")
SALTS = ("proven", "promised")
SHRINKING = 60
"""Traces that are tried in search of a smaller one."""


def open_engine(header: TraceHeader, options: Mapping[str, str]) -> Engine:
    """Open a server for a trace.

    Raises EngineMissing without a URL, UsageError for what the engine does not take, and for a
    server that cannot be judged.
    """
    takes(NAME, header, ())
    if not options.get("url"):
        raise EngineMissing(f"--engine {NAME}: name a server, {NAME}:url=http://HOST:PORT")
    dtype: Any = chosen(NAME, options, "dtype", DTYPES)
    caching = chosen(NAME, options, "caching", ("on", "off")) == "on"
    stream = chosen(NAME, options, "stream", ("yes", "no")) == "yes"
    cold = address_of(options, "cold_url") if options.get("cold_url") else None
    settings = ServerChoice(
        warm=address_of(options, "url"),
        cold=cold,
        model=options.get("model", ""),
        dtype=dtype,
        vocabulary=_number(options, "vocabulary", VOCABULARY),
        shortest=_number(options, "shortest", 1),
        block=_number(options, "block", BLOCK),
        stream=stream,
        promised=chosen(NAME, options, "salts", SALTS) == "promised",
    )
    return OpenAiServer(header, settings, caching=caching)


def configurations(options: Mapping[str, str]) -> list[Configuration]:
    """Return what a run takes: prompts around multiples of the server's block."""
    block = _number(options, "block", BLOCK)
    groups = [GroupSpec("full", block)]
    story = f"lengths around multiples of {block} tokens"
    return [Configuration(Layout(f"server-{block}", groups, story, "the server's block"), {}, "")]


def _number(options: Mapping[str, str], name: str, usual: int) -> int:
    text = options.get(name, str(usual))
    if (
        not (text.isascii() and text.isdigit())
        or not 1 <= int(text[:9]) <= 1 << 20
        or len(text) > 9
    ):
        raise UsageError(f"--engine {NAME}: {name} is a number of tokens, not {text[:40]!r}")
    return int(text)


ENGINE = EngineKind(
    name=NAME,
    summary="any server that speaks OpenAI's completions, by its URL",
    levels=("answers",),
    open=open_engine,
    options={
        "url": "where it is, http://HOST:PORT",
        "cold_url": (
            "a second server of the same model without prefix caching, if the first cannot be asked"
            " without its cache"
        ),
        "model": "the model's name; default: the only one that it lists",
        "key": "the name of the environment variable that holds the key which it is sent",
        "block": f"tokens of the blocks that it caches; default: {BLOCK}",
        "dtype": (
            f"what it computes in, by which rounding is judged: {', '.join(DTYPES)}; default: the"
            " first"
        ),
        "vocabulary": f"prompts are spelled in ids below that; default: {VOCABULARY}",
        "shortest": "prompts of fewer tokens are not sent, and count as given up; default: 1",
        "salts": (
            "proven (default): they are sent if the server keeps them apart; promised: they are"
            " sent, and one prompt that two of them share is a finding"
        ),
        "stream": "yes (default), or no: for a server that sends an answer whole",
        "caching": "on (default), or off: the uncached twin",
    },
    policies=None,
    replays=False,
    configurations=OwnConfigurations(configurations),
    answers_level=AnswersLevel(
        uncached={"caching": "off"}, one_server=True, exact_batches=False, shrinking=SHRINKING
    ),
    controls=Controls({"uncached": {"caching": "off"}}),
    process=OwnProcess(key="key"),
)
