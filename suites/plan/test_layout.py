"""`plan layout`: the file that it writes is the layout and the model of the configuration, and a
run takes it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cachewitness._util.errors import UsageError
from cachewitness.cli import EXIT_USAGE, invoke
from cachewitness.core.driving import drive
from cachewitness.engines import policy as policies
from cachewitness.engines.registry import parse
from cachewitness.plan import sources
from cachewitness.plan.layout_file import text_of
from cachewitness.workloads import layouts
from cachewitness.workloads.configurations import Configuration
from cachewitness.workloads.generate import random_trace
from suites.support.model_configs import PUBLISHED, written


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_file_is_what_a_plan_of_the_configuration_works_from(name: str, tmp_path: Path) -> None:
    config = written(tmp_path, PUBLISHED[name])
    out = tmp_path / "mine.toml"
    assert (
        invoke(["plan", "layout", "--config", str(config), "--out", str(out), "--name", name]) == 0
    )
    assert layouts.load(out).groups == sources.layout(str(config)).groups
    assert layouts.model(out) == sources.model(str(config))
    assert layouts.load(out).name == name


def test_the_file_goes_to_standard_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = written(tmp_path, PUBLISHED["gpt-oss-20b"])
    assert invoke(["plan", "layout", "--config", str(config)]) == 0
    assert capsys.readouterr().out == text_of(config)


def test_a_kernel_that_exports_states_at_multiples_coarsens_the_blocks(tmp_path: Path) -> None:
    """Qwen3.5 on Hopper, as its own layout has it."""
    out = tmp_path / "mine.toml"
    out.write_text(text_of(written(tmp_path, PUBLISHED["qwen3.5-0.8b"]), "x", 64))
    assert layouts.load(out).groups == layouts.load("qwen3.5-0.8b-hopper").groups
    assert layouts.model(out).checkpoint_alignment == 64


@pytest.mark.parametrize(
    "name", ["jamba-1.5-mini", "nemotron-3-nano-4b", "lfm2-8b-a1b", "gemma-3-27b"]
)
def test_a_run_takes_it(name: str, tmp_path: Path) -> None:
    """Random work on the reference, on the groups of the file, with hits and without a finding."""
    out = tmp_path / "mine.toml"
    out.write_text(text_of(written(tmp_path, PUBLISHED[name])))
    configuration: Configuration = policies.get("vllm").layouts.variants(layouts.load(out))[0]
    trace = random_trace(configuration.shape("manager"), 0, withdraw=False)
    result = drive(trace, parse("reference").open(trace.header))
    assert [finding.sentence for finding in result.findings] == []
    assert result.activity.hits


@pytest.mark.parametrize("folder", ['a"b', "a\\b", "a\x7fb", "ä\tb", "a\nb"])
def test_a_path_of_any_letters_is_written_as_toml(folder: str, tmp_path: Path) -> None:
    (tmp_path / folder).mkdir()
    config = written(tmp_path / folder, PUBLISHED["gpt-oss-20b"])
    out = tmp_path / "mine.toml"
    out.write_text(text_of(config), encoding="utf-8")
    assert layouts.model(out).config == str(config)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        (
            {"layer_types": ["linear_attention"] * 40},
            "vLLM caches no prefix of a model without attention",
        ),
        ({"model_type": "gpt2"}, "model_type: 'gpt2' is not known here"),
    ],
)
def test_a_model_that_the_rules_do_not_fit_is_refused(
    changed: dict[str, Any], says: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=says):
        text_of(written(tmp_path, PUBLISHED["granite-4.0-h-small"] | changed))


def test_a_run_of_a_configuration_says_how_to_make_a_layout(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = written(tmp_path, PUBLISHED["gpt-oss-20b"])
    assert invoke(["run", "--layout", str(config)]) == EXIT_USAGE
    assert "`cachewitness plan layout` makes a layout of a configuration" in capsys.readouterr().err
    assert invoke(["plan", "layout", "--config", str(tmp_path / "mine.toml")]) == EXIT_USAGE
    assert "whose name ends in .json" in capsys.readouterr().err
