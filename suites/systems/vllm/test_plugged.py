"""What is put into vLLM from outside: named plug-ins, a scheduler, a connector. A lawful one
passes, a wrong one is found, and one that cannot be imported is one line and exit code 4.
"""

from __future__ import annotations

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
        *[Step()] * 3,
    ]


def run(options: str, prompt: str = "a:70") -> Result:
    header = TraceHeader(
        "t",
        layouts.load("full"),
        40,
        level="scheduler",
        options={"max_num_batched_tokens": 128},
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

    @pytest.mark.parametrize(
        ("options", "line"),
        [
            ("connector=plugged_connectors:Stranger", "derives from no connector whose memory"),
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
