"""What is put into vLLM from outside: named plug-ins, a scheduler, a connector. A lawful one
passes, a wrong one is found, and one that cannot be imported is one line and exit code 4.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cachewitness._util.errors import EngineMissing, UsageError
from cachewitness.cli import invoke
from cachewitness.core.driving import drive
from cachewitness.core.events import Hit
from cachewitness.core.result import Result
from cachewitness.core.trace_format import Finish, Op, Reset, Step, Submit, Trace, TraceHeader
from cachewitness.engines.registry import parse
from cachewitness.systems.vllm.plugged import (
    ALLOWED,
    allow,
    blamed,
    imported,
    prepared_by,
    settings,
    start,
)
from cachewitness.workloads import layouts
from suites.support.real_vllm import REAL, SOURCE

PACKAGE = '''
def register():
    CALLED.append("register")

def sized(kv_cache_config):
    CALLED.append(kv_cache_config)

def leave():
    raise SystemExit(0)

class Frugal:
    """What nothing can refer to weakly."""

    __slots__ = ()

    def __call__(self, kv_cache_config):
        CALLED.append(f"frugal {kv_cache_config}")

FRUGAL = Frugal()
SIGNATURELESS = dict
CALLED = []
'''
LEAVING = "raise SystemExit(0)\n"
MUTE = """
class Mute(Exception):
    def __str__(self):
        raise RuntimeError

raise Mute
"""
BROKEN = "import a_driver_that_is_not_there\n"
SCHEDULERS = '''
from vllm.v1.core.sched.scheduler import Scheduler

class Counting(Scheduler):
    """Decides as vLLM does, and counts."""
    steps = 0

    def schedule(self, *args, **kwargs):
        type(self).steps += 1
        return super().schedule(*args, **kwargs)

class Leaking(Scheduler):
    """Keeps the blocks of who is over."""

    def _free_request_blocks(self, request):
        pass
'''
CONNECTORS = '''
from vllm.distributed.kv_transfer.kv_connector.v1.example_connector import ExampleConnector

class Same(ExampleConnector):
    """Does as vLLM's example."""

class Drifting(ExampleConnector):
    """Names a folder by the length of its prompt, if its configuration says so."""

    def _generate_foldername_debug(self, token_ids, *args, **kwargs):
        settings = self._kv_transfer_config.kv_connector_extra_config
        if "lengths" in settings.get("names", []):
            token_ids = token_ids * 0
        return super()._generate_foldername_debug(token_ids, *args, **kwargs)

class Stranger:
    pass
'''
OWN = '''
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    SupportsHMA,
)

class Told(KVConnectorMetadata):
    def __init__(self):
        self.loads, self.saves, self.beside = [], [], {}

class Own(KVConnectorBase_V1, SupportsHMA):
    """Keeps each whole block of a prompt, in every group, by the tokens in front of its end.

    It loads before a step, or `later`: when the step has run (1), or another one (2).
    """

    def __init__(self, config, role, kv_cache_config):
        super().__init__(config, role, kv_cache_config)
        self.settings = config.kv_transfer_config.kv_connector_extra_config
        self.fault = self.settings.get("fault")
        self.kept = self.settings.setdefault("kept", {})
        self.groups = kv_cache_config.kv_cache_groups
        self.size = self.groups[0].kv_cache_spec.block_size
        self.loads, self.seen, self.first = {}, {}, {}
        self.later = self.settings.get("later", 0)
        self.beside, self.waiting, self.over = {}, [], set()

    def register_kv_caches(self, caches):
        self.caches = caches

    def key(self, request, index):
        tokens = tuple(request.prompt_token_ids[: (index + 1) * self.size])
        return (index,) if self.fault == "place" else tokens, request.cache_salt

    def get_num_new_matched_tokens(self, request, computed):
        index = first = computed // self.size
        again = request.num_preemptions > 0
        most = 0 if again else (len(request.prompt_token_ids) - 1) // self.size
        while index < most and self.key(request, index) in self.kept:
            index += 1
        self.first[request.request_id] = first
        return (index - first) * self.size, index > first and self.later > 0

    def update_state_after_alloc(self, request, blocks, external):
        r = request.request_id
        self.seen[r] = request
        if external and self.later:
            rows, first = blocks.get_block_ids(), self.first[r]
            places = range(first, first + external // self.size)
            self.beside[r] = [(self.key(request, i), [row[i] for row in rows]) for i in places]
        elif external:
            self.loads[r] = external // self.size

    def request_finished_all_groups(self, request, block_ids):
        return False, None

    def build_connector_meta(self, output):
        told = Told()
        told.beside, self.beside = self.beside, {}
        for new in output.scheduled_new_reqs:
            request, rows = self.seen[new.req_id], new.block_ids
            start = new.num_computed_tokens // self.size
            count = self.loads.pop(new.req_id, 0)
            shift = self.fault == "shift"
            for index in range(start - count, start):
                told.loads.append((self.key(request, index), [row[index - shift] for row in rows]))
            stop = new.num_computed_tokens + output.num_scheduled_tokens[new.req_id]
            last = min(stop, len(request.prompt_token_ids)) // self.size
            for index in range(start, last + (self.fault == "early")):
                told.saves.append((self.key(request, index), [row[index] for row in rows]))
        return told

    def group_of(self, name):
        return next(i for i, group in enumerate(self.groups) if name in group.layer_names)

    def load(self, name, cache, loads):
        cache = cache[0] if isinstance(cache, list) else cache
        for key, blocks in loads:
            if block := blocks[self.group_of(name)]:
                target = cache[block].view(-1)
                count = len(target) // 2 if self.fault == "half" else len(target)
                target[:count] = self.kept[key][name].view(-1)[:count]

    def start_load_kv(self, context, **kwargs):
        for name, layer in context.no_compile_layers.items():
            self.load(name, layer.kv_cache, self._get_connector_metadata().loads)

    def get_finished(self, finished):
        over, self.over = self.over, set()
        self.waiting.append(self._get_connector_metadata().beside)
        if len(self.waiting) >= self.later:
            for r, loads in self.waiting.pop(0).items():
                shifted = [(key, [b - (self.fault == "shift") for b in bs]) for key, bs in loads]
                for name, cache in self.caches.items():
                    self.load(name, cache, shifted)
                if self.fault != "unsaid":
                    self.over.add(r)
        return None, over

    def wait_for_layer_load(self, name):
        pass

    def save_kv_layer(self, name, cache, metadata, **kwargs):
        cache = cache[0] if isinstance(cache, list) else cache
        for key, blocks in self._get_connector_metadata().saves:
            block = blocks[self.group_of(name)]
            self.kept.setdefault(key, {}).setdefault(name, cache[block].clone())

    def wait_for_save(self):
        pass

    def reset_cache(self):
        self.kept.clear()
        return True
'''


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Make a folder with a distribution that has plug-ins of vLLM, schedulers and connectors."""
    for name, text in {
        "plugged_one": PACKAGE,
        "plugged_broken": BROKEN,
        "plugged_leaving": LEAVING,
        "plugged_mute": MUTE,
        "plugged_schedulers": SCHEDULERS,
        "plugged_connectors": CONNECTORS,
        "plugged_own": OWN,
    }.items():
        (tmp_path / f"{name}.py").write_text(text)
    described = tmp_path / "plugged-1.0.dist-info"
    described.mkdir()
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: plugged\nVersion: 1.0\n")
    (described / "entry_points.txt").write_text(
        "[vllm.general_plugins]\none = plugged_one:register\n"
        "[vllm.platform_plugins]\nbroken = plugged_broken:register\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setenv(ALLOWED, "everything")
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("plugged_")]:
        del sys.modules[name]


def test_no_plug_in_is_loaded_that_was_not_named(package: Path) -> None:
    """Whatever is installed, and whatever the variable said before."""
    assert allow("") == []
    assert os.environ[ALLOWED] == ""
    assert allow("one") == ["one"]
    assert os.environ[ALLOWED] == "one"


@pytest.mark.parametrize(
    ("named", "line"),
    [
        ("one+two", "no plug-in is called 'two'; known are broken, one"),
        (
            "broken",
            "cannot be imported: ModuleNotFoundError: No module named 'a_driver_that_is_not",
        ),
        ("broken", "plugins=broken: plug-in 'broken' (plugged_broken:register)"),
    ],
)
def test_whose_import_fails_is_named(package: Path, named: str, line: str) -> None:
    with pytest.raises(UsageError) as refused:
        start(allow(named))
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)


def test_what_a_platform_lacks_is_no_package_of_vllm_s() -> None:
    """VLLM imports a platform with itself, and what is missing then looks like its own."""
    missing = EngineMissing("vllm needs the package rebel, which is missing; pip install …")
    with (
        pytest.raises(UsageError, match=r"vllm:plugins=rbln: vLLM cannot be imported with this pl"),
        blamed(["rbln"]),
    ):
        raise missing
    with pytest.raises(EngineMissing), blamed([]):
        raise missing


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("Class", "write module:Class"),
        ("plugged_nowhere:Class", "plugged_nowhere cannot be imported: ModuleNotFoundError"),
        ("plugged_broken:Class", "cannot be imported: ModuleNotFoundError: No module named 'a_dri"),
        ("plugged_leaving:Class", "plugged_leaving ends the process that imports it (0)"),
        ("plugged_mute:Class", "plugged_mute cannot be imported: Mute"),
        ("plugged_one:Class", "plugged_one has no class 'Class'"),
        ("plugged_one:register", "plugged_one has no class 'register'"),
    ],
)
def test_a_class_that_is_not_there_is_one_line(package: Path, name: str, line: str) -> None:
    with pytest.raises(UsageError) as refused:
        imported("scheduler_cls", name)
    assert line in str(refused.value)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("install", "write module:function"),
        ("plugged_one:install", "plugged_one has no function 'install'"),
        ("plugged_one:CALLED", "plugged_one has no function 'CALLED'"),
        ("plugged_one:leave", "prepare=plugged_one:leave: failed: SystemExit: 0"),
        ("plugged_one:SIGNATURELESS", "SIGNATURELESS: failed: ValueError: no signature found"),
    ],
)
def test_what_cannot_prepare_is_one_line(package: Path, name: str, line: str) -> None:
    with pytest.raises(UsageError) as refused:
        prepared_by(name)(kv_cache_config=None)
    assert line in str(refused.value)


def test_what_prepares_is_given_what_it_takes(package: Path) -> None:
    prepared_by("plugged_one:sized")(kv_cache_config="sizes", vllm_config="all")
    prepared_by("plugged_one:register")(kv_cache_config="sizes")
    prepared_by("")(kv_cache_config="sizes")
    prepared_by("plugged_one:FRUGAL")(kv_cache_config="sizes")
    assert sys.modules["plugged_one"].CALLED == ["sizes", "register", "frugal sizes"]


def test_a_connector_s_configuration_is_json() -> None:
    assert settings("connector_config", '{"a": {"b": [1, 2]}}') == {"a": {"b": [1, 2]}}
    assert settings("connector_config", "") == {}
    for text in ("{", "[1]", "1"):
        with pytest.raises(UsageError, match="is no JSON"):
            settings("connector_config", text)


def test_commas_inside_json_part_no_options() -> None:
    spec = parse('vllm:connector=m:C,connector_config={"a": 1, "b": [1, 2]},plugins=one+two')
    assert spec.options == {
        "connector": "m:C",
        "connector_config": '{"a": 1, "b": [1, 2]}',
        "plugins": "one+two",
    }
    assert parse(spec.text).options == spec.options


def stored_and_asked_again(prompt: str) -> list[Op]:
    return [
        Submit("r1", "a:70"),
        *[Step()] * 3,
        Finish("r1"),
        Step(),
        Reset(running=True, tier="local"),
        Submit("r2", prompt),
        *[Step()] * 8,
    ]


def run(options: str, prompt: str = "a:70", chunk: int = 128, layout: str = "full") -> Result:
    header = TraceHeader(
        "t",
        layouts.load(layout),
        40,
        level="scheduler",
        options={"max_num_batched_tokens": chunk},
    )
    engine = parse(f"vllm:source={SOURCE},{options}").open(header)
    return drive(Trace(header, stored_and_asked_again(prompt)), engine)


class TestOnVllm:
    """On the real vLLM (`ci/stage_vllm.sh`)."""

    pytestmark = REAL

    def test_a_lawful_scheduler_passes_and_was_asked(self, package: Path) -> None:
        result = run("scheduler_cls=plugged_schedulers:Counting")
        assert result.findings == []
        assert sys.modules["plugged_schedulers"].Counting.steps > 0

    def test_a_wrong_scheduler_is_found(self, package: Path) -> None:
        result = run("scheduler_cls=plugged_schedulers:Leaking")
        assert "leak" in {finding.anomaly for finding in result.findings}

    def test_a_lawful_connector_passes_and_was_hit(self, package: Path) -> None:
        result = run("connector=plugged_connectors:Same")
        hit = [event for event in result.history.events if isinstance(event, Hit)][-1]
        assert result.findings == []
        assert (hit.r, hit.tier, hit.resume) == ("r2", "cpu", 64)

    def test_a_connector_that_drifts_is_found(self, package: Path) -> None:
        """With this configuration another prompt of one length is served; without it, none is."""
        config = '{"names": ["lengths", "only"], "depth": 1}'
        drifting = f"connector=plugged_connectors:Drifting,connector_config={config}"
        assert "stale-hit" in {finding.anomaly for finding in run(drifting, "b:70").findings}
        assert run("connector=plugged_connectors:Drifting", "b:70").findings == []

    @pytest.mark.parametrize("later", [0, 1])
    @pytest.mark.parametrize("layout", ["full", "full-swa", "full-mamba"])
    def test_a_connector_of_its_own_passes_and_was_hit(
        self, package: Path, layout: str, later: int
    ) -> None:
        """It derives from vLLM's base class alone, and loads before the step or beside it."""
        config = json.dumps({"later": later})
        result = run(f"connector=plugged_own:Own,connector_config={config}", layout=layout)
        hit = [event for event in result.history.events if isinstance(event, Hit)][-1]
        assert result.findings == []
        assert (hit.r, hit.tier, hit.resume) == ("r2", "cpu", 64)

    @pytest.mark.parametrize(
        ("fault", "later", "prompt", "anomaly"),
        [
            ("place", 0, "b:70", "stale-hit"),
            ("shift", 0, "a:70", "stale-hit"),
            ("half", 0, "a:70", "stale-hit"),
            ("early", 0, "a:70", "partial-commit"),
            ("place", 1, "b:70", "stale-hit"),
            ("shift", 1, "a:70", "stale-hit"),
            ("half", 1, "a:70", "stale-hit"),
            ("unsaid", 1, "a:70", "no-progress"),
        ],
    )
    def test_a_connector_of_its_own_that_is_wrong_is_found(
        self, package: Path, fault: str, later: int, prompt: str, anomaly: str
    ) -> None:
        """It names a block by its place, loads into the block in front, or half of one, saves one
        that is not whole; loads beside a step, and never says so.
        """
        config = json.dumps({"fault": fault, "later": later})
        options = f"connector=plugged_own:Own,connector_config={config}"
        found = run(options, prompt, 24 if fault == "early" else 128).findings
        assert anomaly in {finding.anomaly for finding in found}

    @pytest.mark.parametrize("later", [0, 1])
    def test_a_null_block_that_is_taken_for_a_state_is_found(
        self, package: Path, later: int
    ) -> None:
        """It keeps a block of each group at each end of a block, and states are kept at few."""
        options = f"connector=plugged_own:Own,connector_config={json.dumps({'later': later})}"
        found = run(options, "a:40", layout="full-mamba").findings
        assert "stale-hit" in {finding.anomaly for finding in found}

    def test_a_load_that_takes_more_than_its_step_is_not_driven(self, package: Path) -> None:
        config = json.dumps({"later": 2})
        with pytest.raises(UsageError, match="takes more than the step in which it is asked for"):
            run(f"connector=plugged_own:Own,connector_config={config}")

    @pytest.mark.parametrize(
        ("options", "line"),
        [
            ("connector=plugged_connectors:Stranger", "derives from no connector of vLLM's"),
            ("scheduler_cls=plugged_connectors:Stranger", "does not derive from vLLM's Scheduler"),
            (
                "scheduler_cls=plugged_schedulers:Counting,observer=plugged_connectors:Stranger",
                "does not derive from cachewitness.engines.observe:ObservedManager",
            ),
            ("observer=plugged_connectors:Stranger", "observer is for a scheduler_cls"),
            ("plugins=broken", "plug-in 'broken' (plugged_broken:register) cannot be imported"),
            (
                "connector_config={}",
                "connector_config is for a connector, and the options name none",
            ),
        ],
    )
    def test_what_does_not_fit_is_one_line_and_exit_code_4(
        self, package: Path, options: str, line: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        engine = f"vllm:source={SOURCE},{options}"
        words = ["run", "--engine", engine, "--suite", "scheduler", "--layout", "full"]
        assert invoke(words) == 4
        lines = capsys.readouterr().err.splitlines()
        assert line in lines[-1]

    def test_a_plug_in_that_is_named_is_run(self, package: Path) -> None:
        assert run("plugins=one").findings == []
        assert "register" in sys.modules["plugged_one"].CALLED
