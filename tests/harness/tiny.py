"""A random two-layer Llama with a byte tokenizer, written to a folder: real files, no download."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from harness.plan import Deployment, DType, ModelSpec

BOS, EOS, TURN = 256, 257, 258
VOCAB = 264
CHAT = (
    "{{ bos_token }}{% for message in messages %}"
    "<|turn|>{{ message['role'] }}\n{{ message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}"
)


def write_llama(
    folder: Path,
    *,
    seed: int = 0,
    tied: bool = True,
    dtype: torch.dtype = torch.float32,
    chat: str | None = CHAT,
) -> Path:
    """Model and tokenizer; the same seed gives the same weights."""
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=tied,
        bos_token_id=BOS,
        eos_token_id=EOS,
        initializer_range=0.3,  # wide, so that greedy output is varied
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config).to(dtype)
    model.save_pretrained(folder)
    GenerationConfig.from_model_config(config).save_pretrained(folder)
    write_tokenizer(folder, chat)
    return folder


def deployment_of(
    folder: Path,
    *,
    name: str = "tiny",
    dtype: DType = "float32",
    device: Literal["cpu", "cuda"] = "cpu",
    context_length: int = 128,
) -> Deployment:
    """One thread on the target of a folder."""
    return Deployment(
        schema="deployment/1",
        name=name,
        target=ModelSpec(path=str(folder), dtype=dtype),
        device=device,
        context_length=context_length,
        threads=1,
    )


def write_tokenizer(folder: Path, chat: str | None = CHAT) -> Path:
    """One token a byte; the tokenizer itself puts BOS in front, as Llama's does."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: n for n, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>", "<|turn|>"])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", BOS)])
    marks = {"bos_token": "<s>", "eos_token": "</s>"}
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **marks)
    fast.chat_template = chat
    fast.save_pretrained(folder)
    return folder
