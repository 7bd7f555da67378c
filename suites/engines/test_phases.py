"""Every policy says in comments where it looks up, allocates, commits and releases, and says so too
where it does not.

The four marks stand in the methods that a scheduler or a manager is entered by, so that two
policies read side by side. A mark alone is followed by code that does that phase's work; `# COMMIT:
nothing; …` says why there is none.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from cachewitness_reference import vllm

SPECIFICATIONS = Path(vllm.__file__).parents[1]
PHASES = ("LOOKUP", "ALLOCATE", "COMMIT", "RELEASE")
MARK = re.compile(
    r"\s*# ((?:LOOKUP|ALLOCATE|COMMIT|RELEASE)(?:, (?:LOOKUP|ALLOCATE|COMMIT|RELEASE))*)(?:$|:"
    r" (.*))"
)

JOBS: dict[str, dict[str, tuple[str, str]]] = {
    "plan a step": {
        "vllm/scheduler.py Scheduler.schedule": ("COMMIT ALLOCATE RELEASE LOOKUP ALLOCATE", ""),
        "openvino_genai/scheduler.py Scheduler.schedule": ("LOOKUP ALLOCATE RELEASE", "COMMIT"),
        "lmcache/connector.py LMCacheMPConnector.build_connector_meta": (
            "ALLOCATE",
            "LOOKUP COMMIT RELEASE",
        ),
        "furiosa/scheduler.py Scheduler.schedule": ("ALLOCATE RELEASE LOOKUP ALLOCATE", "COMMIT"),
        "tensorrt_edge/runtime.py Runtime.begin_step": ("RELEASE LOOKUP ALLOCATE", "COMMIT"),
    },
    "let a waiting request start": {
        "vllm/scheduler.py Scheduler._admit": ("LOOKUP ALLOCATE", "COMMIT RELEASE"),
        "vllm_extended/loading_scheduler.py LoadingScheduler._try_to_admit": (
            "LOOKUP ALLOCATE",
            "COMMIT RELEASE",
        ),
        "openvino_genai/scheduler.py Scheduler.restore_new": ("LOOKUP", "ALLOCATE COMMIT RELEASE"),
        "lmcache/connector.py LMCacheMPConnector.get_num_new_matched_tokens": (
            "RELEASE LOOKUP",
            "ALLOCATE COMMIT",
        ),
        "furiosa/scheduler.py Scheduler.join": ("LOOKUP ALLOCATE", "COMMIT RELEASE"),
        "tensorrt_edge/runtime.py Runtime._join": ("LOOKUP ALLOCATE COMMIT", "RELEASE"),
    },
    "give a request room for its next tokens": {
        "vllm/kv_cache_manager.py KVCacheManager.allocate_slots": (
            "ALLOCATE COMMIT RELEASE ALLOCATE COMMIT",
            "LOOKUP",
        ),
        "openvino_genai/orchestrator.py CacheOrchestrator.allocate": (
            "ALLOCATE COMMIT",
            "LOOKUP RELEASE",
        ),
        "lmcache/server.py LMCacheServer.store": ("ALLOCATE", "LOOKUP COMMIT RELEASE"),
        "furiosa/manager.py HybridCacheManager.extend": ("ALLOCATE", "LOOKUP COMMIT RELEASE"),
        "tensorrt_edge/runtime.py Runtime._compute": ("ALLOCATE", "LOOKUP COMMIT RELEASE"),
    },
    "end a step that ran": {
        "vllm/scheduler.py Scheduler.update_from_output": ("RELEASE COMMIT", "LOOKUP ALLOCATE"),
        "openvino_genai/scheduler.py Scheduler.complete": ("RELEASE COMMIT", "LOOKUP ALLOCATE"),
        "lmcache/connector.py LMCacheMPConnector.update_connector_output": (
            "RELEASE COMMIT RELEASE",
            "LOOKUP ALLOCATE",
        ),
        "furiosa/manager.py HybridCacheManager.complete": (
            "RELEASE COMMIT RELEASE",
            "LOOKUP ALLOCATE",
        ),
        "tensorrt_edge/runtime.py Runtime.end_step": ("COMMIT RELEASE", "LOOKUP ALLOCATE"),
    },
    "take everything from a running request": {
        "vllm/scheduler.py Scheduler._preempt": ("RELEASE", "LOOKUP ALLOCATE COMMIT"),
        "openvino_genai/scheduler.py Scheduler.preempt": ("RELEASE", "LOOKUP ALLOCATE COMMIT"),
        "lmcache/connector.py LMCacheMPConnector.on_preempted": (
            "RELEASE",
            "LOOKUP ALLOCATE COMMIT",
        ),
        "furiosa/scheduler.py Scheduler.preempt": ("RELEASE", "LOOKUP ALLOCATE COMMIT"),
        "tensorrt_edge/runtime.py Runtime.preempt": ("RELEASE", "LOOKUP ALLOCATE COMMIT"),
    },
    "end a request": {
        "vllm/scheduler.py Scheduler.finish_requests": ("RELEASE", "LOOKUP ALLOCATE COMMIT"),
        "openvino_genai/scheduler.py Scheduler.finish": ("RELEASE", "LOOKUP ALLOCATE COMMIT"),
        "lmcache/connector.py LMCacheMPConnector.request_finished": (
            "RELEASE",
            "LOOKUP ALLOCATE COMMIT",
        ),
        "furiosa/scheduler.py Scheduler.finish": ("RELEASE", "LOOKUP ALLOCATE COMMIT"),
        "tensorrt_edge/runtime.py Runtime.end": ("RELEASE", "LOOKUP ALLOCATE COMMIT"),
    },
    "forget what is cached": {
        "vllm/scheduler.py Scheduler.reset_prefix_cache": ("RELEASE", "LOOKUP ALLOCATE COMMIT"),
        "openvino_genai/orchestrator.py CacheOrchestrator.clear_prefix_cache": (
            "RELEASE",
            "LOOKUP ALLOCATE COMMIT",
        ),
        "lmcache/connector.py LMCacheMPConnector.reset_cache": (
            "RELEASE",
            "LOOKUP ALLOCATE COMMIT",
        ),
        "furiosa/scheduler.py Scheduler.reset": ("RELEASE", "LOOKUP ALLOCATE COMMIT"),
        "tensorrt_edge/system_prompts.py SystemPrompts.forget_all": (
            "RELEASE",
            "LOOKUP ALLOCATE COMMIT",
        ),
    },
}
"""By job and entry point: the phases that do work there, in order, and those that are empty."""

ENTRIES = [(job, entry) for job, entries in JOBS.items() for entry in entries]
SECTIONED = (
    *(
        f"vllm/{name}.py"
        for name in (
            "block_pool",
            "coordinator",
            "hybrid_coordinator",
            "keyed_blocks",
            "kv_cache_manager",
        )
    ),
    *(
        f"vllm/{name}.py"
        for name in ("full_attention", "mamba", "single_type_manager", "sliding_window")
    ),
    *(f"openvino_genai/{name}.py" for name in ("block_manager", "block_pool", "orchestrator")),
    *(f"lmcache/{name}.py" for name in ("connector", "l1", "server")),
    *(f"furiosa/{name}.py" for name in ("block_pool", "manager", "radix_tree")),
    "tensorrt_edge/rows.py",
)
"""Managers and pools, whose methods stand in sections by phase."""


@dataclass
class Mark:
    """The phases of one comment, what it says of them, and the code behind it up to the next
    mark.
    """

    phases: list[str]
    remark: str
    code: list[str]


def marks(entry: str) -> list[Mark]:
    """Return the marks in the body of a method, in order."""
    path, name = entry.split(" ")
    owner, method = name.split(".")
    text = (SPECIFICATIONS / path).read_text(encoding="utf-8")
    kind = next(
        node
        for node in ast.parse(text).body
        if isinstance(node, ast.ClassDef) and node.name == owner
    )
    body = next(
        node for node in kind.body if isinstance(node, ast.FunctionDef) and node.name == method
    )
    found: list[Mark] = []
    # The end of a body is that of its last statement; comments behind it belong to it as long as
    # they are indented like it.
    lines = text.splitlines()
    stop = body.end_lineno or body.lineno
    while stop < len(lines) and lines[stop].startswith("        #"):
        stop += 1
    for line in lines[body.lineno : stop]:
        match = MARK.match(line)
        if match is not None:
            found.append(Mark(match[1].split(", "), match[2] or "", []))
        elif line.lstrip().startswith("# ") and found and found[-1].remark and not found[-1].code:
            found[-1].remark += line.strip().removeprefix("#")
        elif found and line.strip() and not line.strip().startswith("#"):
            found[-1].code.append(line)
    return found


@pytest.mark.parametrize(("job", "entry"), ENTRIES, ids=[entry for _, entry in ENTRIES])
def test_an_entry_point_carries_all_four_phases(job: str, entry: str) -> None:
    """Those that work are the ones named above, in that order; each of the others is said to be
    empty, with the reason.
    """
    worked = [phase for mark in marks(entry) if not mark.remark for phase in mark.phases]
    empty = [phase for mark in marks(entry) if mark.remark for phase in mark.phases]
    assert (" ".join(worked), " ".join(sorted(empty, key=PHASES.index))) == JOBS[job][entry]
    assert set(worked) | set(empty) == set(PHASES) and not set(worked) & set(empty)


@pytest.mark.parametrize(("job", "entry"), ENTRIES, ids=[entry for _, entry in ENTRIES])
def test_a_phase_has_code_or_a_reason(job: str, entry: str) -> None:
    for mark in marks(entry):
        assert mark.code if not mark.remark else re.match(r"nothing; .{8,}\.$", mark.remark), (
            job,
            mark.phases,
        )


def test_every_system_does_every_job() -> None:
    """A policy that lacked one would be read beside nothing."""
    systems = {"vllm", "openvino_genai", "lmcache", "furiosa", "tensorrt_edge"}
    for job, entries in JOBS.items():
        assert {entry.split("/")[0] for entry in entries} - {"vllm_extended"} == systems, job


@pytest.mark.parametrize("path", SECTIONED)
def test_managers_and_pools_are_in_sections_by_phase(path: str) -> None:
    """The sections that a class has come in the order in which a request goes through them."""
    headings: list[str] = []
    seen: set[str] = set()
    for line in (SPECIFICATIONS / path).read_text(encoding="utf-8").splitlines():
        match = MARK.match(line)
        if line.startswith("class "):
            headings = []
        elif match is not None and re.match(r"    # \w", line):
            headings += match[1].split(", ")
            seen |= set(headings)
            assert headings == sorted(headings, key=PHASES.index), line
    assert len(seen) > 1
