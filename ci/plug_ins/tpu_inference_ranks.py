"""Runs the scheduler of tpu-inference that shares requests out to data-parallel ranks, without its
platform, which needs JAX and a TPU, and without processes.

`--engine vllm:source=SRC,prepare=tpu_inference_ranks:configure,data_parallel=0/2` has vLLM's
configuration name `DPScheduler`, as the platform does. For each rank that starts a process which
runs vLLM's scheduler and answers commands on a pipe. Here the same function runs in a thread, and
whoever sends a command waits until it is answered: one thread runs at a time, and the ranks'
schedulers are where the harness sees them. What is sent is pickled, so a rank has copies.

The variable CACHEWITNESS_TPU_INFERENCE names a folder that holds `tpu_inference`. The package's own
`__init__`, which brings up JAX, does not run, and of `utils` the decorator that measures time is
left out.

Source: tpu-inference 0.32.0, `core/sched/dp_scheduler.py`, `platforms/tpu_platform.py`.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import sys
import threading
import types
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

MODULE = "tpu_inference.core.sched.dp_scheduler"


def configure(kv_cache_config: Any, vllm_config: Any, ranks: Any) -> None:
    """Have vLLM make tpu-inference's scheduler over so many ranks, each with as many blocks as the
    trace gives an engine.
    """
    pools = importlib.import_module("tpu_inference_pools")
    pools.package()
    utils = types.ModuleType("tpu_inference.utils")
    vars(utils)["time_function"] = _untimed
    sys.modules.setdefault(utils.__name__, utils)
    module = importlib.import_module(MODULE)
    vars(module).update(
        multiprocessing=SimpleNamespace(
            get_context=lambda method: InProcess(),
            reduction=SimpleNamespace(ForkingPickler=SimpleNamespace()),
        ),
        wait=_answered,
        atexit=SimpleNamespace(register=_nothing, unregister=_nothing),
    )
    vllm_config.sharding_config = SimpleNamespace(total_dp_size=ranks.count)
    states = pools.states_of(kv_cache_config)
    kv_cache_config.num_blocks *= ranks.count
    vllm_config.cache_config.mamba_num_blocks = states * ranks.count
    module.update_vllm_config_for_dp_scheduler(vllm_config)
    scheduling = vllm_config.scheduler_config
    scheduling._original_scheduler_cls = ranks.recorded(scheduling._original_scheduler_cls)


def _untimed(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


class Ended(BaseException):
    """What a rank's worker meets that would end its process, or has lost its pipe."""


class InProcess:
    """What stands in for the context of `multiprocessing`: pipes, and processes that are threads of
    which one runs at a time.
    """

    def Pipe(self) -> tuple[End, End]:
        """Return both ends of a pipe."""
        gc.unfreeze()  # frozen for processes that are forked
        one = End()
        other = End()
        one.other = other
        other.other = one
        return one, other

    def Process(self, target: Callable[..., None], args: Sequence[Any]) -> Worker:
        """Return what runs a function that reads commands from its second argument."""
        return Worker(target, args)


class End:
    """One end of a pipe. Whoever sends to a worker has it answer first."""

    other: End

    def __init__(self) -> None:
        self.arrived: deque[bytes] = deque()
        self.worker: Worker | None = None
        """The worker that reads here."""

    def send_bytes(self, payload: bytes) -> None:
        """Send a message."""
        self.other.arrived.append(payload)
        if self.other.worker is not None:
            self.other.worker.go_on()

    def recv_bytes(self) -> bytes:
        """Receive a message; a worker waits for one. Raises EOFError if there is none."""
        while not self.arrived and self.worker is not None:
            self.worker.rest()
        if not self.arrived:
            raise EOFError
        return self.arrived.popleft()

    def close(self) -> None:
        """Do nothing: both ends are in this process."""


class Worker:
    """A function that runs in a thread while somebody waits for it."""

    pid = None

    def __init__(self, target: Callable[..., None], args: Sequence[Any]) -> None:
        self._target = target
        self._args = args
        self._turn = threading.Semaphore(0)
        self._rests = threading.Semaphore(0)
        self._failure: BaseException | None = None
        args[1].worker = self
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def exitcode(self) -> int | None:
        """0 when the function has returned, None before."""
        return None if self.is_alive() else 0

    def is_alive(self) -> bool:
        """Whether the function has not returned."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Run until the function waits for a command."""
        self._thread.start()
        self.go_on()

    def go_on(self) -> None:
        """Run until the function waits again, or has returned. Nothing of this process ends with
        it: it may leave by `os._exit`, and forget what is to be done at the exit.
        """
        with patch.object(os, "_exit", _leave), patch.object(atexit, "_clear", _nothing):
            self._turn.release()
            self._rests.acquire()
        if self._failure is not None:
            raise self._failure

    def rest(self) -> None:
        """Have whoever waits for this go on, and wait for a turn."""
        self._rests.release()
        self._turn.acquire()

    def join(self, timeout: float | None = None) -> None:
        """Wait for the end of a function that has returned."""
        self._thread.join(timeout)

    def _run(self) -> None:
        self._turn.acquire()
        try:
            with suppress(Ended):
                self._target(*self._args)
        except BaseException as error:
            self._failure = error
        self._rests.release()


def _leave(code: int) -> None:
    raise Ended


def _nothing(*_: Any) -> None:
    """Leave alone what is to be done when this process ends: no rank outlives it."""


def _answered(ends: Sequence[End]) -> list[End]:
    """Return a pipe on which an answer has come, the last one: ranks answer in any order."""
    return [next(end for end in reversed(ends) if end.arrived)]
