"""A tokenizer of whole words and whole numbers, reversible for any text.

Text is cut into words, numbers and marks, each with the one space before it; a piece that the
vocabulary lacks falls back to its characters and those to bytes. Decoding joins what encoding cut,
so `decode(encode(text)) == text`.

`tokenizer.json` is read by Hugging Face tokenizers too: a BPE without merges that takes a whole
piece if the vocabulary has it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from cachewitness_reference.toy_model.config import ModelError

PIECES = r" ?[A-Za-z]+| ?[0-9]+| ?#+| ?[^\sA-Za-z0-9#]|\s"
END, PAD = "<|endoftext|>", "<|pad|>"
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


class Tokenizer:
    """Turns text into token ids and back."""

    def __init__(self, vocabulary: dict[str, int]) -> None:
        self.vocabulary = vocabulary
        self._bytes = {number: _bytes_of(piece) for piece, number in vocabulary.items()}
        self._cut = re.compile(PIECES)

    @classmethod
    def load(cls, path: Path) -> Tokenizer:
        """Read `tokenizer.json`.

        Raises ModelError if it is missing or is another kind of tokenizer.
        """
        try:
            found = json.loads(path.read_text(encoding="utf-8"))["model"]["vocab"]
        except FileNotFoundError:
            raise ModelError(f"{path}: there is no such file") from None
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise ModelError(f"{path}: not a tokenizer of this model: {error}") from None
        if (
            not isinstance(found, dict)
            or {*map(type, found.values())} != {int}
            or min(found.values()) < 0
        ):
            raise ModelError(
                f"{path}: not a tokenizer of this model: its vocabulary has no numbers by piece"
            )
        if missing := [byte for byte in range(256) if f"<0x{byte:02X}>" not in found]:
            raise ModelError(
                f"{path}: not a tokenizer of this model: its vocabulary has no <0x{missing[0]:02X}>"
            )
        return cls(found)

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text."""
        ids: list[int] = []
        for piece in self._cut.findall(text):
            number = self.vocabulary.get(piece)
            if number is None:
                ids.extend(self._spelled(piece))
            else:
                ids.append(number)
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of token ids; marks that are no text (end, padding) are left out."""
        return b"".join(map(self.bytes_of, ids)).decode(errors="replace")

    def bytes_of(self, number: int) -> bytes:
        """Return what a token adds to a text: perhaps a part of a character, of a mark nothing."""
        return self._bytes[number]

    def _spelled(self, piece: str) -> Iterable[int]:
        for character in piece:
            number = self.vocabulary.get(character)
            if number is not None:
                yield number
            else:
                yield from (self.vocabulary[f"<0x{byte:02X}>"] for byte in character.encode())


def _bytes_of(piece: str) -> bytes:
    if piece in (END, PAD):
        return b""
    byte = _BYTE.fullmatch(piece)
    return bytes([int(byte[1], 16)]) if byte else piece.encode()


def vocabulary(pieces: Iterable[str]) -> dict[str, int]:
    """Return a vocabulary of the given pieces, printable ASCII characters, newline and all
    bytes.
    """
    singles = [chr(code) for code in range(32, 127)] + ["\n"]
    fallback = [f"<0x{byte:02X}>" for byte in range(256)]
    ordered = dict.fromkeys([PAD, END, *singles, *pieces, *fallback])
    return {piece: number for number, piece in enumerate(ordered)}


def as_hugging_face(vocabulary: dict[str, int]) -> dict[str, Any]:
    """Return the content of a `tokenizer.json` that Hugging Face tokenizers load."""
    special = [
        {
            "id": vocabulary[mark],
            "content": mark,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
        }
        | {"normalized": False, "special": True}
        for mark in (PAD, END)
    ]
    split = {"type": "Split", "pattern": {"Regex": PIECES}, "behavior": "Isolated", "invert": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": None,
        "pre_tokenizer": split,
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": True,
            "ignore_merges": True,
            "vocab": vocabulary,
            "merges": [],
        },
    }
