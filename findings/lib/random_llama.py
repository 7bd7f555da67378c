"""A Llama of transformers with two layers and random weights that are large enough for a change of
its cache to move what it answers; imported by the scripts that need one.

It needs transformers and torch, seeds torch and takes one thread, and gives `config` and `model`.
"""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

torch.set_num_threads(1)
torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=200,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=2,
    head_dim=32,
    pad_token_id=0,
    bos_token_id=None,
    eos_token_id=None,
)
model = LlamaForCausalLM(config).eval()
for weight in model.parameters():
    if weight.dim() >= 2:
        torch.nn.init.normal_(weight, 0, 0.15)
