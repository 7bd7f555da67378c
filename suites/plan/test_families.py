"""Further types of configurations: what their layers keep, against arithmetic by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cachewitness._util.errors import UsageError
from cachewitness.plan.config import read
from cachewitness.plan.config.families import FAMILIES
from cachewitness.plan.config.read import REFUSED
from cachewitness.systems.vllm.reference.plan import Request, plan
from cachewitness.workloads.model import Full, Indexer, Latent, Recurrent, Sliding
from suites.support.model_configs import written
from suites.support.model_families import BY_FIELDS


def described(cache: Any) -> tuple[str, tuple[int, tuple[int, ...]]]:
    if isinstance(cache, Recurrent):
        shape = (cache.conv_channels, cache.conv_kernel, *cache.state_shape)
        return "recurrent", (cache.layers, shape)
    if isinstance(cache, Sliding):
        return "sliding", (cache.layers, (cache.kv_heads, cache.head_dim, cache.window))
    if isinstance(cache, Full):
        return "full", (cache.layers, (cache.kv_heads, cache.head_dim))
    assert isinstance(cache, Latent | Indexer)
    return type(cache).__name__.lower(), (cache.layers, (cache.width,))


@pytest.mark.parametrize("name", BY_FIELDS)
def test_what_the_layers_keep(name: str, tmp_path: Path) -> None:
    case = BY_FIELDS[name]
    path = written(tmp_path, case.table)
    model = read.model(path)
    assert dict(described(cache) for cache in model.caches) == case.caches
    assert model.draft_layers == case.drafters
    answer = plan(Request(str(path), prompt_tokens=1024, memory=1 << 34))
    assert answer.value("starts") is True


def test_a_type_that_vllm_no_longer_builds_is_told(tmp_path: Path) -> None:
    model = read.model(written(tmp_path, BY_FIELDS["bamba: attention by number"].table))
    assert "vLLM has no model of this type after 0.23.0" in model.unverified


@pytest.mark.parametrize("kind", REFUSED)
def test_a_type_whose_caches_are_not_worked_out_says_why(kind: str, tmp_path: Path) -> None:
    """No other model's name is suggested."""
    path = written(tmp_path, {"model_type": kind, "num_hidden_layers": 2})
    with pytest.raises(UsageError) as caught:
        read.model(path)
    assert str(caught.value) == f"{path}: model_type: {kind!r}: {REFUSED[kind]}"
    assert not any(f" {family!r}" in REFUSED[kind] for family in FAMILIES)


def test_an_unknown_type_says_which_of_its_fields_would_decide(tmp_path: Path) -> None:
    table = {"model_type": "mystery", "ssm_width": 7, "kv_lora_rank": 512, "vocab_size": 9}
    with pytest.raises(UsageError, match="would follow from kv_lora_rank, ssm_width, by the model"):
        read.model(written(tmp_path, table))
    with pytest.raises(UsageError, match="no field that says what a layer keeps"):
        read.model(written(tmp_path, {"model_type": "mystery", "vocab_size": 9}))
