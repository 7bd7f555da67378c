"""A tiny Llama with random weights, for transformers and converted for CTranslate2; imported by the
scripts that need one.

It needs ctranslate2, transformers and torch, writes the folders `model` and `converted` where it
runs, and gives `names`, the words of the model, `number`, their ids, `model` of transformers and
`generator` of CTranslate2.
"""

import ctranslate2
import torch
from ctranslate2.converters import TransformersConverter
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

WORDS = 64
names = [f"t{number}" for number in range(WORDS - 3)] + ["<s>", "</s>", "<unk>"]
number = {name: at for at, name in enumerate(names)}

torch.manual_seed(0)
model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=WORDS,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        bos_token_id=WORDS - 3,
        eos_token_id=WORDS - 2,
        initializer_range=0.3,
    )
).eval()
model.save_pretrained("model")
words = Tokenizer(models.WordLevel(number, unk_token="<unk>"))
words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
PreTrainedTokenizerFast(
    tokenizer_object=words, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
).save_pretrained("model")
TransformersConverter("model").convert("converted")
generator = ctranslate2.Generator("converted", device="cpu", intra_threads=1)
