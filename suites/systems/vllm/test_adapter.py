"""The adapter of vLLM never guesses: what a release does not know, or knows anew, is refused in
one line.
"""

from __future__ import annotations

import gc
import importlib
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from cachewitness._util.errors import EngineMissing, UsageError
from cachewitness.core.trace_format import TraceHeader
from cachewitness.systems.vllm.build import base_block_size, block_sizes_of, fill
from cachewitness.systems.vllm.clock import Clock, TimedManager
from cachewitness.systems.vllm.kind import ENGINE, open_engine
from cachewitness.systems.vllm.source import Source, load
from cachewitness.systems.vllm.split import chunk_split
from cachewitness.workloads import layouts
from cachewitness_reference.vllm.config import Options

HEADER = TraceHeader("t", layouts.load("full-mamba"), 40)


def source(version: str = "0.99.1", **parts: Any) -> Source:
    nothing = ModuleType("nothing")
    found = Source(version, nothing, nothing, nothing, nothing)
    if parts:
        object.__setattr__(found, "part", lambda module, name: parts[name])
    return found


@pytest.fixture
def no_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name == "vllm" or name.startswith("vllm.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", list(sys.path))


def test_what_is_called_is_not_kept() -> None:
    """A run opens thousands of engines; each goes when its trace is over."""

    class Engine:
        def build(self, b: int) -> int:
            return b

    engine = Engine()
    assert fill(source(), engine.build, {"b": 2, "self": 5}) == 2
    assert fill(source(), lambda a, engine=engine: a, {"a": 1}) == 1
    left = weakref.ref(engine)
    del engine
    gc.collect()
    assert left() is None


def test_known_arguments_are_passed_and_others_left_out() -> None:
    """A constructor gets those of the offered arguments that it has a parameter for."""

    def target(a: int, c: int = 3) -> tuple[int, int]:
        return a, c

    assert fill(source(), target, {"a": 1, "b": 2, "c": 5}) == (1, 5)


def test_an_unknown_required_parameter_is_named() -> None:
    """A parameter that must be given and is new to the adapter is an error with its name and the
    release.
    """

    def KVCacheManager(config: int, shiny: int) -> None: ...

    with pytest.raises(UsageError, match=r"vLLM 0\.99\.1: KVCacheManager wants 'shiny'"):
        fill(source(), KVCacheManager, {"config": 1})


def test_an_option_without_a_parameter_is_refused() -> None:
    """What a trace asks for and a release has no parameter for is not dropped silently."""

    def KVCacheManager(config: int) -> None: ...

    with pytest.raises(UsageError, match=r"vLLM 0\.99\.1: KVCacheManager takes no 'watermark'"):
        fill(source(), KVCacheManager, {"config": 1, "watermark": 0.1}, ["watermark"])


@pytest.mark.parametrize("error", [ValueError, AssertionError, NotImplementedError])
def test_vllm_s_own_refusal_becomes_one_line(error: type[Exception]) -> None:
    """A configuration that vLLM itself refuses is told in its words, on one line."""

    def target() -> None:
        raise error("interval 7 is\n  not a multiple")

    with pytest.raises(
        UsageError, match=r"vLLM 0\.99\.1 refuses the configuration: interval 7 is not a multiple$"
    ):
        fill(source(), target, {})


@pytest.mark.usefixtures("no_vllm")
def test_a_missing_vllm_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """The light way first: sources and the packages that they need; then the whole of it."""
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(
        EngineMissing, match=r"need not be.*source=PATH.*pip install vllm"
    ) as missing:
        load()
    *packages, clone, doctor = missing.value.mend.split(" && ")
    assert [command.split()[:2] for command in packages] == [["pip", "install"]] * 2
    assert Path(packages[1].split()[-1]).is_file(), "the list of packages is there"
    assert clone.startswith("git clone --depth 1 --branch v0.33.0 ")
    assert doctor == f"cachewitness doctor vllm:source={clone.split()[-1]}"


@pytest.mark.usefixtures("no_vllm")
def test_a_missing_package_of_vllm_is_named(tmp_path: Path) -> None:
    """A source tree whose dependencies are missing names the first one and the set that works."""
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").write_text("import no_such_package_of_vllm\n")
    listed = r"no_such_package_of_vllm.*ci/vllm_requirements\.txt"
    with pytest.raises(EngineMissing, match=listed) as missing:
        load(str(tmp_path))
    assert "git clone" not in missing.value.mend and " --no-deps -r " in missing.value.mend


def test_a_folder_without_vllm_is_refused(tmp_path: Path) -> None:
    """A source that holds no vLLM is told by its path."""
    with pytest.raises(UsageError, match=r"no vllm/__init__\.py there"):
        load(str(tmp_path))


@pytest.mark.usefixtures("no_vllm")
def test_a_second_vllm_in_one_process_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A source that is not the vLLM already imported is refused, not mixed with it."""
    for name in ("one", "two"):
        (tmp_path / name / "vllm").mkdir(parents=True)
        (tmp_path / name / "vllm" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path / "one"))
    importlib.import_module("vllm")
    with pytest.raises(UsageError, match=r"already imported from .*one/vllm"):
        load(str(tmp_path / "two"))


def test_unknown_engine_options_are_refused() -> None:
    """An option that the engine does not have is named."""
    with pytest.raises(UsageError, match="vllm has no option 'sauce'"):
        open_engine(HEADER, {"sauce": "x"})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pages_per_snapshot": 2}, "a snapshot is always one block"),
        ({"release": "0.29"}, r"option 'release' is '0\.29'; this is vLLM 0\.33\.0"),
        ({"free_list": "fifo"}, "one order of its free queue"),
        (
            {"pin_shared_prefix_boundary": False},
            r"option 'pin_shared_prefix_boundary': vLLM 0\.33\.0 has no such switch",
        ),
        ({"retention": 0}, "option 'retention' is unknown"),
    ],
)
def test_options_that_vllm_lacks_are_refused(
    options: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What only the reference can do, or another release did, is not silently left out."""
    monkeypatch.setattr(
        "cachewitness.systems.vllm.kind.load", lambda path="", package="": source("0.33.0")
    )
    with pytest.raises(UsageError, match=message):
        open_engine(TraceHeader("t", HEADER.layout, 40, options=options), {})


@pytest.mark.parametrize(
    ("version", "release"),
    [("0.33.0", (0, 33)), ("0.29.1rc2+cpu", (0, 29)), ("dev", None), ("0.1.dev7+gabc", None)],
)
def test_a_release_is_read_from_the_version(version: str, release: tuple[int, int] | None) -> None:
    """A tree that does not know its version has no release; features then speak for themselves."""
    assert source(version).release == release


def test_block_sizes_are_vllm_s_to_resolve() -> None:
    """The block size that vLLM resolves the others from is the recurrent groups'; the requested
    hash block is passed on.
    """
    seen: list[Any] = []

    def resolve_kv_cache_block_sizes(kv_cache_config: Any, vllm_config: Any) -> tuple[int, int]:
        seen.append(vllm_config.cache_config)
        return 48, 4

    header = TraceHeader("t", layouts.load("full-mamba-unequal"), 40)
    found = source()
    found.utils.resolve_kv_cache_block_sizes = resolve_kv_cache_block_sizes  # type: ignore[attr-defined]
    assert block_sizes_of(found, header, None, Options(hash_block_size=4)) == (48, 4)
    (recurrent,) = [group.block_size for group in header.layout.groups if group.kind == "recurrent"]
    assert seen[0].block_size == base_block_size(header) == recurrent
    assert (seen[0].prefix_match_unit, seen[0].enable_prefix_caching) == (4, True)


class Scheduler:
    """Has the rule of 0.25, which is told how far the shared-prefix boundary is."""

    def _mamba_block_aligned_split(
        self: Any,
        request: Any,
        num_new_tokens: int,
        num_new_local_computed_tokens: int = 0,
        num_external_computed_tokens: int = 0,
        num_uncached_common_prefix_tokens: int = 0,
    ) -> int:
        return num_uncached_common_prefix_tokens + int(self.cache_config.block_size)


def test_the_chunk_rule_is_vllm_s() -> None:
    """Chunks are cut by the scheduler's own method, told the shared-prefix boundary the way its
    release wants to be told.
    """
    core = SimpleNamespace(coordinator=SimpleNamespace())
    split = chunk_split(source(Scheduler=Scheduler), HEADER, Options(), core, (16, 16))
    assert split is not None
    request = SimpleNamespace(num_computed_tokens=0, shared_prefix_boundary=96)
    assert split(request, 500, 32) == 96 - 32 + 16


def test_a_scheduler_attribute_that_is_new_is_named() -> None:
    """If the rule reads something that the stand-in lacks, the error names it."""

    class Newer:
        def _mamba_block_aligned_split(self: Any, request: Any, tokens: int, hit: int) -> int:
            return int(self.moon_phase)

    core = SimpleNamespace(coordinator=SimpleNamespace())
    split = chunk_split(source(Scheduler=Newer), HEADER, Options(), core, (16, 16))
    assert split is not None
    with pytest.raises(UsageError, match="reads 'moon_phase' of the scheduler"):
        split(SimpleNamespace(), 16, 0)


def test_nothing_is_cut_without_cached_states() -> None:
    """Attention alone leaves chunks as they are asked for."""
    full = TraceHeader("t", layouts.load("full"), 40)
    assert chunk_split(source(Scheduler=Scheduler), full, Options(), None, (16, 16)) is None


def test_time_in_the_manager_is_counted_apart() -> None:
    """Only calls of the manager add to the clock, and only those that it has are there."""
    clock = Clock()
    timed = TimedManager(SimpleNamespace(free=lambda request: None, usage=0.5), clock)
    assert (clock.seconds, timed.usage, hasattr(timed, "take_kv_cache_block_copies")) == (
        0.0,
        0.5,
        False,
    )
    timed.free("a")
    assert clock.seconds > 0.0


def test_what_vllm_calls_in_the_harness_is_not_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler spends one second, then the observer that it calls ten, and the manager under
    that three, then it two.
    """
    now = [0.0]
    clock = Clock()
    monkeypatch.setattr(f"{Clock.__module__}.process_time", lambda: now[0])

    def spend(seconds: float, call: Callable[[], None] = lambda: None) -> None:
        now[0] += seconds
        call()

    manager = clock.inside(lambda: spend(3.0))
    observer = clock.outside(lambda: spend(10.0, manager))
    scheduler = clock.inside(lambda: (spend(1.0, observer), spend(2.0)))
    scheduler()
    assert clock.seconds == 1.0 + 3.0 + 2.0


def test_a_constructor_that_passes_everything_on_takes_what_its_base_takes() -> None:
    class Scheduler:
        def __init__(self, block_size: int) -> None:
            self.block_size = block_size

    class AsyncScheduler(Scheduler):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)

    assert (
        fill(source(), AsyncScheduler, {"block_size": 16, "moon": 1}, ["block_size"]).block_size
        == 16
    )
    with pytest.raises(UsageError, match="AsyncScheduler takes no 'moon'"):
        fill(source(), AsyncScheduler, {"block_size": 16, "moon": 1}, ["moon"])


def test_the_engine_is_registered_at_both_levels() -> None:
    """The registry knows what `vllm` is before anything of vLLM is imported."""
    assert (ENGINE.name, ENGINE.levels, "source" in ENGINE.options) == (
        "vllm",
        ("manager", "scheduler"),
        True,
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"connector": "simple", "sync_failures": "maybe"},
            "sync_failures is no or yes, not 'maybe'",
        ),
        (
            {"connector": "simple", "load_failure": "retry"},
            "load_failure is recompute or fail, not 'retry'",
        ),
        ({"key_events": "all"}, "key_events is one of open, strict, full, not 'all'"),
        ({"withdraw": "1"}, "withdraw is no or yes, not '1'"),
        (
            {"sync_failures": "yes"},
            "sync_failures is for loads of a connector, and the option connector names none",
        ),
        (
            {"connector": "", "load_failure": "fail"},
            "load_failure is for loads of a connector, and the option connector names",
        ),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(options: dict[str, str], message: str) -> None:
    """No option is read as its default because its value is not known."""
    with pytest.raises(UsageError, match=f"--engine vllm: {message}"):
        open_engine(HEADER, options)
