"""Makes the models that the engine `onnxruntime-genai` runs: a few layers with random weights,
exported by the library's own builder.

    python ci/onnxruntime_genai_models.py MODEL FOLDER

It is a script that imports nothing of this package, since it needs torch and transformers beside
the engine. ci/stage_onnxruntime_genai.sh makes the environment, and all models.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

BYTES = 256
SPECIAL = ("<pad>", "<bos>", "<eos>")
COMMON: dict[str, Any] = {
    "vocab_size": 272,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 3,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "pad_token_id": BYTES,
    "bos_token_id": BYTES + 1,
    "eos_token_id": BYTES + 2,
}
_STATES = {"layer_types": ["linear_attention", "full_attention", "linear_attention"]}
_DELTA = {
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
_ROTARY = {
    "rope_type": "default",
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.25,
    "mrope_section": [2, 1, 1],
    "mrope_interleaved": True,
}
_EYES = {"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2}
"""The builder takes Qwen3.5 with eyes alone, which are not exported."""
WIDTH, SPREAD = 0.15, 0.1
"""The deviations of matrices, and of what is added to vectors. Every parameter is drawn: behind a
bias of zeros a layer may vanish, and with it what its cache does wrong."""


def _qwen3_5() -> Any:
    from transformers import Qwen3_5Config, Qwen3_5ForConditionalGeneration, Qwen3_5TextConfig

    text = Qwen3_5TextConfig(head_dim=32, rope_parameters=_ROTARY, **_STATES, **_DELTA, **COMMON)
    eyes = {**_EYES, "out_hidden_size": 64, "num_position_embeddings": 16}
    tokens = {"image_token_id": 260, "video_token_id": 261}
    marks = {"vision_start_token_id": 262, "vision_end_token_id": 263}
    config = Qwen3_5Config(
        text_config=text.to_dict(),
        vision_config=eyes,
        tie_word_embeddings=False,
        **tokens,
        **marks,
    )
    return Qwen3_5ForConditionalGeneration(config)


def _lfm2() -> Any:
    from transformers import Lfm2Config, Lfm2ForCausalLM

    layers = {"layer_types": ["conv", "full_attention", "conv"], "conv_L_cache": 3}
    return Lfm2ForCausalLM(Lfm2Config(block_auto_adjust_ff_dim=False, **layers, **COMMON))


def _llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(head_dim=16, **COMMON))


MAKERS = {"qwen3_5": _qwen3_5, "lfm2": _lfm2, "llama": _llama}


def model_of(name: str) -> Any:
    """Return a model of an architecture with random weights, always the same.

    Tokens beyond the bytes have the logit 0, below that of the likeliest byte: the library ends an
    answer at its end-of-text token, which has to be one of the vocabulary.
    """
    import torch

    torch.manual_seed(0)
    model = MAKERS[name]().float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, WIDTH)
            else:
                parameter.add_(SPREAD * torch.randn_like(parameter))
        model.get_output_embeddings().weight[BYTES:] = 0
    return model


def save_tokenizer(folder: Path) -> None:
    """Write a tokenizer of single bytes, which the builder asks for; the engine is given ids and
    never uses it.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *SPECIAL]
    bytewise = Tokenizer(models.BPE({letter: id_ for id_, letter in enumerate(letters)}, []))
    bytewise.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    names = dict(zip(("pad_token", "bos_token", "eos_token"), SPECIAL, strict=True))
    PreTrainedTokenizerFast(tokenizer_object=bytewise, **names).save_pretrained(folder)


def main(name: str, folder: Path) -> None:
    """Make a model and export it into a folder of its own."""
    weights = folder / f"{name}.weights"
    model_of(name).save_pretrained(weights)
    save_tokenizer(weights)
    places = ["-i", str(weights), "-o", str(folder / name), "-c", str(folder / "cache")]
    how = ["-p", "fp32", "-e", "cpu", "--extra_options", "exclude_embeds=false"]
    builder = [sys.executable, "-m", "onnxruntime_genai.models.builder"]
    subprocess.run([*builder, *places, *how], check=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
