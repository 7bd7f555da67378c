"""The type in which a checkpoint itself has its keys and values kept, read as vLLM reads it.

Sources (vLLM 0.33.0): `utils/torch_utils.py`, `get_kv_cache_quant_algo_string`;
`model_executor/layers/attention/attention.py`, where a `kv_cache_scheme` of compressed-tensors is
followed; `transformers_utils/config.py`, which reads `hf_quant_config.json` where `config.json` has
no such table.
"""

from __future__ import annotations

from typing import Any

from cachewitness._util.errors import UsageError

FP8_BITS = 8
NVFP4_BITS = 4
ALGORITHMS = {"fp8": "fp8_e4m3", "nvfp4": "nvfp4"}


def kv_cache_dtype(table: Any, where: str) -> str:
    """Return vLLM's name of the type that a `quantization_config` names for keys and values, empty
    if it names none.

    `where` is the field, for messages. Raises UsageError for a scheme that vLLM does not take, and
    for what is no table.
    """
    if table is None:
        return ""
    if not isinstance(table, dict):
        raise UsageError(f"{where}: no table")
    method = table.get("quant_method", "")
    if not isinstance(method, str):
        raise UsageError(f"{where}.quant_method: no text")
    producer = table.get("producer")
    if isinstance(producer, dict) and str(producer.get("name", "")).startswith("modelopt"):
        method = method or "modelopt"
    if method.startswith("modelopt"):
        return _modelopt(table, where)
    scheme = table.get("kv_cache_scheme")
    if scheme is None:
        return ""
    if method != "compressed-tensors":
        raise UsageError(
            f"{where}.kv_cache_scheme: what vLLM makes of it with quant_method {method!r} is not"
            " worked out here"
        )
    if not isinstance(scheme, dict) or (scheme.get("type"), scheme.get("num_bits")) != (
        "float",
        FP8_BITS,
    ):
        raise UsageError(f"{where}.kv_cache_scheme: vLLM takes 8-bit floats alone")
    return "fp8"


def _modelopt(table: dict[str, Any], where: str) -> str:
    inner = table.get("quantization", table)
    if not isinstance(inner, dict):
        raise UsageError(f"{where}.quantization: no table")
    algorithm = (
        inner.get("kv_cache_scheme")
        or table.get("kv_cache_scheme")
        or inner.get("kv_cache_quant_algo")
        or table.get("kv_cache_quant_algo")
    )
    if isinstance(algorithm, dict):
        algorithm = _scheme(algorithm)
    if algorithm is None:
        return ""
    if not isinstance(algorithm, str):
        raise UsageError(f"{where}: kv_cache_quant_algo: no text")
    return ALGORITHMS.get(algorithm.lower(), "")


def _scheme(scheme: dict[str, Any]) -> str | None:
    """Return the algorithm that a scheme of modelopt is, None for one that vLLM leaves to
    `auto`.
    """
    if scheme.get("type") != "float":
        return None
    if scheme.get("num_bits") == FP8_BITS and scheme.get("dynamic") is False:
        return "fp8"
    return "nvfp4" if scheme.get("num_bits") == NVFP4_BITS else None
