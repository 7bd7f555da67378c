"""llama.cpp's `llama_memory_seq_rm`, by which a slot is cut where a prompt parts from what it
holds: a trace reaches it, and a fault that is put in front of it is found.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from shutil import which

import pytest
from msgspec.structs import replace

from cachewitness.core.trace_format import Finish, Op, Submit, Trace
from cachewitness.engines.isolation.engine import Isolation
from cachewitness.engines.registry import parse
from cachewitness.parity.answers.compare import runs
from cachewitness.systems.llama_cpp.kind import ATTENTION, MODELS, WINDOWS, configurations
from cachewitness.workloads.answer_stories import write

pytestmark = pytest.mark.skipif(
    not (find_spec("xllamacpp") and os.environ.get(MODELS) and which("cc")),
    reason=f"needs xllamacpp, {MODELS} and a C compiler; ci/stage_llama_cpp.sh has the first two",
)
IN_FRONT = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

bool llama_memory_seq_rm(void *memory, int sequence, int first, int end) {
    void *library = dlopen(getenv("CUT_LIBRARY"), RTLD_LAZY | RTLD_NOLOAD);
    bool (*removes)(void *, int, int, int) = dlsym(library, "llama_memory_seq_rm");
    int (*last)(void *, int) = dlsym(library, "llama_memory_seq_pos_max");
    bool cut = first > 8 && end < 0 && last(memory, sequence) >= first;
    bool done = removes(memory, sequence, first, end);
    if (cut && done) {
        FILE *log = fopen(getenv("CUT_LOG"), "a");
        fprintf(log, "%d\\n", first);
        fclose(log);
        if (!access(getenv("CUT_HOLE"), F_OK)) removes(memory, sequence, first - 2, first - 1);
    }
    return done;
}
"""
"""Is loaded in front of the library's own: notes each position from which tokens of a sequence are
removed, and while there is a file CUT_HOLE removes one more, in front of the last that stays."""
Asked = Callable[[str, list[Op], bool], tuple[list[str], list[int]]]


def answered(r: str, prompt: str) -> list[Op]:
    """Ask for four tokens and wait."""
    return [Submit(r=r, prompt=prompt, generate=4), Finish(r)]


EDITED = [*answered("a", "A:300"), *answered("b", "A:290 b:30"), *answered("c", "A:290 c:40")]
GROWN = [*answered("a", "A:300"), *answered("b", "A:300 @a:4 b:30")]


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Return what runs a trace in one slot and returns the anomalies, and where it was cut."""
    library, log, hole = (tmp_path / name for name in ("cut.so", "cuts", "hole"))
    command = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(library), "-ldl"]
    subprocess.run(command, input=IN_FRONT, text=True, check=True, timeout=60)
    package = find_spec("xllamacpp")
    assert package is not None and package.origin
    (own,) = Path(package.origin).parent.glob("xllamacpp*.so")
    files = {"LD_PRELOAD": library, "CUT_LIBRARY": own, "CUT_LOG": log, "CUT_HOLE": hole}
    for name, value in files.items():
        monkeypatch.setenv(name, str(value))

    def run(model: str, ops: list[Op], fault: bool) -> tuple[list[str], list[int]]:
        log.write_text("")
        hole.touch() if fault else hole.unlink(missing_ok=True)
        header = write(configurations()[0].shape("answers"), "idle", 0).header
        alone = replace(header, pages=64, options={"n_parallel": 1, "cache_ram": 0})
        engine = parse(f"llama-cpp:model={model}").isolated(Isolation(deadline=20))
        findings = runs(Trace(alone, ops), engine).findings
        return [one.anomaly for one in findings], [int(line) for line in log.read_text().split()]

    return run


@pytest.mark.parametrize("model", [ATTENTION, *WINDOWS])
def test_a_slot_is_cut_and_a_hole_in_front_of_the_cut_is_found(model: str, asked: Asked) -> None:
    """At the place where the prompts part."""
    anomalies, cuts = asked(model, EDITED, False)
    assert anomalies == [] and 290 in cuts
    anomalies, _ = asked(model, EDITED, True)
    assert "answer-differs" in anomalies


@pytest.mark.parametrize(("model", "ops"), [(ATTENTION, GROWN), ("qwen3-next", EDITED)])
def test_a_fault_in_a_cut_is_no_finding_where_nothing_is_cut(
    model: str, ops: list[Op], asked: Asked
) -> None:
    """A slot that goes on, and states, which cannot be cut and are computed anew."""
    assert asked(model, ops, True) == ([], [])
