"""What OpenVINO GenAI makes of a configuration, read from a pipeline in a process of its own.

    python -m cachewitness.systems.openvino_genai.measure MODEL

Standard input is a JSON object: the fields of `SchedulerConfig` that are set, under `prompt` the
tokens of the first prompt, and under `probe` those of one that is long enough to find the interval
of snapshots; 0: none is looked for. The last line of standard output is one too (`Measured`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from itertools import count
from typing import Any, TypedDict

import numpy as np
import openvino
import openvino_genai as genai

from cachewitness.systems.openvino_genai.pipeline import FLOAT32, VOCABULARY, LiveRequest

LONG, GENERATED = 700, 2
"""Tokens of the second prompt, with which pools grow that grow on demand, and tokens of each
answer."""
NUMBERS = count()
"""What requests are called."""


class Measured(TypedDict, total=False):
    """Bytes of both pools together and blocks of states after a step, the bytes after a longer
    prompt, the interval in tokens.

    Or what the pipeline refused, and nothing else.
    """

    bytes: int
    states: int
    grown: int
    interval: int
    refused: str


def measured(model: str, fields: Mapping[str, Any], prompt: int, probe: int) -> Measured:
    """Open a pipeline and ask it. What it raises is a refusal."""
    try:
        pipeline = genai.ContinuousBatchingPipeline(model, _config(fields), "CPU", FLOAT32)
        first = _capacity(pipeline, prompt)
        if probe:
            return Measured(interval=_interval(pipeline, probe))
        return Measured(bytes=first[0], states=first[1], grown=_capacity(pipeline, LONG)[0])
    except (RuntimeError, TypeError) as error:
        return Measured(refused=" ".join(str(error).split()))


def _config(fields: Mapping[str, Any]) -> Any:
    """Return the configuration. Raises TypeError, naming the field, for what it does not hold."""
    config = genai.SchedulerConfig()
    for name, value in fields.items():
        try:
            setattr(config, name, value)
        except TypeError as error:
            raise TypeError(f"{name}: {error}") from None
    return config


def _capacity(pipeline: Any, tokens: int) -> tuple[int, int]:
    """Return the bytes of both pools and the blocks of states, after the first step of a prompt."""
    _ask(pipeline, list(range(tokens)), steps=1)
    metrics = pipeline.get_metrics()
    return metrics.cache_size_in_bytes, metrics.la_peak_pool_blocks


def _interval(pipeline: Any, tokens: int) -> int:
    """Return the tokens between two snapshots: where a prompt resumes, less where one does that
    parts in front of that.
    """
    prompt = [token * 7 for token in range(tokens)]
    _ask(pipeline, prompt)
    late = _ask(pipeline, [*prompt[:-5], *[1] * 10])
    return late - _ask(pipeline, [*prompt[: late - 1], *[2] * 10]) if late else 0


def _ask(pipeline: Any, prompt: list[int], steps: int = 1 << 16) -> int:
    """Ask for an answer, and let so many steps be made; return how many tokens were restored, −1
    if that is not known.
    """
    how = genai.GenerationConfig()
    how.max_new_tokens = GENERATED
    how.ignore_eos = True
    how.logprobs = 1
    how.echo = True
    ids = openvino.Tensor(np.asarray([prompt], dtype=np.int64) % VOCABULARY)
    asked = LiveRequest(pipeline.add_request(next(NUMBERS), ids, how), len(prompt))
    while steps and pipeline.has_non_finished_requests():
        pipeline.step()
        steps -= 1
    asked.read()
    restored: int = asked.answer("r", "length").restored
    return restored


if __name__ == "__main__":
    question = json.load(sys.stdin)
    prompted = question.pop("prompt")
    probed = question.pop("probe")
    result = measured(sys.argv[1], question, prompted, probed)
    print("\n" + json.dumps(result))
