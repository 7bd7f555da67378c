"""lm-eval without its surroundings: no network, no cache in the user's home, no chatter.

The variables that keep `datasets` and `huggingface_hub` off the network are read when these are
imported, so `prepare` comes first. What lm-eval prints while it evaluates (task listings, progress
bars of its own, advice on options that nobody set) would drown the report; it is kept back, and
whatever goes wrong reaches the caller as an exception all the same.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import os
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from cachewitness._util.errors import EngineMissing

EXTRA = "cachewitness[score]"
_OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
_QUIET = {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_DISABLE_TELEMETRY": "1", "TQDM_DISABLE": "1"}
_NEEDED = ("lm_eval", "datasets", "pandas", "scipy")
_NEEDED_BY_CLIENT = ("aiohttp", "requests", "tenacity", "tqdm")
_LOUD = ("lm_eval", "datasets", "huggingface_hub", "asyncio", "httpx")
_FOREIGN = r"(lm_eval|datasets|evaluate|multiprocess|dill|sacrebleu|rouge_score|sklearn|aiohttp|tqdm|huggingface_hub)\b"  # noqa: E501


def prepare(*, online: bool = False, client: bool = False) -> None:
    """Make the process ready to import lm-eval; `online` leaves the network open, `client` is for
    scores of a server.

    Raises EngineMissing if something has to be installed first.
    """
    for name in (*_NEEDED, *(_NEEDED_BY_CLIENT if client else ())):
        if importlib.util.find_spec(name) is None:
            raise EngineMissing(f"scores need {name}, which is not installed; install {EXTRA}")
    for key, value in (_QUIET if online else _QUIET | _OFFLINE).items():
        os.environ.setdefault(key, value)
    if not online and "HF_HOME" not in os.environ:
        os.environ["HF_HOME"] = _scratch()


def prepare_statistics() -> None:
    """Raise EngineMissing if scipy, which alone is needed to compare likelihoods, is missing."""
    if importlib.util.find_spec("scipy") is None:
        raise EngineMissing(f"likelihoods need scipy, which is not installed; install {EXTRA}")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep lm-eval's logs, progress bars and warnings back while it runs."""
    levels = {name: logging.getLogger(name).level for name in _LOUD}
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.filterwarnings("ignore", module=_FOREIGN)
        for name in _LOUD:
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
        try:
            yield
        finally:
            for name, level in levels.items():
                logging.getLogger(name).setLevel(level)


def evaluated(task: Any, model: Any, **which: Any) -> list[Mapping[str, Any]]:
    """Have lm-eval ask a model a task's questions, filter and score them; return its samples.
    `which`: a limit, or the rows that are asked.

    Its `evaluate` is called rather than `simple_evaluate`, which adds a survey of the machine that
    takes seconds for every arm.
    """
    with quiet():
        from lm_eval import evaluator

        result = evaluator.evaluate(
            lm=model,
            task_dict={"tasks": {task.task_name: task}},
            bootstrap_iters=0,
            log_samples=True,
            **which,
        )
    return list(result["samples"][task.task_name])


def _scratch() -> str:
    import atexit
    import shutil
    import tempfile

    folder = tempfile.mkdtemp(prefix="cachewitness-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
