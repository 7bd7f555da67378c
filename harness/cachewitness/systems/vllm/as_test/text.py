"""What exported tests have in common. It is written out into each, which runs where this package
is not installed.
"""

from __future__ import annotations

HEAD = "{story} Found by cachewitness ({anomaly}, vLLM {version})."

MEMORY = (
    "memory = defaultdict(dict)  # by block and place in it: the tokens that its content was"
    " computed from"
)

KNOWN = """def known(r, stop):
    return r.all_token_ids[:stop]
"""
"""What content depends on."""
IDENTIFIED = """def known(r, stop):
    return [r.cache_salt, r.lora_request and r.lora_request.lora_name, *r.all_token_ids[:stop]]
"""
"""The same where requests differ in more than their tokens."""

MODEL = (
    'type("Model", (), {{"max_model_len": {length}, "runner_type": "generate",'
    ' "skip_tokenizer_init": True, "__getattr__": lambda self, name: None}})()'
)
"""What vLLM's scheduler asks of a model; it is nothing that it is not said to be."""

MANAGER_STEP = """def step(manager, *chunks, owed=()):
    manager.new_step_starts()
    runs = []
    for r, count in chunks:
        blocks, hit = None, 0
        if r.status != RequestStatus.RUNNING:
            blocks, hit, r.shared_prefix_boundary = manager.get_computed_blocks(r)
            assert hit >= dict(owed).get(r.request_id, 0), f"{r.request_id} hits {hit} tokens"
        assert manager.allocate_slots(r, count, hit, blocks) is not None
        runs.append((r, r.num_computed_tokens + hit, r.num_computed_tokens + hit + count))
        r.status, r.num_computed_tokens = RequestStatus.RUNNING, runs[-1][2]
    copies, retained = manager.take_kv_cache_block_copies()
"""
"""What vLLM's scheduler does around its cache manager: `owed` says of requests how many tokens they
must hit."""
MANAGER_END = """    manager.block_pool.free_blocks(retained)
"""

SCHEDULER_STEP = """def step(engine, texts, budget):
    engine.max_num_scheduled_tokens = budget
"""
SCHEDULED = """    output = engine.schedule()
    counts = output.num_scheduled_tokens
"""
SCHEDULED_AND_READ = """    output, manager = engine.schedule(), engine.kv_cache_manager
    counts, copies = output.num_scheduled_tokens, output.kv_cache_block_copies or ()
"""
SCHEDULER_RUNS = """\
    runs = [(r, r.num_computed_tokens - counts[r.request_id], r.num_computed_tokens) for r in map(engine.requests.get, counts)]
"""  # noqa: E501
SCHEDULER_END = """    sampled = [texts[r.request_id][r.num_output_tokens :][: stop == r.num_tokens] for r, _, stop in runs]
    indices = {r: index for index, r in enumerate(counts)}
    engine.update_from_output(output, ModelRunnerOutput([*counts], indices, sampled_token_ids=sampled))
"""  # noqa: E501
"""A step of vLLM's scheduler: `texts` are what requests generate."""

COPY = """    memory.update({{copy.dst_block_id: dict(memory[copy.src_block_id]) for copy in copies}})
    rows = [(r, start, stop, manager.get_block_ids(r.request_id)[{g}]) for r, start, stop in runs]
"""  # noqa: E501
STATES = """    for r, start, _, row in rows:  # group {g}, as the worker does: states are read, then written
        there = memory[row[(start - 1) // {size}]].get("state") if start else known(r, 0)
        assert there == known(r, start), f"{{r.request_id}} goes on at {{start}} from a state computed from {{there}}"
    for r, start, stop, row in rows:
        memory[row[(stop - 1) // {size}]]["state"] = known(r, stop)
"""  # noqa: E501
"""A recurrent group in a step: each request reads the state that it goes on from, then leaves one
behind its last token."""
CHECKPOINTS = """        (offset,), (at,) = compute_mamba_prefill_checkpoints([stop], [stop - start], **LAYERS)
        memory[row[at]].update({"state": known(r, start + offset)} if offset else {})  # what layers save on their way
"""  # noqa: E501
LAYERS = (
    "LAYERS = dict(hash_block_size={unit}, mamba_block_size={size},"
    " cache_hit_alignment_tokens={unit}, checkpoint_alignment={aligned}, drop_eagle_block=False)"
)
"""A recurrent group whose layers save a state within the last chunk of a prompt."""
KEYS = """    for r, start, stop, row in rows:  # group {g}, as the worker does: keys are written, then read
        for at in range(start, stop):
            memory[row[at // {size}]][at % {size}] = known(r, at + 1)
    for r, start, stop, row in rows:
        for at in range({first}, stop):
            there = memory[row[at // {size}]].get(at % {size})
            assert there == known(r, at + 1), f"{{r.request_id}} reads token {{at}}, computed from {{there}}"
"""  # noqa: E501
"""A group of attention in a step: keys are written before they are read, within the window of the
first query."""

PREEMPT = """def preempt(manager, r):
    manager.free(r)
    r.status, r.num_computed_tokens, r.num_preemptions = RequestStatus.PREEMPTED, 0, r.num_preemptions + 1
"""  # noqa: E501
