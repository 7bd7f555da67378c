"""What a configuration refuses, and what it derives: vLLM's own rules, one clear line each."""

from __future__ import annotations

from typing import Any

import pytest

from cachewitness.core.trace_format import GroupSpec, Layout, TraceHeader
from cachewitness.systems.vllm.reference.engine import open_engine
from cachewitness_reference.vllm.config import (
    AbsentRule,
    ConfigError,
    Options,
    build,
    kv_cache_config,
    make_spec,
)
from cachewitness_reference.vllm.spec import RELEASES, RULES

FULL = {"kind": "full", "block_size": 16}
WINDOW = {"kind": "sliding", "block_size": 16, "window": 32}
MAMBA = {"kind": "recurrent", "block_size": 16}
WIDE = {"kind": "recurrent", "block_size": 32}


@pytest.mark.parametrize(
    ("groups", "options", "names"),
    [
        ([FULL, MAMBA], {"retention_interval": -16}, "retention_interval"),
        ([FULL, MAMBA], {"retention_interval": 24}, "retention_interval"),
        ([FULL, WIDE], {"retention_interval": 48}, "retention_interval"),
        ([FULL], {"retention_interval": 16}, "retention_interval"),
        ([FULL], {"retention_interval": 0, "release": "0.24"}, "retention_interval"),
        ([FULL, MAMBA], {"retention_interval": 0, "release": "0.23"}, "retention_interval"),
        ([FULL, WINDOW], {"retention_interval": 0, "release": "0.22"}, "retention_interval"),
        ([FULL, MAMBA], {"hash_block_size": 12}, "hash_block_size"),
        ([FULL, MAMBA], {"hash_block_size": 0}, "hash_block_size"),
        ([FULL], {"hash_block_size": 8}, "hash_block_size"),
        ([MAMBA, WIDE], {}, "recurrent groups"),
        ([FULL, MAMBA], {"mamba_cache_mode": "none"}, "mamba_cache_mode"),
        ([FULL, MAMBA], {"mamba_cache_mode": "all"}, "mamba_cache_mode"),
        ([FULL, WIDE], {"mamba_cache_mode": "all", "release": "0.25"}, "mamba_cache_mode"),
        ([FULL], {"watermark": 1.0}, "watermark"),
        ([FULL], {"release": "0.1"}, "release"),
        ([FULL], {"retention": 0}, "retention"),
        ([FULL], {"use_eagle": 1}, "use_eagle"),
        ([FULL, MAMBA], {"use_eagle": True, "eagle_groups": [2]}, "eagle_groups"),
        ([FULL, MAMBA], {"use_eagle": True, "eagle_groups": 1}, "eagle_groups"),
        ([FULL, MAMBA], {"eagle_groups": [0]}, "use_eagle"),
        ([{"kind": "sliding", "block_size": 16}], {}, "window"),
        ([{"kind": "full", "block_size": 0}], {}, "block_size"),
        ([{"kind": "ring", "block_size": 16}], {}, "ring"),
        ([], {}, "groups"),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused_in_one_line(
    groups: list[dict[str, Any]], options: dict[str, Any], names: str
) -> None:
    with pytest.raises(ConfigError) as refusal:
        build(groups, 20, options)
    assert names in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "option", ["num_prefill_lookahead", "kv_connector", "num_hash_lookahead_tokens"]
)
def test_an_option_of_an_absent_rule_is_refused_by_the_name_of_the_rule(option: str) -> None:
    with pytest.raises(AbsentRule) as refusal:
        build([FULL], 20, {option: 1})
    absent = [name for name, rule in RULES.items() if not rule.implemented]
    assert any(repr(name) in str(refusal.value) for name in absent)


def test_a_chunked_group_is_an_absent_rule() -> None:
    with pytest.raises(AbsentRule):
        make_spec("chunked", 16, 0, Options())


def test_every_release_is_known_and_the_interval_default_turns_sparse_once() -> None:
    defaults = [
        build([FULL, MAMBA], 20, {"release": release}).prefix_cache_retention_interval
        for release in RELEASES
    ]
    assert defaults == [None] * 7 + [0] * 5


def test_sizes_are_derived_from_the_groups() -> None:
    config = build([{"kind": "full", "block_size": 24}, WINDOW, WIDE], 20, {})
    assert (config.scheduler_block_size, config.hash_block_size) == (96, 8)


@pytest.mark.parametrize(
    ("groups", "hash_block_size", "partial"),
    [
        ([FULL, MAMBA], None, False),
        ([FULL, MAMBA], 4, True),
        ([FULL, WIDE], None, True),
        ([FULL, WINDOW, MAMBA], 4, False),
        ([FULL, WINDOW, WIDE], None, True),
        ([FULL, WINDOW], 4, False),
    ],
)
def test_hits_inside_a_block_need_a_wider_state_and_no_window_wider_than_a_hash(
    groups: list[dict[str, Any]], hash_block_size: int | None, partial: bool
) -> None:
    config = build(groups, 20, {"hash_block_size": hash_block_size})
    assert config.enable_partial_hash_hits is partial
    assert (
        build(
            groups, 20, {"hash_block_size": hash_block_size, "release": "0.25"}
        ).enable_partial_hash_hits
        is False
    )


def test_mode_none_gives_every_request_one_state_block() -> None:
    options = {"mamba_cache_mode": "none", "enable_caching": False, "max_model_len": 512}
    config = build([FULL, MAMBA], 20, options)
    assert [group.kv_cache_spec.block_size for group in config.kv_cache_groups] == [16, 512]


def test_a_configuration_needs_a_block_beside_the_null_block() -> None:
    with pytest.raises(ConfigError, match="num_blocks"):
        kv_cache_config([make_spec("full", 16, 0, Options())], 1)


@pytest.mark.parametrize(
    ("named", "declared"), [([], []), ([0], [0]), ([1], [1, 3]), ([0, 1, 2, 3], [0, 1, 2, 3])]
)
def test_groups_that_are_looked_up_together_give_back_together(
    named: list[int], declared: list[int]
) -> None:
    """Two windows of one specification are one question: a drafter that reads one of them marks
    both.
    """
    groups = [
        GroupSpec("full", 16),
        GroupSpec("sliding", 16, 40),
        GroupSpec("recurrent", 16),
        GroupSpec("sliding", 16, 40),
    ]
    options = {"use_eagle": True, "eagle_groups": named}
    engine = open_engine(TraceHeader("t", Layout("t", groups), 40, options=options), {})
    assert engine.describe().rules.eagle_groups == declared
