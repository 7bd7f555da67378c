"""Stands in for what exllamav3 has on a device: the model, its layers' memory, the functions of its
extension, the sampler and the tokenizer. Each says what it is asked to do, and holds nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple, Protocol

VOCABULARY = 32
"""The width of logits that nobody reads."""
SLOT = 4096
"""The bytes of a slot of the CPU page cache: what it holds, rounded up as exllamav3 does."""


class Row(NamedTuple):
    """A sequence in a forward: from which token on, the tokens, its block table as the device has
    it, and the slot of its state (−1: none).
    """

    start: int
    tokens: list[int]
    table: list[int]
    slot: int
    index: Any
    """The block table that it was made from, by which its job is known."""


class Device(Protocol):
    """Takes note of what exllamav3 has the device do."""

    def forward(self, rows: list[Row]) -> None:
        """Compute tokens over pages and states."""

    def copy_page(self, source: int, target: int) -> None:
        """Copy the beginning of a page into another."""

    def rotate(self, moves: list[tuple[int, int]]) -> None:
        """Let pages change places, (from, to), at once."""

    def stash(self, slot: int) -> Any:
        """Copy a state aside; return what the copy is called."""

    def unstash(self, place: Any, slot: int) -> None:
        """Copy a state that was copied aside into a slot."""

    def store(self, page: int, slot: int) -> None:
        """Copy a page into a slot of the CPU page cache."""

    def load(self, slot: int, page: int) -> None:
        """Copy it back into a page."""


class Model:
    """A model of one layer of attention, and perhaps one recurrent layer.

    It computes nothing; where its states are, is counted by exllamav3 (`advance_recurrent_states`).
    """

    loaded_tp = False
    output_device = "cpu"

    def __init__(self, device: Device, advance: Callable[..., None], state: Any) -> None:
        self._device = device
        self._advance = advance
        self.staged: list[Any] = []
        """The block tables of the rows of the forward that is being made."""
        self.config = SimpleNamespace(vocab_size=VOCABULARY, infer_params=SimpleNamespace())
        self.caps: dict[str, Any] = {"recurrent_states": True} if state else {}
        self.recurrent_state_cls = state
        self.cache_weakrefs: dict[int, Any] = {}
        self._attention = SimpleNamespace(layer_idx=0, cache_layers=[], device=None)
        self._recurrent = SimpleNamespace(
            layer_idx=1,
            recurrent_layers=[],
            layer_state_cls=lambda *sizes: States(device),
        )

    def get_cache_layers(self) -> list[Any]:
        """Return the layers of attention."""
        return [self._attention]

    def get_recurrent_layers(self) -> list[Any]:
        """Return the recurrent layers."""
        return [self._recurrent] if self.recurrent_state_cls else []

    def get_layer_instances(self, layer: int) -> list[tuple[int, int]]:
        """Return how often a layer is run: once."""
        return [(layer, 0)]

    def prefetch_tokens(self, tokens: list[int]) -> None:
        """Read nothing ahead."""

    def prefill(self, input_ids: Any, params: dict[str, Any]) -> None:
        """Compute a chunk of a prompt."""
        self._run(input_ids, params, [params["block_table"]])

    def forward(self, input_ids: Any, params: dict[str, Any]) -> Any:
        """Compute a token of each answer; return logits that are all alike."""
        self._run(input_ids, params, self.staged)
        return input_ids.new_zeros((*input_ids.shape, VOCABULARY)).float()

    def _run(self, input_ids: Any, params: dict[str, Any], indices: list[Any]) -> None:
        states = params["recurrent_states"] or [SimpleNamespace(slot=-1)] * len(indices)
        self._device.forward(
            [
                Row(start, tokens, table, state.slot, index)
                for start, tokens, table, state, index in zip(
                    params["cache_seqlens"].tolist(),
                    input_ids.tolist(),
                    params["block_table"].tolist(),
                    states,
                    indices,
                    strict=True,
                )
            ]
        )
        self._advance(input_ids, params, self)


class Pages:
    """The memory of a layer of attention: exllamav3's `CacheLayer`, without tensors."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def copy_page(self, source: Pages, from_page: int, to_page: int, num_tokens: int) -> None:
        """Copy the first tokens of a page of the same layer."""
        self._device.copy_page(from_page, to_page)

    def get_tensors(self) -> list[PageTensor]:
        """Return what pages are moved in."""
        return [PageTensor(self._device)]


class OnDevice(str):
    """A device that torch takes for the CPU, and the CPU page cache for a GPU."""

    type = "cuda"


class PageTensor:
    """The one tensor of a layer, as far as pages of it are copied: a byte for each."""

    device = OnDevice("cpu")
    dtype = None
    shape = (1, 1)

    def __init__(self, device: Device) -> None:
        self._device = device

    def __getitem__(self, page: int) -> PageOfTensor:
        return PageOfTensor(self._device, page)

    def element_size(self) -> int:
        """Return the bytes of a page."""
        return 1

    def rotate(self, order: list[int]) -> None:
        """Carry out the copies of `cache_rotate` one by one, with a page beside the cache (−1);
        what comes of them in the end are moves.
        """
        holds: dict[int, int] = {}
        for target, source in zip(order[::2], order[1::2], strict=True):
            holds[target] = holds.get(source, source)
        self._device.rotate(
            [(source, page) for page, source in holds.items() if page >= 0 and page != source]
        )


class PageOfTensor:
    """A page of a layer's tensor."""

    shape = (1,)

    def __init__(self, device: Device, page: int) -> None:
        self._device = device
        self.page = page

    def numel(self) -> int:
        """Return the bytes of a page."""
        return 1

    def copy_(self, slot: Slot, **_how: Any) -> None:
        """Have it filled from a slot."""
        self._device.load(slot.number, self.page)


class Slot:
    """A slot of the CPU page cache, or the part of it that a layer has."""

    def __init__(self, device: Device, number: int) -> None:
        self._device = device
        self.number = number

    def view(self, of: Any) -> Slot:
        """Return the same slot, by another type or shape."""
        return self

    def copy_(self, page: PageOfTensor, **_how: Any) -> None:
        """Have it filled from a page."""
        self._device.store(page.page, self.number)


class Arena:
    """The memory of the CPU page cache: exllamav3's `PinnedArena`, without memory."""

    def __init__(self, device: Device) -> None:
        self.tensor = self
        self._device = device

    def __getitem__(self, part: slice) -> Slot:
        return Slot(self._device, part.start // SLOT)

    def close(self) -> None:
        """Give nothing back."""


class States:
    """The memory of a recurrent layer: exllamav3's `layer_state_cls`, without tensors."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def clear(self, slot: int) -> None:
        """Tell nothing: a new request reads no state."""

    def get_checkpoint_size(self) -> int:
        """Return the size of a state: 1, so that a recurrent cache of n bytes keeps n."""
        return 1

    def stash(self, slot: int, position: int) -> Any:
        """Copy the state of a slot aside."""
        return self._device.stash(slot)

    def unstash(self, slot: int, stashed: Any, position: int) -> None:
        """Copy it back."""
        self._device.unstash(stashed, slot)


class Extension:
    """The functions of `exllamav3_ext` that the generator calls, after their source
    (exllamav3_ext/generator: staging.cpp, strings.cpp, cache.cu).
    """

    def __init__(self, model: Model) -> None:
        self._model = model

    def generator_stage_decode(
        self,
        arena: Any,
        width: int,
        seq_block_index: list[Any],
        kv_position: list[int],
        _rope_offset: list[int],
        batch_ids: Any,
        seq_ids: list[Any],
        page_seq: list[Any],
        page_offset: list[int],
    ) -> None:
        """Write the block tables and lengths of a batch into its arena, and each row's next token
        into the batch and into the page that it falls into.
        """
        self._model.staged = list(seq_block_index)
        rows = len(seq_block_index)
        tables = arena[: rows * width].view(rows, width).zero_()
        for row, index in enumerate(seq_block_index):
            pages = min(index.numel(), width)
            tables[row, :pages] = index[0, :pages]
            arena[rows * width + row] = kv_position[row]
        for row, ids in enumerate(seq_ids):
            token = ids[0, kv_position[row]]
            batch_ids[row, 0] = token
            page_seq[row][0, page_offset[row]] = token

    def count_match_tensor(self, a: Any, b: Any, max_a: int) -> int:
        """Return how many tokens two rows begin with alike, of the first `max_a`."""
        most = min(max_a, a.numel(), b.shape[1])
        same: list[bool] = (a[0, :most] == b[0, :most]).tolist()
        return same.index(False) if False in same else most

    def cache_rotate(self, cache: PageTensor, order: Any, _temp: Any) -> None:
        """Move pages of a tensor."""
        cache.rotate(order.tolist())


class Sampler:
    """Has the harness say what a request generates."""

    reqs_past_ids = False

    def __init__(self, sample: Callable[[], Any]) -> None:
        self._sample = sample

    def forward(self, logits: Any, *more: Any, **options: Any) -> Any:
        """Return the next token."""
        return self._sample()


class Tokenizer:
    """Every token is the empty text."""

    def get_id_to_piece_list(self, special: bool) -> Any:
        """Return the texts of all tokens."""
        return self

    def __getitem__(self, token: int) -> str:
        return ""
