"""A small vocabulary for a small target: byte-level BPE learnt on the text it will be trained on.

Every byte is a token, so that any prompt can be encoded. A chat is <|im_start|>, role, newline, content,
<|im_end|>, newline, as in the default target, without its system turn.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from reference_mechanisms.drafters.training.corpus import Corpus, Example, gather

UNUSED, BEGIN, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIAL = (UNUSED, BEGIN, END)  # ids 0, 1 and 2; the target never writes the first: drafters' mask
MASK_ID, BEGIN_ID, END_ID = range(3)
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def learn(texts: Iterable[str], size: int) -> Tokenizer:
    """A vocabulary of so many tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def store(tokenizer: Tokenizer, folder: Path) -> None:
    """Write the files that Hugging Face Transformers reads a tokenizer from."""
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    told: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BEGIN,
        "eos_token": END,
        "pad_token": UNUSED,
        "model_max_length": 2048,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")


def chat_texts(corpus: Corpus, old: Tokenizer, rows: Sequence[int]) -> list[tuple[str, str]]:
    """User turn and answer of examples that another target wrote, as text.

    Args:
        corpus: of chats of one turn, in the ids of `old`.
        old: its tokenizer.
        rows: which of them.
    """
    starts = corpus.starts()
    prompts, answers = [], []
    for row in rows:
        ids = corpus.token_ids[starts[row] : starts[row] + corpus.lengths[row]].tolist()
        cut = int(corpus.prompt_lengths[row])
        prompts.append(ids[:cut])
        answers.append(ids[cut:])
    asked = old.decode_batch(prompts, skip_special_tokens=False)
    told = old.decode_batch(answers, skip_special_tokens=True)
    opening = f"{BEGIN}user\n"
    turns = [text.rsplit(opening, 1)[-1].rsplit(END, 1)[0] for text in asked]
    return list(zip(turns, told, strict=True))


def encoded(corpus: Corpus, old: Tokenizer, new: Tokenizer, rows: Sequence[int]) -> Corpus:
    """The same examples in the ids of a new vocabulary; each answer ends with `END` where it ended before."""
    starts = corpus.starts()
    texts = chat_texts(corpus, old, rows)
    stop = old.token_to_id(END)
    asked = new.encode_batch([f"{BEGIN}user\n{turn}{END}\n{BEGIN}assistant\n" for turn, _ in texts])
    told = new.encode_batch([answer for _, answer in texts])
    found = []
    for row, prompt, answer in zip(rows, asked, told, strict=True):
        ended = corpus.token_ids[starts[row] + corpus.lengths[row] - 1] == stop
        text = (*answer.ids, *((END_ID,) if ended else ()))
        source = corpus.names[corpus.sources[row]]
        found.append(Example(tuple(prompt.ids), text, source, float(corpus.temperatures[row])))
    return gather(found)
