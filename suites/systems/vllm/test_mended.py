"""What was found in earlier releases and is mended, on the real vLLM that
`CACHEWITNESS_VLLM_SOURCE` names.

On 0.33.0 all of it passes. On the release in which something was found (`version` of the register)
it is found again, with the register's sentence: `CACHEWITNESS_VLLM_SOURCE=…/vllm-0.31.0 pytest -m
vllm suites/systems/vllm/test_mended.py`.
"""

from __future__ import annotations

import pytest

from benchmarks import findings
from cachewitness._util.errors import UsageError
from cachewitness.core.driving import drive
from cachewitness.core.events import Hit, Publish, Read
from cachewitness.core.trace_format import load
from cachewitness.engines.registry import parse
from suites.support.real_vllm import REAL, SOURCE

MENDED = [one for one in findings.register() if one.engine == "vLLM" and "Mended in" in one.happens]


def test_there_are_some_and_each_has_a_trace() -> None:
    assert len(MENDED) >= 7 and all(one.trace and one.version < "0.33" for one in MENDED)


@pytest.mark.parametrize("one", [pytest.param(one, marks=REAL, id=one.trace) for one in MENDED])
def test_it_passes_now_and_is_found_where_it_was_found(one: findings.Finding) -> None:
    trace = load(findings.folder() / one.trace)
    try:
        result = drive(trace, parse(f"vllm:source={SOURCE}").open(trace.header))
    except UsageError as refused:
        pytest.skip(str(refused))
    version = result.history.header.engine_version
    if version == one.version:
        assert (one.anomaly, one.sentence) in [
            (finding.anomaly, finding.sentence) for finding in result.findings
        ]
    elif version == "0.33.0":
        assert result.findings == []
        assert any(isinstance(event, Read | Hit | Publish) for event in result.history.events), (
            "something ran"
        )
    else:
        pytest.skip(
            f"this is vLLM {version}; it was found in {one.version}, and 0.33.0 has it mended"
        )
