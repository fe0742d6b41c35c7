# SPDX-License-Identifier: MIT
"""Makes the files in tests/data/pretrained: small random models of the transformers package, and their logits.

    pip install torch transformers safetensors numpy && python bench/peers/pretrained.py tests/data/pretrained

For each model a folder with model.safetensors and config.json as save_pretrained writes them, ids.npy and logits.npy, the logits
of those token ids, computed in float64 from the file. Llama's norms and rotary angles are float32 inside the package.
"""
import json
import pathlib
import sys

import numpy
import torch
from transformers import GPT2Config, GPT2LMHeadModel, GPT2Model, LlamaConfig, LlamaForCausalLM

VOCABULARY, POSITIONS = 32, 20
folder = pathlib.Path(sys.argv[1])


def randomise(model, seed):
    """Values away from every special point: gains around 1, biases too."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            gain = parameter.dim() == 1 and name.endswith("weight")
            parameter.copy_(0.25 * torch.randn(parameter.shape, generator=generator) + (1.0 if gain else 0.0))


def save(name, model, dtype, seed, change_config=None):
    """`change_config`: what an older version of the package wrote otherwise."""
    path = folder / name
    randomise(model, seed)
    model.to(dtype).eval()
    model.save_pretrained(path)
    (path / "generation_config.json").unlink(missing_ok=True)
    (path / "model.safetensors").chmod(0o644)
    if change_config:
        config = json.loads((path / "config.json").read_text())
        change_config(config)
        (path / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    ids = torch.randint(0, VOCABULARY, (2, POSITIONS), generator=torch.Generator().manual_seed(seed))
    model = type(model).from_pretrained(path, dtype=torch.float64).eval()
    with torch.no_grad():
        if isinstance(model, GPT2Model):  # it has no readout of its own: the token table is
            logits = model(ids).last_hidden_state @ model.wte.weight.T
        else:
            logits = model(ids).logits
    numpy.save(path / "ids.npy", ids.numpy().astype(numpy.int32))
    numpy.save(path / "logits.npy", logits.numpy())
    print(name, "logits of rms", logits.pow(2).mean().sqrt().item())


def older_llama(config):
    """Version 4: the base on its own, no size of heads."""
    config["rope_theta"] = config.pop("rope_parameters")["rope_theta"]
    config["rope_scaling"] = None
    del config["head_dim"]


gpt2 = dict(vocab_size=VOCABULARY, n_positions=POSITIONS, n_embd=16, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0)
llama = dict(vocab_size=VOCABULARY, max_position_embeddings=64, hidden_size=24, num_hidden_layers=2, num_attention_heads=4,
             attn_implementation="eager")
save("gpt2", GPT2LMHeadModel(GPT2Config(**gpt2)), torch.float32, 1)
save("gpt2_base", GPT2Model(GPT2Config(**gpt2, n_inner=40)), torch.float16, 2)
save("llama", LlamaForCausalLM(LlamaConfig(**llama, num_key_value_heads=2, intermediate_size=41, rms_norm_eps=1e-6,
                                           rope_parameters={"rope_type": "default", "rope_theta": 500.0})), torch.float32, 3)
save("llama_tied", LlamaForCausalLM(LlamaConfig(**llama, num_key_value_heads=1, intermediate_size=64, rms_norm_eps=1e-5,
                                                tie_word_embeddings=True)), torch.bfloat16, 4, older_llama)
