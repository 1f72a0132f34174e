"""Greedy tokens of models, engine after engine: ``python -m tests.vllm.greedy OUT FOLDER[=METHOD] ..``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

PROMPTS = 12
TOKENS = 32


def prompts() -> Iterator[str]:
    """Short and long ones."""
    for number in range(PROMPTS):
        words = " ".join(f"word{number}{n}" for n in range(3 * (number % 5)))
        yield f"Tell me about the number {number} and what it is good for. {words}"


def main(out: Path, models: Sequence[str], ranks: int = 1) -> None:
    """Write the ids of every model as JSON, by its name."""
    from vllm import LLM, SamplingParams  # noqa: PLC0415 - heavy, and not always there

    found = {}
    for model in models:
        folder, _, method = model.partition("=")
        engine = LLM(
            model=folder,
            quantization=method or None,
            dtype="bfloat16",
            enforce_eager=True,
            max_model_len=256,
            max_num_seqs=PROMPTS,
            tensor_parallel_size=ranks,
            enable_prefix_caching=False,
        )
        sampling = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
        outputs = engine.generate(list(prompts()), sampling, use_tqdm=False)
        found[model] = [list(output.outputs[0].token_ids) for output in outputs]
        engine.llm_engine.engine_core.shutdown()
    out.write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
