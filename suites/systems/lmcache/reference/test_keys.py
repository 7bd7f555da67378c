"""What names a chunk: the whole prefix, the model, the rank, the object group, the salt;
adapters and images by our choice.
"""

from __future__ import annotations

import pytest

from cachewitness_reference.lmcache.keys import (
    KeyRefused,
    ObjectKey,
    TokenHasher,
    adjusted_ids,
    check_model_name,
    check_salt,
    kv_rank,
    lookup_ranks,
)
from cachewitness_reference.primitives import BlockHash
from cachewitness_reference.vllm.request import MultiModalFeature

TOKENS = list(range(100, 150))


def hashes(tokens: list[int], chunk: int = 16, adapter: str = "") -> list[BlockHash]:
    """Return the digests of a prompt's full chunks."""
    found: list[BlockHash] = []
    TokenHasher(chunk).extend(found, tokens, adapter)
    return found


def test_partial_chunks_have_no_name() -> None:
    assert [len(hashes(TOKENS[:length])) for length in (0, 15, 16, 17, 31, 32, 50)] == [
        0,
        0,
        1,
        1,
        1,
        2,
        3,
    ]


def test_a_digest_covers_the_whole_prefix() -> None:
    """Another first token changes every digest; another last one the last."""
    plain = hashes(TOKENS[:48])
    assert all(a != b for a, b in zip(plain, hashes([1, *TOKENS[1:48]]), strict=True))
    assert hashes([*TOKENS[:47], 1])[:2] == plain[:2] and hashes([*TOKENS[:47], 1])[2] != plain[2]
    assert len(set(plain)) == 3


def test_digests_are_rolled_on_and_not_computed_again() -> None:
    """Extending what is there reads the new chunks alone: the tokens before may be gone."""
    chain = hashes(TOKENS[:32])
    TokenHasher(16).extend(chain, [0] * 32 + TOKENS[32:48])
    assert chain == hashes(TOKENS[:48])


def test_chunk_size_is_in_the_key_through_what_is_hashed() -> None:
    """It has no field: chunks of 16 and of 32 have different digests because they cover
    different tokens.
    """
    assert not set(hashes(TOKENS[:32], 16)) & set(hashes(TOKENS[:32], 32))


def test_every_field_tells_objects_apart() -> None:
    digest = hashes(TOKENS)[0]
    plain = ObjectKey(digest, "model", 1)
    others = [
        ObjectKey(hashes(TOKENS)[1], "model", 1),
        ObjectKey(digest, "other", 1),
        ObjectKey(digest, "model", 2),
        ObjectKey(digest, "model", 1, 1),
        ObjectKey(digest, "model", 1, 0, "salt"),
    ]
    assert len({plain, *others}) == 6


def test_adapters_do_not_share() -> None:
    """Our choice; the released key has no adapter."""
    assert not set(hashes(TOKENS)) & set(hashes(TOKENS, adapter="tuned"))


def test_images_are_named_by_their_content_from_where_they_begin() -> None:
    """The same placeholders, another image: chunks before it are shared, those from it on are
    not.
    """
    cat, again, dog = (
        adjusted_ids(TOKENS, [MultiModalFeature(20, 8, name)]) for name in ("cat", "cat", "dog")
    )
    assert cat == again and cat[:20] == dog[:20] == TOKENS[:20] and cat[28:] == TOKENS[28:]
    assert len({*cat[20:28], *dog[20:28]}) == 16, "an id of its own at every place of every image"
    assert min(cat[20:28]) > 1 << 32, "no token's id"
    shared = [a == b for a, b in zip(hashes(cat), hashes(dog), strict=True)]
    assert shared == [True, False, False]


def test_an_image_that_reaches_beyond_the_prompt_is_cut() -> None:
    assert len(adjusted_ids(TOKENS[:10], [MultiModalFeature(8, 5, "cat")])) == 10


@pytest.mark.parametrize("salt", ["a@b", "a/b", "a\\b", "a\x00b"])
def test_salts_that_would_break_a_key_are_refused(salt: str) -> None:
    with pytest.raises(KeyRefused, match="cache_salt must not contain"):
        check_salt(salt)


def test_salts_and_model_names_have_limits() -> None:
    check_salt("s" * 128)
    with pytest.raises(KeyRefused, match="cache_salt exceeds max length 128"):
        check_salt("s" * 129)
    check_model_name("Qwen/Qwen3.5-0.8B")
    with pytest.raises(KeyRefused, match="model_name must not contain '@'"):
        check_model_name("a@b")


def test_rank_is_four_counts_of_a_byte() -> None:
    assert kv_rank(4, 2, 4, 2) == 0x04020402
    assert lookup_ranks(2) == [0x02000200, 0x02010201]


def test_latent_attention_alone_is_the_same_on_every_rank() -> None:
    """One share stands for all, which is wrong where states differ by rank (the fault of
    Kimi-Linear's first release).
    """
    assert lookup_ranks(4, mla_only=True) == [kv_rank(4, 0, 4, 0)]
    assert len(lookup_ranks(4)) == 4
