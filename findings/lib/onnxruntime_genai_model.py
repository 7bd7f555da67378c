"""A small Llama or Qwen3.5 with random weights in the folder `model`, for scripts on
onnxruntime-genai; and what they ask its generators.
"""

import sys

VOCABULARY = 272
COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 3,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
    "pad_token_id": 256,
    "bos_token_id": 257,
    "eos_token_id": 258,
}
ROTARY = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}
ROTARY |= {"mrope_section": [2, 1, 1], "mrope_interleaved": True}
LINEAR = {
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
EYES = {"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2}
EYES |= {"out_hidden_size": 64, "num_position_embeddings": 16}
MARKS = {"image_token_id": 260, "video_token_id": 261}
MARKS |= {"vision_start_token_id": 262, "vision_end_token_id": 263}


def made(name):
    """Return the model: attention alone, or two layers of GatedDeltaNet around one of attention."""
    import transformers

    if name == "llama":
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(head_dim=16, **COMMON))
    text = transformers.Qwen3_5TextConfig(head_dim=32, rope_parameters=ROTARY, **LINEAR, **COMMON)
    config = transformers.Qwen3_5Config(
        text_config=text.to_dict(), vision_config=EYES, tie_word_embeddings=False, **MARKS
    )
    return transformers.Qwen3_5ForConditionalGeneration(config)


def save(name):
    """Write the model, every parameter drawn, and a tokenizer, which the builder asks for."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    torch.manual_seed(0)
    model = made(name).float().eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.normal_(0, 0.15)
            else:
                weight.add_(0.1 * torch.randn_like(weight))
    model.save_pretrained("model")
    letters = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "<pad>", "<bos>", "<eos>"]
    plain = Tokenizer(models.BPE({letter: n for n, letter in enumerate(letters)}, []))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    named = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>"}
    PreTrainedTokenizerFast(tokenizer_object=plain, **named).save_pretrained("model")


class Asked:
    """Generators of the exported model, and 400 random tokens."""

    def __init__(self):
        import numpy
        import onnxruntime_genai

        self.og, self.numpy = onnxruntime_genai, numpy
        self.model = onnxruntime_genai.Model("onnx")
        self.tokens = numpy.random.default_rng(0).integers(0, 250, 400).astype(numpy.int32)

    def generator(self, *parts, **options):
        """Return a generator to which these tokens were appended, one part after the other."""
        settings = self.og.GeneratorParams(self.model)
        settings.set_search_options(**{"max_length": 500, "do_sample": False} | options)
        generator = self.og.Generator(self.model, settings)
        for part in parts:
            generator.append_tokens(part)
        return generator

    def off(self, generator, text):
        """Return how far the next token's logits are from those of a new generator."""
        return float(abs(self._logits(generator) - self._logits(self.generator(text))).max())

    def _logits(self, generator):
        return self.numpy.array(generator.get_logits()).reshape(-1, VOCABULARY)[-1]

    def joined(self, *parts):
        """Return texts as one."""
        return self.numpy.concatenate(parts).astype(self.numpy.int32)


if __name__ == "__main__":
    save(sys.argv[1])
