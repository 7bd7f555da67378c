"""The scheduler of lmdeploy's PyTorch engine, and the maker of its forwards, without a GPU.

What a forward computes is told, not computed. The calls and their order are those of
`EngineLoop.main_loop` (lmdeploy/pytorch/engine/engine_loop.py): a forward is made while the one
before computes. Of what these modules import, four classes that they name in annotations alone are
stand-ins.
"""

import importlib
import importlib.util
import logging
import sys
from types import ModuleType, SimpleNamespace

BARE = (
    "lmdeploy",
    "lmdeploy.pytorch",
    "lmdeploy.pytorch.engine",
    "lmdeploy.pytorch.engine.model_agent",
    "lmdeploy.vl",
)
STAND_INS = {
    "transformers": ("PretrainedConfig",),
    "lmdeploy.tokenizer": ("Tokenizer", "HuggingFaceTokenizer", "DetokenizeState"),
}


def enter():
    """Import lmdeploy without the `__init__` of these packages, which import all of it."""
    root = importlib.util.find_spec("lmdeploy").submodule_search_locations[0].rpartition("/")[0]
    for name in (*BARE, *STAND_INS):
        module = sys.modules[name] = ModuleType(name)
        if name in BARE:
            module.__path__ = [f"{root}/{name.replace('.', '/')}"]
        vars(module).update({one: type(one, (), {}) for one in STAND_INS.get(name, ())})
        package, _, last = name.rpartition(".")
        if package:
            setattr(sys.modules[package], last, module)
    sys.modules["lmdeploy.pytorch.engine.model_agent"].BatchedOutputs = object
    version = importlib.import_module("lmdeploy.version").__version__
    importlib.import_module("lmdeploy.pytorch.paging")
    logging.disable(logging.WARNING)
    return version


def part(module, name):
    """Return something defined in a module of `lmdeploy.pytorch`."""
    return getattr(importlib.import_module(f"lmdeploy.pytorch.{module}"), name)


class Executor:
    """Stands in for the workers."""

    device_type = "cpu"

    async def forward_async(self, inputs):
        """Nothing is computed."""


class Engine:
    """An engine with lmdeploy's defaults (blocks of 64, `prefill_interval` 16) and prefix caching.

    Every answer is 1, 2, 3, …, as of a greedy model.
    """

    def __init__(self, blocks, states=0, *, caching=True, **cache):
        scheduling = part("config", "SchedulerConfig")(max_batches=8, max_session_len=4096)
        config = part("config", "CacheConfig")(
            max_batches=8,
            block_size=64,
            num_cpu_blocks=0,
            num_gpu_blocks=blocks + 1,
            num_reserved_gpu_blocks=1,
            enable_prefix_caching=caching,
            device_type="cpu",
            states_shapes=[((1,), "float32")] if states else [],
            num_state_caches=10 + states if states else None,
            prefix_cache_state_budget=states,
            **cache,
        )
        strategy = part("strategies.ar.sequence", "ARSequenceStrategy")()
        self.scheduler = part("paging", "Scheduler")(
            scheduling, config, seq_meta=part("messages", "SequenceMeta")(64, strategy=strategy)
        )
        self.maker = part("engine.inputs_maker", "InputsMakerAsync")(
            executor=Executor(),
            scheduler=self.scheduler,
            state_checkpoints=self.scheduler.state_checkpoints,
            adapter_manager=SimpleNamespace(num_adapters=lambda: 1),
            engine_strategy=part("strategies.ar.engine", "AREngineStrategy")(
                scheduler_config=scheduling, cache_config=config
            ),
            sampling_strategy=SimpleNamespace(make_sampling_inputs=lambda running: None),
            model_agent_strategy=SimpleNamespace(
                make_extra_inputs=lambda running, inputs: None,
                make_stopping_criteria=lambda running: None,
            ),
            config=part("engine.inputs_maker", "InputsMakerConfig")(
                max_batches=8,
                max_prefill_token_num=8192,
                role=config.role,
                block_size=64,
                kernel_block_size=64,
                window_size=-1,
                enable_prefix_caching=caching,
                prefix_cache_decode_state_interval=config.prefix_cache_decode_state_interval,
                is_ssm=bool(states),
            ),
        )
        self.sent, self.computed, self.sessions = None, {}, 0

    def submit(self, tokens):
        """Take in a request of these tokens."""
        self.sessions += 1
        sampling = part("messages", "SamplingParam")(max_new_tokens=4096)
        return self.scheduler.add_session(self.sessions).add_sequence(
            list(tokens), sampling_param=sampling
        )

    def end(self, seq):
        """End a request, as the server does when its answer is over."""
        self.scheduler.end_session(seq.session_id)

    def table(self, seq):
        """Return the physical blocks of a request."""
        return self.scheduler.block_manager.get_block_table(seq).tolist()

    def forward(self):
        """Make a forward, let the one before be over, and return whom it runs and what it copies.

        Of each request: itself, its first token, where its tokens end, and its blocks.
        """
        if self.sent is not None:
            self._dispatched(*self.sent)
        try:
            self.maker.send_next_inputs().send(None)
        except StopIteration as stop:
            inputs, running = stop.value
        if self.sent is not None:
            self._over(*self.sent)
        self.sent = None if inputs is None else (inputs, running)
        if inputs is None:
            return [], None
        told = []
        for row, seq in enumerate(running):
            full = inputs["inputs"]
            start = self.computed[seq.seq_id] if full is None else int(full.history_lengths[row])
            stop = start + (1 if full is None else int(full.seq_length[row]))
            self.computed[seq.seq_id] = stop
            told.append((seq, start, stop, self.table(seq)))
        return told, inputs["cache_inputs"]

    def _dispatched(self, inputs, running):
        plan = inputs["cache_inputs"]
        self.scheduler.activate_seqs(running)
        self.maker.update_running_seqs(running, inputs["inputs"])
        self.scheduler.state_checkpoints.finish_forward_dispatch(
            running, has_save_plan=plan is not None and plan.state_save_plan is not None
        )

    def _over(self, inputs, running):
        mode = part("messages", "UpdateTokenMode")
        self.scheduler.state_checkpoints.unpin_saves(running)
        for seq in running:
            if seq.status.name == "RUNNING":
                token = seq.num_all_ids - seq.input_end_pos + 1
                seq.update_token_ids(
                    [token], mode=mode.DECODE if inputs["inputs"] is None else mode.PREFILL
                )
        self.maker.preempt_invalid_decode_seqs()
