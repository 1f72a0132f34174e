"""The engine from a notebook: one prompt with and without drafts, the same tokens in fewer steps.

    python -m reference_mechanisms.example MODEL_FOLDER "some text that some text repeats"

MODEL_FOLDER is a Hugging Face folder of a dense Llama or Qwen3; the default target lies in the user cache
after `specpilot-harness run reproduce-cpu`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoTokenizer

from reference_mechanisms.drafters.calibration import NoDrafter
from reference_mechanisms.drafters.ngram import NgramDrafter
from reference_mechanisms.drafters.protocol import Drafter
from reference_mechanisms.engine.decode import Decoder
from reference_mechanisms.request import Request, Sampling
from reference_mechanisms.targets.loading import load_target

MOST = 48  # tokens


def decode(decoder: Decoder, prompt: tuple[int, ...], drafter: Drafter) -> tuple[list[int], int]:
    """Tokens of a greedy continuation, and how many forwards of the target it took."""
    request = Request(name="example", prompt=prompt, sampling=Sampling(max_tokens=MOST))
    events = list(decoder.stream([request], drafter))
    return [token for event in events for token in event.token_ids], len(events)


def main(arguments: Sequence[str]) -> None:
    """Decode a text twice and compare."""
    folder, text = arguments
    tokenizer = AutoTokenizer.from_pretrained(folder)
    target = load_target(Path(folder), torch.float32, torch.device("cpu"))
    eos = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    prompt = tuple(tokenizer(text)["input_ids"])
    decoder = Decoder(target, eos, tokenizer.decode, capacity=len(prompt) + MOST)
    with torch.inference_mode():
        plain, steps = decode(decoder, prompt, NoDrafter())
        drafted, fewer = decode(decoder, prompt, NgramDrafter(drafts=7, longest=4, shortest=2))
    print(f"autoregressive: {len(plain)} tokens in {steps} forwards")
    print(f"n-gram drafts:  {len(drafted)} tokens in {fewer} forwards")
    print(f"the same tokens: {plain == drafted}")


if __name__ == "__main__":
    main(sys.argv[1:])
