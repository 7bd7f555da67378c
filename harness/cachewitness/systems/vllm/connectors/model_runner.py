"""The worker's connector, and what vLLM's model runner does with it in a step.

Source: vLLM 0.33.0, `v1/worker/kv_connector_model_runner_mixin.py`, `_get_kv_connector_output`;
`v1/worker/gpu_model_runner.py`, `execute_model`, which lets the connector handle preemptions first
of all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from cachewitness.systems.vllm.source import Source


class Forward(Protocol):
    """A forward pass, as a connector sees it that loads and saves layer by layer."""

    context: Any
    """vLLM's `ForwardContext`."""

    def loaded(self) -> None:
        """Take note that what is to be loaded before the pass has been."""

    def layers(self) -> Iterable[tuple[str, Any]]:
        """Return the layers that save their caches, in order."""

    def ended(self, transfers: Any) -> None:
        """Take note that the step has run, and of the transfers that are over then
        (`KVConnectorTransferResults`).
        """


class ModelRunner:
    """`worker` is the connector that vLLM's worker would have, `forward` the pass that it is
    shown, if it looks at one.
    """

    forward: Forward | None = None

    def __init__(self, source: Source, connector: Any, config: Any, kv_cache_config: Any) -> None:
        role = source.part("distributed.kv_transfer.kv_connector.v1.base", "KVConnectorRole")
        self.worker = type(connector)(config, role.WORKER, kv_cache_config)
        self._output = source.part("v1.outputs", "KVConnectorOutput")

    def work(self, output: Any, run: Callable[[], None]) -> Any:
        """Do a step of the scheduler's, in which the device is given time by `run`; return what
        the scheduler is told.
        """
        worker = self.worker
        meta = output.kv_connector_metadata
        worker.handle_preemptions(meta)
        worker.bind_connector_metadata(meta)
        self._pass()
        run()
        results = worker.get_transfer_results(output.finished_req_ids)
        if self.forward is not None:
            self.forward.ended(results)
        connector_output = self._output(
            finished_sending=results.finished_sending,
            finished_recving=results.finished_recving,
            failed_recving=results.failed_recving,
            invalid_block_ids=worker.get_block_ids_with_load_errors(),
            kv_connector_worker_meta=worker.build_connector_worker_meta(),
        )
        worker.clear_connector_metadata()
        return connector_output

    def _pass(self) -> None:
        worker = self.worker
        forward = self.forward
        layers = [*forward.layers()] if forward is not None else []
        worker.start_load_kv(forward and forward.context)
        for name, _ in layers:
            worker.wait_for_layer_load(name)
        if forward is not None:
            forward.loaded()
        for name, cache in layers:
            worker.save_kv_layer(name, cache, None)
        worker.wait_for_save()
