"""vLLM's second model runner (`v1/worker/gpu`) without a device, a model and weights: what it is
built with, and what stands in for those.

It lays out its tables, states and buffers itself (`initialize_kv_cache`). The model computes
nothing, and the sampler does not know what it samples: a token is a number that stands for the
request and its place there (`Unsampled`).

Source: vLLM 0.33.0, `v1/worker/gpu/model_runner.py` and what it imports.
"""

from __future__ import annotations

import copy
import importlib
import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cache, partial
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any, NamedTuple

from cachewitness.core.engine_failure import EngineFailure
from cachewitness.systems.vllm.source import Source
from cachewitness.systems.vllm.triton_words import Kernel, Memory
from cachewitness.systems.vllm.worker_copies import Copies

RUNNER = "vllm.v1.worker.gpu.model_runner"
BUFFERS = "vllm.v1.worker.gpu.buffer_utils"
STAGES = "vllm.v1.worker.gpu.pp_utils"
HYBRID = "vllm.v1.worker.gpu.model_states.mamba_hybrid"
STATES = "vllm.v1.worker.mamba_utils"
PARTS = 2
"""Of a layer's state: what a convolution has seen last, and what a recurrence has made of all. One
program of a kernel copies one part."""
WRITTEN = (
    BUFFERS,
    "vllm.v1.worker.gpu.block_table",
    "vllm.v1.worker.gpu.input_batch",
    HYBRID,
    STATES,
)
"""The modules whose kernels are run."""
VOCABULARY = (1 << 31) - 1
UNSAMPLED = 1 << 30
"""The smallest number that stands for a token; no token is as large."""


class Unsampled:
    """Numbers for tokens that are sampled and that nobody knows yet."""

    def __init__(self) -> None:
        self._places: list[tuple[str, int]] = []
        self._newest: dict[tuple[str, int], int] = {}

    def number(self, r: str, position: int) -> int:
        """Return what stands for the token that a request now gets at a position."""
        number = self._newest[r, position] = UNSAMPLED + len(self._places)
        self._places.append((r, position))
        return number

    def stands_for(self, number: int, r: str, position: int) -> bool:
        """Whether a number stands for this token, as it was sampled last."""
        return self._newest.get((r, position)) == number

    def token(self, number: int, requests: Mapping[str, Any]) -> int:
        """Return the token that a number stands for; 0 if there is none, or nobody knows it."""
        if number < UNSAMPLED:
            return max(number, 0)
        r, position = self._places[number - UNSAMPLED]
        own = requests[r].all_token_ids if r in requests else ()
        return int(own[position]) if position < len(own) else 0


class Metadata:
    """What the layers of a group are told of a step: in place of a backend of attention, and of
    what builds its metadata.
    """

    supports_update_block_table = False

    def __init__(self, group: Any) -> None:
        self.layer_names = group.layer_names
        self.kv_cache_spec = group.kv_cache_spec
        layer = getattr(group.kv_cache_spec, "first_spec", group.kv_cache_spec)
        self.block_size: int = group.kv_cache_spec.block_size
        self.has_slots: bool = layer.uses_slot_mapping
        self.mamba_aligned_state_indices: Any = None
        """Set by the runner, where states are kept at the ends of blocks: by request, the page of
        its running state."""
        self.common: Any = None
        """vLLM's `CommonAttentionMetadata` of the last step."""

    def get_metadata_builder(self, _: int) -> Metadata:
        """Return what builds the metadata."""
        return self

    def build_metadata(self, common: Any, _: int, **__: Any) -> None:
        """Take note of what a step tells."""
        self.common = common


class Graphs:
    """In place of vLLM's CUDA graphs: a step is padded to whole `ROWS` of requests and `TOKENS`, as
    one that a graph replays, and computes nothing.
    """

    ROWS = 4
    TOKENS = 8

    def __init__(self, most_requests: int, most_tokens: int, passed_on: Any) -> None:
        self._passed_on = passed_on
        self._described: Any = importlib.import_module("vllm.v1.worker.gpu.cudagraph_utils")
        self._most_requests = most_requests
        self._most_tokens = most_tokens

    def dispatch(self, requests: int, tokens: int, *_: Any, **__: Any) -> Any:
        """Return the size of the graph for so many requests and tokens."""
        rows = min(-(-requests // self.ROWS) * self.ROWS, self._most_requests)
        width = min(-(-tokens // self.TOKENS) * self.TOKENS, self._most_tokens)
        return self._described.BatchExecutionDescriptor(
            cg_mode=self._described.CUDAGraphMode.FULL, num_tokens=width, num_reqs=rows
        )

    def run_fullgraph(self, graph: Any) -> Any:
        """Return hidden states of nothing, or what a stage passes on."""
        import torch

        return torch.zeros(graph.num_tokens, 0) if self._passed_on is None else self._passed_on


class Sampler:
    """In place of vLLM's sampler: who has come to the end of its tokens gets the numbers of its
    next ones, as many as `counts` says, or one.
    """

    def __init__(self, unsampled: Unsampled, prefill_len: Any, most: int) -> None:
        self._most = most
        batch: Any = importlib.import_module("vllm.v1.worker.gpu.input_batch")
        self._ends_of = batch.get_num_sampled_and_rejected
        self._output: Any = importlib.import_module("vllm.v1.worker.gpu.sample.output")
        self._unsampled = unsampled
        self._prefill_len = prefill_len
        self.counts: Mapping[str, int] = {}
        self.penalties_state = SimpleNamespace(output_bin_counts=None)
        self.sampling_states = SimpleNamespace(
            temperature=SimpleNamespace(gpu=None), seeds=SimpleNamespace(gpu=None)
        )

    def __call__(self, _: Any, batch: Any) -> Any:
        """Return what the requests of a batch sample."""
        import torch

        counts = [self.counts.get(r, 1) for r in batch.req_ids]
        sampled, rejected = self._ends_of(
            torch.tensor(counts, dtype=torch.int32),
            batch.seq_lens,
            batch.cu_num_logits,
            batch.idx_mapping,
            self._prefill_len.gpu,
        )
        drafts = batch.num_draft_tokens_per_req
        width = 1 if not batch.num_draft_tokens else self._most
        numbers = _on_device(torch.zeros((batch.num_reqs, width), dtype=torch.int64))
        for row, (r, count) in enumerate(zip(batch.req_ids, sampled.tolist(), strict=True)):
            known = int(batch.seq_lens[row]) - (0 if drafts is None else int(drafts[row]))
            for place in range(count):
                numbers[row, place] = self._unsampled.number(r, known + place)
        return self._output.SamplerOutput(
            numbers, None, None, _on_device(sampled), _on_device(rejected)
        )

    def add_request(self, *_: Any) -> None:
        """Take no note of how a request samples."""

    def apply_staged_writes(self) -> None:
        """Write nothing."""


class Speculator:
    """In place of a drafter: its drafts are 0."""

    supports_mm_inputs = False

    def __init__(self, drafts: int) -> None:
        self._drafts = drafts

    def init_cudagraph_manager(self, _: Any) -> None:
        """Capture nothing."""

    def propose(self, batch: Any, *_: Any, **__: Any) -> Any:
        """Return drafts for every request of a batch."""
        import torch

        return torch.zeros((batch.num_reqs, self._drafts), dtype=torch.int64)


class Wire:
    """What the last stage of a worker sends the first. In place of a group of devices, `end` is
    what a stage sends or receives with.
    """

    def __init__(self) -> None:
        self._sent: deque[Any] = deque()

    def end(self, stage: str) -> Callable[[Any], None]:
        """Return what sends a tensor, or receives into it."""
        return self._send if stage == LAST else self._receive

    def _send(self, tensor: Any) -> None:
        self._sent.append(tensor.clone())

    def _receive(self, tensor: Any) -> None:
        if not self._sent:
            raise EngineFailure(
                "engine-crashed", "had its first stage wait for what the last one does not send"
            )
        tensor.copy_(self._sent.popleft())


class Streams:
    """In place of torch where stages send: without streams of a device, over wires."""

    def __init__(self) -> None:
        stream = SimpleNamespace(
            wait_stream=nothing, wait_event=nothing, record_event=nothing, synchronize=nothing
        )
        self.cuda = SimpleNamespace(
            current_stream=lambda _: stream, Stream=lambda _: stream, stream=nullcontext
        )
        self.distributed = SimpleNamespace(broadcast=lambda tensor, src, group: group(tensor))

    def __getattr__(self, name: str) -> Any:
        import torch

        return getattr(torch, name)

    def empty(self, *size: Any, **named: Any) -> Any:
        """Return a tensor to receive into."""
        import torch

        return _on_device(torch.empty(*size, **named))


ALONE = ""
FIRST = "first"
LAST = "last"
"""What a runner is: all of a worker, or the first or last of two stages."""


class Shared(NamedTuple):
    """What the stages of a worker have in common."""

    unsampled: Unsampled
    memory: Memory
    wire: Wire


class Hosted:
    """The runner, `metadata` that it tells by group, and by recurrent group its `states`: a small
    tensor for each, of shape (parts, pages, 1), since a layer keeps a state in several parts.

    `kv_caches` are the caches in which it copies blocks.
    """

    def __init__(
        self,
        source: Source,
        config: Any,
        kv_cache_config: Any,
        kv_caches: list[Any],
        shared: Shared,
        stage: str,
    ) -> None:
        import torch

        spec = source.part("v1.kv_cache_interface", "MambaSpec")
        kv_cache_config = _in_parts(kv_cache_config, spec)
        groups = kv_cache_config.kv_cache_groups
        pages = len(kv_caches[0])
        self.metadata = [Metadata(group) for group in groups]
        self.states = {
            index: torch.zeros((PARTS, pages, 1), dtype=torch.int64)
            for index, group in enumerate(groups)
            if isinstance(group.kv_cache_spec, spec)
        }
        layers = {
            layer: SimpleNamespace(kv_cache=[*state])
            for index, state in self.states.items()
            for layer in groups[index].layer_names
        }
        module: Any = importlib.import_module(RUNNER)
        whole = _whole(config, layers, [groups[index].kv_cache_spec for index in self.states])
        self.runner = _built(source, module, whole, shared.unsampled)
        self.received = None
        """What the stage before has computed."""
        if stage:
            self.received = module.IntermediateTensors({})
            _make_stage(self.runner, module, stage, shared.wire)
        limits = (self.runner.max_num_reqs, self.runner.max_num_tokens)
        instead = {
            "init_attn_backend": lambda *_, **__: (
                [[one] for one in self.metadata],
                importlib.import_module("vllm.v1.worker.gpu.attn_utils").AttentionCGSupportInfo(),
                [group.kv_cache_spec.block_size for group in groups],
            ),
            "init_kv_cache": lambda *_, **__: dict(enumerate(kv_caches)),
            "ModelCudaGraphManager": lambda *_, **__: Graphs(
                *limits, self.received if stage == FIRST else None
            ),
            "maybe_create_adaptive_verification_manager": nothing,
            "maybe_build_ubatch_runner": nothing,
            "initialize_mamba_ssu_backend": nothing,
            "has_compiled_submodule": nothing,
            "check_attention_cp_compatibility": nothing,
        }
        with _replaced(module, instead):
            self.runner.initialize_kv_cache(kv_cache_config, is_profiling=True)
        self._memory = shared.memory  # kept as long as its tensors
        tables = self.runner.block_tables
        self._memory.know([table.gpu for table in tables.block_tables])
        self._memory.know([*tables.input_block_tables, *self.states.values()])


def _in_parts(kv_cache_config: Any, recurrent: Any) -> Any:
    """Return a copy of a configuration in which layers keep their states in parts."""
    groups = [
        replace(
            group,
            kv_cache_spec=replace(
                spec, shapes=(spec.shapes[0],) * PARTS, dtypes=(spec.dtypes[0],) * PARTS
            ),
        )
        if isinstance(spec := group.kv_cache_spec, recurrent)
        else group
        for group in kv_cache_config.kv_cache_groups
    ]
    return replace(kv_cache_config, kv_cache_groups=groups)


def _imported() -> None:
    """Import the runner's module. Layers that come with it report the kernels that they miss."""
    logging.disable(logging.ERROR)
    try:
        importlib.import_module(RUNNER)
    finally:
        logging.disable(logging.NOTSET)


def _built(source: Source, module: Any, whole: Any, unsampled: Unsampled) -> Any:
    """Return vLLM's runner, before it knows of caches."""
    import torch

    of: Any = type("HostedRunner", (module.GPUModelRunner,), {"main_stream": None})
    runner = of.__new__(of)
    vars(module).update(AsyncOutput=nothing, get_drafter_hidden_states=nothing)
    module.set_default_max_concurrency(whole.max_concurrent_batches)
    host = torch.device("cpu")
    limits = whole.scheduler_config
    most = limits.max_num_seqs
    tokens = limits.max_num_batched_tokens
    drafts = whole.num_speculative_tokens
    longest = whole.model_config.max_model_len
    states = module.RequestState(
        max_num_reqs=most,
        max_model_len=longest,
        max_num_batched_tokens=tokens,
        num_speculative_steps=drafts,
        vocab_size=VOCABULARY,
        device=host,
        num_prefill_lookahead=max(1, whole.num_prefill_lookahead_tokens),
    )
    buffers = module.InputBuffers(most, tokens, host)
    buffers.seq_lens = _on_device(buffers.seq_lens)
    model = SimpleNamespace(
        compute_logits=_itself, get_mamba_state_copy_funcs=_state_copies, modules=list
    )
    absent = (
        *("lora_config", "speculative_config", "pp_handler", "pcp_manager"),
        *("pooling_runner", "encoder_cache", "adaptive_verification", "aux_output_connector"),
        *("fast_prefill", "ubatch_runner", "batch_sharder", "rejection_sampler"),
        *("structured_outputs_worker", "output_copy_stream", "execute_model_state"),
    )
    vars(runner).update(
        dict.fromkeys(absent),
        **{f"{source.package}_config": whole},
        model_config=whole.model_config,
        cache_config=whole.cache_config,
        compilation_config=whole.compilation_config,
        scheduler_config=limits,
        parallel_config=whole.parallel_config,
        observability_config=whole.observability_config,
        device=host,
        vocab_size=VOCABULARY,
        max_model_len=longest,
        max_num_reqs=most,
        max_num_tokens=tokens,
        num_speculative_steps=drafts,
        decode_query_len=1 + drafts,
        is_encoder_decoder=False,
        supports_mm_inputs=False,
        uses_inputs_embeds=False,
        use_aux_hidden_state_outputs=False,
        is_first_pp_rank=True,
        is_last_pp_rank=True,
        use_pp=False,
        use_dcp=False,
        dcp_size=1,
        dcp_rank=0,
        check_ep_fault=False,
        model=model,
        req_states=states,
        input_buffers=buffers,
        model_state=module.init_model_state(whole, model, None, host),
        sampler=Sampler(unsampled, states.prefill_len, 1 + drafts),
        speculator=Speculator(drafts) if drafts else None,
        draft_tokens_handler=SimpleNamespace(set_draft_tokens=nothing),
        _draft_workspace_lane=0,
        jit_warmup_registry=SimpleNamespace(activate=nullcontext),
        lora_state=module.LoraState(most),
        lora_capture_cases=[0],
        kv_connector=module.NO_OP_KV_CONNECTOR,
        ec_connector=SimpleNamespace(
            no_forward=lambda _: SimpleNamespace(ec_connector_output=None)
        ),
        eplb=SimpleNamespace(prepare_forward=nothing, step=nothing),
        step_timing=SimpleNamespace(record_batch=nothing, forward_start=nothing),
        kv_block_zeroer=SimpleNamespace(zero_block_ids=nothing),
        prompt_logprobs_worker=SimpleNamespace(
            add_request=nothing,
            remove_request=nothing,
            compute_prompt_logprobs=nothing,
            compute_prompt_token_id_logprobs=nothing,
        ),
    )
    return runner


def _make_stage(runner: Any, module: Any, stage: str, wire: Wire) -> None:
    """Make a runner one of two stages."""
    handler: Any = importlib.import_module(STAGES)
    vars(handler)["get_pp_group"] = lambda: SimpleNamespace(
        is_last_rank=stage == LAST,
        last_rank=1,
        world_size=2,
        make_sibling_device_group=lambda **_: wire.end(stage),
    )
    vars(runner).update(
        is_first_pp_rank=stage == FIRST,
        is_last_pp_rank=stage == LAST,
        use_pp=True,
        intermediate_tensors=module.IntermediateTensors({}),
        pp_handler=module.PPHandler(
            max_num_reqs=runner.max_num_reqs,
            num_speculative_steps=runner.num_speculative_steps,
            device=runner.device,
        ),
    )
    runner.req_states.draft_tokens = _on_device(runner.req_states.draft_tokens)
    if stage == FIRST:
        vars(runner).update(sampler=None, speculator=None, prompt_logprobs_worker=None)


def stages(
    source: Source, config: Any, kv_cache_config: Any, pages: int, unsampled: Unsampled
) -> Iterator[tuple[Hosted, Copies]]:
    """Yield the runners of a worker, and the caches in which each copies blocks: one, or of several
    stages the last and the first.
    """
    _imported()
    _interpret()
    shared = Shared(unsampled, Memory(), Wire())
    several = config.parallel_config.pipeline_parallel_size > 1
    if several:
        vars(importlib.import_module(STAGES))["torch"] = Streams()
    for stage in (LAST, FIRST) if several else (ALONE,):
        copies = Copies(pages)
        caches = [*copies.caches]
        yield Hosted(source, config, kv_cache_config, caches, shared, stage), copies


def _whole(config: Any, layers: Mapping[str, Any], recurrent: list[Any]) -> Any:
    """Return the configuration with a stand-in of the model, its layers of states, and the size of
    their blocks, which vLLM fills in when it knows its model.
    """
    import torch

    whole = copy.copy(config)
    model = config.model_config
    whole.model_config = SimpleNamespace(
        max_model_len=model.max_model_len,
        dtype=torch.float32,
        is_hybrid=bool(recurrent),
        is_attention_free=False,
        is_mm_prefix_lm=False,
        uses_mrope=False,
        multimodal_config=None,
        enable_prompt_embeds=False,
        rswa_window=getattr(model, "rswa_window", None),
        get_inputs_embeds_size=lambda: 0,
    )
    whole.compilation_config = SimpleNamespace(
        static_forward_context=dict(layers),
        cudagraph_mode=None,
        resolve_cudagraph_mode_and_sizes=nothing,
    )
    whole.cache_config = copy.copy(config.cache_config)
    if recurrent:
        whole.cache_config.mamba_block_size = recurrent[0].block_size
    return whole


def _state_copies(kinds: Any) -> dict[Any, tuple[Any, ...]]:
    """Return how vLLM copies states of these kinds: here all are copied whole."""
    module: Any = importlib.import_module("vllm.model_executor.layers.mamba.mamba_utils")
    return dict.fromkeys(kinds, (module.get_temporal_copy_spec,) * PARTS)


def _interpret() -> None:
    """Have the kernels that write tables, tokens and states run on the host."""
    modules = [importlib.import_module(name) for name in WRITTEN]
    for module in modules:
        for name, kernel in list(vars(module).items()):
            function = getattr(kernel, "__wrapped__", kernel)
            if name.endswith("_kernel") and isinstance(function, FunctionType):
                vars(module)[name] = Kernel(function, modules)
        words = vars(module)["triton"]
        if not hasattr(words, "next_power_of_2"):
            words.next_power_of_2 = lambda count: 1 << (max(count, 1) - 1).bit_length()
    buffers = importlib.import_module(BUFFERS)
    # vLLM's own, of its CPU worker: there the device sees the memory of the host.
    vars(buffers)["UvaBuffer"] = importlib.import_module(
        "vllm.v1.worker.cpu.buffer_utils"
    ).UvaBuffer
    vars(buffers)["is_uva_available"] = lambda: True
    vars(importlib.import_module(STATES))["_TEMPORAL_TILES"] = 1
    unpinned = partial(importlib.import_module("vllm.v1.utils").CpuGpuBuffer, pin_memory=False)
    vars(importlib.import_module(HYBRID))["CpuGpuBuffer"] = unpinned


@cache
def _device_tensor() -> Any:
    """Return the type of a tensor that says that it is on a device, as vLLM asserts of lengths
    whose states it looks for, and that takes note of no stream.
    """
    import torch

    return type("OnDevice", (torch.Tensor,), {"is_cuda": True, "record_stream": nothing})


def _on_device(tensor: Any) -> Any:
    return tensor.as_subclass(_device_tensor())


@contextmanager
def _replaced(module: ModuleType, instead: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """Let a module's names stand for something else for a while."""
    before = {name: vars(module)[name] for name in instead}
    try:
        vars(module).update(instead)
        yield
    finally:
        vars(module).update(before)


def nothing(*_: Any, **__: Any) -> None:
    """Stand in for what needs a device or a model."""


def _itself(tensor: Any) -> Any:
    return tensor
