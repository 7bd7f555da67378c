"""The connector by hand: what is looked up, what is stored when, what is loaded, what a
preemption or an end leaves behind.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from cachewitness_reference.lmcache.checks import StartupError
from cachewitness_reference.lmcache.connector import ConnectorMetadata, LMCacheMPConnector
from cachewitness_reference.lmcache.groups import (
    KVLayerGroups,
    LayerSpec,
    create_engine_group_infos,
)
from cachewitness_reference.lmcache.keys import KeyRefused
from cachewitness_reference.lmcache.server import LMCacheServer
from cachewitness_reference.primitives import BlockId

FULL = LayerSpec("full", 4)
STATE = LayerSpec("mamba", 4)
TOKENS = list(range(1000, 1100))


class Engine:
    """An engine that has nothing of its own and a table for each group, one block per column."""

    def __init__(
        self,
        *specs: LayerSpec,
        chunk: int = 4,
        reserve: bool = False,
        save_decode_cache: bool = False,
    ) -> None:
        infos = create_engine_group_infos([{index: spec} for index, spec in enumerate(specs)])
        self.server = LMCacheServer(KVLayerGroups(infos, chunk, separate_object_groups=True), 100)
        self.connector = LMCacheMPConnector(
            self.server, reserve_last_token=reserve, save_decode_cache=save_decode_cache
        )
        self.specs = specs

    def admit(self, r: str, tokens: Sequence[int], on_device: int = 0) -> int:
        """Take a request in and return how many tokens it is to load."""
        if r not in self.connector.trackers:
            self.connector.on_new_request(r, tokens)
        external = self.connector.get_num_new_matched_tokens(r, on_device)
        self.connector.update_state_after_alloc(r, external)
        return external

    def step(
        self, r: str, tokens: int, columns: int, null: Sequence[int] = ()
    ) -> ConnectorMetadata:
        """Compute so many tokens of a request over tables of so many columns; `null` are those
        of its states.
        """
        table = [BlockId(1 + index) for index in range(columns)]
        states = [BlockId(0 if index in null else 51 + index) for index in range(columns)]
        tables = [states if spec.kind == "mamba" else table for spec in self.specs]
        metadata = self.connector.build_connector_meta({r: tokens}, {r: tables})
        self.connector.update_connector_output(metadata)
        return metadata


def stored(metadata: ConnectorMetadata) -> list[int]:
    """Return the blocks that a step stores."""
    return [copy.block_id for transfer in metadata.stores for copy in transfer.copies]


def loaded(metadata: ConnectorMetadata) -> list[int]:
    """Return the blocks that a step loads into."""
    return [copy.block_id for transfer in metadata.retrieves for copy in transfer.copies]


def test_chunks_are_stored_with_the_step_that_completes_them() -> None:
    """Steps of 6 over chunks of 4: one chunk, two more, and the tail of the prompt never."""
    engine = Engine(FULL)
    engine.admit("a", TOKENS[:14])
    assert [
        stored(engine.step("a", 6, 4)),
        stored(engine.step("a", 6, 4)),
        stored(engine.step("a", 2, 4)),
    ] == [[1], [2, 3], []]


def test_decode_generated_tokens_are_not_stored_by_default() -> None:
    """A prompt of 6 and two tokens generated: the second chunk is full, and kept only with
    save_decode_cache.
    """
    for save in (False, True):
        engine = Engine(FULL, save_decode_cache=save)
        engine.admit("a", TOKENS[:6])
        assert stored(engine.step("a", 6, 2)) == [1]
        found = []
        for token in (7, 8):
            engine.connector.on_new_tokens("a", [token])
            found += stored(engine.step("a", 1, 2))
        assert found == ([2] if save else [])


def test_what_every_table_covers_can_be_stored() -> None:
    """The group with the least covered prefix bounds all; a table of two columns holds two
    chunks.
    """
    engine = Engine(FULL)
    engine.admit("a", TOKENS[:12])
    assert stored(engine.step("a", 12, 2)) == [1, 2]


def test_the_longer_of_two_hits_counts_and_not_their_sum() -> None:
    """The device has 8 tokens, LMCache 4: of 12 the step computes the last 4; stored is what
    LMCache lacks.
    """
    engine = Engine(FULL)
    engine.admit("a", TOKENS[:4])
    engine.step("a", 4, 1)
    assert engine.admit("b", TOKENS[:13], on_device=8) == 0
    assert stored(engine.step("b", 4, 4)) == [2, 3]


def test_the_look_up_is_beyond_the_devices_own_hit() -> None:
    """LMCache has 12 tokens; of the device's 8 nothing is loaded, nor written."""
    engine = Engine(FULL)
    engine.admit("a", TOKENS[:12])
    engine.step("a", 12, 3)
    assert engine.admit("b", TOKENS[:13], on_device=8) == 4
    metadata = engine.step("b", 1, 4)
    assert loaded(metadata) == [3] and stored(metadata) == []


def test_the_devices_hit_is_rounded_down_to_whole_blocks_of_all() -> None:
    """A device that has a prompt of 12 but one token has 8 in whole blocks; LMCache loads the
    third.
    """
    engine = Engine(FULL)
    engine.admit("a", TOKENS[:12])
    engine.step("a", 12, 3)
    assert engine.admit("b", TOKENS[:12], on_device=11) == 0
    assert engine.connector.trackers["b"].num_vllm_hit_tokens == 8


@pytest.mark.parametrize(("length", "expected"), [(11, 8), (12, 11), (13, 12)])
def test_of_a_whole_prompt_the_last_token_is_computed_again(length: int, expected: int) -> None:
    """Without states, a prompt of whole chunks is hit as a whole, less one token."""
    engine = Engine(FULL)
    engine.admit("a", TOKENS[:16])
    engine.step("a", 16, 4)
    assert engine.admit("b", TOKENS[:length]) == expected


@pytest.mark.parametrize(("length", "expected"), [(11, 8), (12, 8), (13, 12)])
def test_with_states_the_last_token_is_reserved(length: int, expected: int) -> None:
    """A state after the last token cannot be resumed a token earlier: the look-up leaves the
    token, and so its chunk, out.
    """
    engine = Engine(FULL, STATE, reserve=True)
    engine.admit("a", TOKENS[:16])
    engine.step("a", 16, 4)
    assert engine.admit("b", TOKENS[:length]) == expected


def test_without_the_reserve_a_state_is_resumed_one_token_early() -> None:
    """0.5.4 and 0.5.5: 11 tokens are said to be there, over a state after 12."""
    engine = Engine(FULL, STATE)
    engine.admit("a", TOKENS[:16])
    engine.step("a", 16, 4)
    assert engine.admit("b", TOKENS[:12]) == 11
    assert loaded(engine.step("b", 1, 3, null=(0, 1))) == [1, 2, 3, 53]


def test_nothing_stays_locked_that_is_not_loaded() -> None:
    """The device has more than LMCache: all locks of the look-up are given back at admission."""
    engine = Engine(FULL)
    engine.admit("a", TOKENS[:8])
    engine.step("a", 8, 2)
    assert engine.admit("b", TOKENS[:13], on_device=12) == 0
    assert all(resident.read_locks == 0 for resident in engine.server.l1.objects.values())


def test_a_look_up_that_waits_is_asked_again() -> None:
    """Our choice: what was stored meanwhile is found, and locks do not pile up."""
    engine = Engine(FULL)
    engine.connector.on_new_request("b", TOKENS[:13])
    assert engine.connector.get_num_new_matched_tokens("b", 0) == 0
    engine.admit("a", TOKENS[:12])
    engine.step("a", 12, 3)
    assert [engine.connector.get_num_new_matched_tokens("b", 0) for _ in range(3)] == [12, 12, 12]
    assert {resident.read_locks for resident in engine.server.l1.objects.values()} == {1}


def test_a_preempted_request_starts_again() -> None:
    """What it stored is what it hits; it is neither stored nor counted twice."""
    engine = Engine(FULL)
    engine.admit("a", TOKENS[:14])
    engine.step("a", 14, 4)
    engine.connector.on_preempted("a")
    assert engine.admit("a", TOKENS[:14]) == 12
    metadata = engine.step("a", 2, 4)
    assert loaded(metadata) == [1, 2, 3] and stored(metadata) == []


def test_the_end_of_a_request_gives_back_its_locks() -> None:
    """Also of one that was looked up and never admitted."""
    engine = Engine(FULL)
    engine.admit("a", TOKENS[:8])
    engine.step("a", 8, 2)
    engine.connector.on_new_request("b", TOKENS[:9])
    assert engine.connector.get_num_new_matched_tokens("b", 0) == 8
    engine.connector.request_finished("b")
    assert engine.connector.reset_cache() and engine.admit("c", TOKENS[:9]) == 0


def test_a_reset_lets_go_of_look_ups_that_wait() -> None:
    engine = Engine(FULL)
    engine.admit("a", TOKENS[:8])
    engine.step("a", 8, 2)
    engine.connector.on_new_request("b", TOKENS[:9])
    engine.connector.get_num_new_matched_tokens("b", 0)
    assert engine.connector.reset_cache()
    assert engine.admit("b", TOKENS[:9]) == 0


def test_salts_and_adapters_keep_requests_apart() -> None:
    engine = Engine(FULL)
    for name, salt, adapter in (("plain", "", ""), ("salted", "one", ""), ("tuned", "", "tuned")):
        engine.connector.on_new_request(name, TOKENS[:9], salt=salt, adapter=adapter)
        assert engine.admit(name, TOKENS[:9]) == 0
        engine.step(name, 9, 3)
    with pytest.raises(KeyRefused):
        engine.connector.on_new_request("bad", TOKENS[:9], salt="a/b")


def test_a_chunk_that_is_no_multiple_is_refused_at_startup() -> None:
    """As at registration, by the group; here by the connector."""
    infos = create_engine_group_infos([{0: LayerSpec("full", 4)}, {1: LayerSpec("full", 6)}])
    layout = KVLayerGroups(infos, 12, separate_object_groups=True)
    layout.chunk_size = 8
    with pytest.raises(StartupError, match="LMCache chunk size 8 must be a multiple of 12"):
        LMCacheMPConnector(LMCacheServer(layout, 10), reserve_last_token=False)


def test_work_is_linear_in_what_is_new() -> None:
    """Storing a long prompt chunk by chunk hashes every token once: no digest is made twice."""
    engine = Engine(FULL)
    prompt = list(range(4000))
    engine.admit("a", prompt)
    seen: list[int] = []
    extend = engine.server.hasher.extend

    def counted(hashes: list[object], tokens: Sequence[int], adapter: str = "") -> None:
        before = len(hashes)
        extend(hashes, tokens, adapter)  # type: ignore[arg-type]
        seen.append(len(hashes) - before)

    engine.server.hasher.extend = counted  # type: ignore[assignment,method-assign]
    for _ in range(100):
        engine.step("a", 40, 1000)
    assert sum(seen) == 0, "the look-up at admission has hashed the whole prompt"
    assert len(engine.server.sessions["a"].hashes) == 1000
