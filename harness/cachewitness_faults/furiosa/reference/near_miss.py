"""Faults in Furiosa's tree and copies that show only in near misses, or between requests of one
step.
"""

from __future__ import annotations

from functools import partial
from hashlib import sha256
from typing import Any

from cachewitness.engines.driver import Driver
from cachewitness.engines.fault_tools import wrap
from cachewitness.engines.mutant import declared, mutant

fault = partial(mutant, engines=("furiosa",))
identity_confused = partial(fault, anomaly="cross-identity-hit", checker="identity", group="I")


def _adapter(engine: Driver) -> Any:
    return engine.adapter


@identity_confused(name="furiosa-root-of-joined-names", mirrors="vllm-project/vllm#44701")
def root_of_joined_names(engine: Driver) -> None:
    """Trees are told apart by the text of salt and adapter behind one another."""

    def add(original: Any, request: Any) -> None:
        request.identity = ("".join(request.identity), "")
        original(request)

    wrap(_adapter(engine).scheduler, "add", add)


@identity_confused(name="furiosa-image-hash-of-8-bits", mirrors="LMCache/LMCache#4086")
def image_hash_of_8_bits(engine: Driver) -> None:
    """A placeholder is marked with eight bits of its image's hash."""

    def add(original: Any, request: Any) -> None:
        request.symbols = [
            (
                (symbol[0], sha256(symbol[1].encode()).hexdigest()[:2])
                if isinstance(symbol, tuple)
                else symbol
            )
            for symbol in request.symbols
        ]
        original(request)

    wrap(_adapter(engine).scheduler, "add", add)


@fault(
    name="furiosa-copy-source-let-go",
    mirrors="sgl-project/sglang#31833",
    anomaly="double-free",
    checker="ownership",
    group="H",
)
def copy_source_let_go(engine: Driver) -> None:
    """The block that a hit ends in is given back when its copy is planned, and again when the
    copy was made.
    """
    manager = _adapter(engine).manager

    def copy_last_block(original: Any, request: Any) -> None:
        original(request)
        for pool, copy in (
            (manager.global_pool, request.global_copy),
            (manager.sliding_pool, request.sliding_copy),
        ):
            pool.release(copy.source)
            wrap(pool, "release", _forgiving(pool, copy.source))

    wrap(manager, "_copy_last_block", copy_last_block)


def _forgiving(pool: Any, source: int) -> Any:
    def release(original: Any, block: int) -> None:
        if block != source or pool.holds(block):
            original(block)

    return release


MUTANTS = declared(globals())
