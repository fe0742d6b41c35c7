# SPDX-License-Identifier: MIT
"""Makes the files in tests/data/pretrained: small random models of the transformers package, and their logits.

    pip install torch transformers safetensors sentencepiece numpy && python bench/peers/pretrained.py tests/data/pretrained [NAME...]

For each model (of these names) a folder with model.safetensors, or shards, and config.json as save_pretrained writes them, ids.npy
and logits.npy, the logits of those token ids, computed in float64 from the file. Llama's norms and rotary angles are float32
inside the package. Models with a tokenizer.json also have generated.json: the text that the package writes after a prompt, always
the most likely token, and its token ids. llama3 also has SentencePiece's tokenizer.model, and generated_pieces.json with the text
under its tokens.
"""
import io
import json
import pathlib
import sys

import numpy
import sentencepiece
import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (GPT2Config, GPT2LMHeadModel, GPT2Model, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Qwen2Config,
                          Qwen2ForCausalLM)

VOCABULARY, POSITIONS = 32, 20
SENTENCES = ["The early bird catches the worm.", "When the cat is away, the mice will play.", "All the world is a stage."]
folder = pathlib.Path(sys.argv[1])
names = sys.argv[2:]


def randomise(model, seed):
    """Values away from every special point: gains around 1, biases too."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            gain = parameter.dim() == 1 and name.endswith("weight")
            parameter.copy_(0.25 * torch.randn(parameter.shape, generator=generator) + (1.0 if gain else 0.0))


def generate(model, given):
    """The ids that the model writes after the ids `given`."""
    with torch.no_grad():
        made = model.generate(torch.tensor([given]), max_new_tokens=24, do_sample=False, eos_token_id=None, pad_token_id=0)
    return made[0, len(given):].tolist()


def save_pieces(path, model, prompt):
    """A SentencePiece model with byte_fallback, as Llama 2's, in a model's folder, and the text that the model writes with it.
    Byte pieces that are not UTF-8 are replaced as Python's bytes.decode replaces them."""
    trained = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES), model_writer=trained, vocab_size=model.config.vocab_size, model_type="bpe",
        byte_fallback=True, character_coverage=1.0, normalization_rule_name="identity", remove_extra_whitespaces=False,
        minloglevel=2, num_threads=1)
    (path / "tokenizer.model").write_bytes(trained.getvalue())
    pieces = sentencepiece.SentencePieceProcessor(model_proto=trained.getvalue())
    given = pieces.encode(prompt, add_bos=True)
    new = generate(model, given)
    text = b""
    for id in new:
        piece = pieces.id_to_piece(id)
        text += bytes([int(piece[1:-1], 16)]) if pieces.is_byte(id) else pieces.decode([given[-1], id])[
            len(pieces.decode([given[-1]])):].encode()
    (path / "generated_pieces.json").write_text(json.dumps(
        {"prompt": prompt, "prompt_ids": given, "ids": new, "text": text.decode(errors="replace")}) + "\n")


def save(name, model, dtype, seed, change_config=None, shape=(2, POSITIONS), shard_size="1GB", tokenizer=None, pieces=False):
    """`change_config`: what an older version of the package wrote otherwise."""
    if names and name not in names:
        return
    path = folder / name
    randomise(model, seed)
    model.to(dtype).eval()
    model.save_pretrained(path, max_shard_size=shard_size)
    (path / "generation_config.json").unlink(missing_ok=True)
    for file in path.glob("*.safetensors"):
        file.chmod(0o644)
    if change_config:
        config = json.loads((path / "config.json").read_text())
        change_config(config)
        (path / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    ids = torch.randint(0, model.config.vocab_size, shape, generator=torch.Generator().manual_seed(seed))
    model = type(model).from_pretrained(path, dtype=torch.float64).eval()
    with torch.no_grad():
        if isinstance(model, GPT2Model):  # it has no readout of its own: the token table is
            logits = model(ids).last_hidden_state @ model.wte.weight.T
        else:
            logits = model(ids).logits
    numpy.save(path / "ids.npy", ids.numpy().astype(numpy.int32))
    numpy.save(path / "logits.npy", logits.numpy())
    if tokenizer:
        (path / "tokenizer.json").write_text(json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False) + "\n")
        fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
        prompt = "The early bird"
        given = fast(prompt).input_ids
        new = generate(model, given)
        text = fast.decode(new, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        (path / "generated.json").write_text(
            json.dumps({"prompt": prompt, "prompt_ids": given, "ids": new, "text": text}) + "\n")
    if pieces:
        save_pieces(path, model, "The early bird catches")
    print(name, "logits of rms", logits.pow(2).mean().sqrt().item())


def older_llama(config):
    """Version 4: the base on its own, no size of heads."""
    config["rope_theta"] = config.pop("rope_parameters")["rope_theta"]
    config["rope_scaling"] = None
    del config["head_dim"]


def byte_pairs(size, special, pattern=None, begin=None, normalizer=None):
    """A byte-level BPE of GPT-2's kind; with a pattern, of Llama 3's and Qwen2's."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=begin is not None))
    if normalizer:
        tokenizer.normalizer = normalizer
    if pattern:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"),
                                                           pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(SENTENCES, trainers.BpeTrainer(vocab_size=size - len(special), show_progress=False,
                                                            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())))
    tokenizer.add_special_tokens(special)
    if begin:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{begin} $A", special_tokens=[(begin, tokenizer.token_to_id(begin))])
    else:
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def older_linear(config):
    """Version 4: linear scaling under its older name."""
    rope = config.pop("rope_parameters")
    config["rope_theta"], config["rope_scaling"] = rope["rope_theta"], {"type": "linear", "factor": rope["factor"]}


LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")

gpt2 = dict(vocab_size=VOCABULARY, n_positions=POSITIONS, n_embd=16, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0)
llama = dict(vocab_size=VOCABULARY, max_position_embeddings=64, hidden_size=24, num_hidden_layers=2, num_attention_heads=4,
             attn_implementation="eager")
save("gpt2", GPT2LMHeadModel(GPT2Config(**gpt2)), torch.float32, 1)
save("gpt2_base", GPT2Model(GPT2Config(**gpt2, n_inner=40)), torch.float16, 2)
save("llama", LlamaForCausalLM(LlamaConfig(**llama, num_key_value_heads=2, intermediate_size=41, rms_norm_eps=1e-6,
                                           rope_parameters={"rope_type": "default", "rope_theta": 500.0})), torch.float32, 3)
save("llama_tied", LlamaForCausalLM(LlamaConfig(**llama, num_key_value_heads=1, intermediate_size=64, rms_norm_eps=1e-5,
                                                tie_word_embeddings=True)), torch.bfloat16, 4, older_llama)
save("llama_linear", LlamaForCausalLM(LlamaConfig(**llama, num_key_value_heads=4, intermediate_size=40, rms_norm_eps=1e-6,
                                                  rope_parameters={"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0})),
     torch.float32, 5, older_linear, (1, 40))
text_gpt2 = byte_pairs(288, ["<|endoftext|>"])
save("gpt2_text", GPT2LMHeadModel(GPT2Config(**{**gpt2, "vocab_size": 288, "n_positions": 48})), torch.float32, 6, shape=(1, 20),
     tokenizer=text_gpt2)
text_llama3 = byte_pairs(288, ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
                         LLAMA3, "<|begin_of_text|>")
llama3 = dict(vocab_size=288, max_position_embeddings=256, hidden_size=24, num_hidden_layers=2, num_attention_heads=4, head_dim=8,
              num_key_value_heads=2, intermediate_size=40, rms_norm_eps=1e-5, attn_implementation="eager")
save("llama3", LlamaForCausalLM(LlamaConfig(**llama3, rope_parameters={
    "rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32})), torch.bfloat16, 7, shape=(1, 28), shard_size="30KB", tokenizer=text_llama3, pieces=True)
text_qwen2 = byte_pairs(288, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], QWEN2, normalizer=normalizers.NFC())
save("qwen2", Qwen2ForCausalLM(Qwen2Config(vocab_size=288, hidden_size=24, intermediate_size=40, num_hidden_layers=2,
                                           num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128,
                                           tie_word_embeddings=True, attn_implementation="eager",
                                           rope_parameters={"rope_type": "default", "rope_theta": 1000.0})),
     torch.float32, 8, shape=(1, 20), tokenizer=text_qwen2)
save("qwen2_window", Qwen2ForCausalLM(Qwen2Config(vocab_size=VOCABULARY, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
                                                  num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=64,
                                                  tie_word_embeddings=False, attn_implementation="eager", use_sliding_window=True,
                                                  sliding_window=5, max_window_layers=0)), torch.float32, 9)
