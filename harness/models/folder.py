"""What a Hugging Face model folder says of itself, read from its JSON files (no transformers)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.errors import ModelError
from harness.models.weights import weight_files, weights_digest

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")  # one of them is needed

GENERATION = (
    *("temperature", "top_p", "top_k", "min_p", "max_new_tokens"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFolder:
    """A model that can be loaded: its folder and the facts the harness relies on."""

    path: Path
    sha256: str | None  # `weights_digest` of the folder; None where the weights lie behind a server
    eos_token_ids: tuple[int, ...]  # ascending; empty when the model names none
    context_length: int  # positions the model was made for
    vocab_size: int  # rows of the embedding
    source: str  # "folder ...", "package ...", "hub ...@...": for the report


def read_folder(path: Path, source: str, *, remote: bool = False) -> ModelFolder:
    """Check that a folder is complete and read its facts; hashes all weights, unless they are remote.

    Raises:
        ModelError: naming the file or field that is missing, and the mend.
    """
    if not path.is_dir():
        raise ModelError(f"`target.path`: {path} is no folder; give a folder with config.json and weights")
    config = _json(path / "config.json", needed=True)
    text = config.get("text_config") or config  # multimodal checkpoints nest the language model
    if not isinstance(text, dict):
        raise ModelError(f"{path / 'config.json'}: `text_config` must be an object; download it again")
    if not any((path / name).is_file() for name in TOKENIZER_FILES):
        raise ModelError(
            f"{path} has no tokenizer ({', '.join(TOKENIZER_FILES)}); copy the tokenizer into it"
        )
    if not remote:
        weight_files(path)
    tied = bool(config.get("tie_word_embeddings", text.get("tie_word_embeddings", False)))
    return ModelFolder(
        path=path,
        sha256=None if remote else weights_digest(path, tied_head=tied),
        eos_token_ids=_eos(path, config, text),
        context_length=_count(path, text, "max_position_embeddings"),
        vocab_size=_count(path, text, "vocab_size"),
        source=source,
    )


def sampling_defaults(path: Path) -> dict[str, Any]:
    """What the folder's generation_config.json sets beside token ids: servers may sample by it.

    Raises:
        ModelError: the file is no JSON object.
    """
    found = _json(path / "generation_config.json", needed=False)
    return {name: found[name] for name in GENERATION if found.get(name) is not None}


def _eos(path: Path, config: dict[str, Any], text: dict[str, Any]) -> tuple[int, ...]:
    """EOS ids as `generate` takes them: generation_config.json wins over config.json."""
    generation = _json(path / "generation_config.json", needed=False)
    found: Any = next(
        (part["eos_token_id"] for part in (generation, config, text) if part.get("eos_token_id") is not None),
        [],
    )
    ids = found if isinstance(found, list) else [found]
    if not all(isinstance(token, int) for token in ids):
        raise ModelError(f"{path}: `eos_token_id` must be an integer or a list of them, got {found!r}")
    return tuple(sorted(set(ids)))


def _count(path: Path, config: dict[str, Any], field: str) -> int:
    value = config.get(field)
    if not isinstance(value, int) or value < 1:
        raise ModelError(f"{path / 'config.json'}: `{field}` must be a positive integer, got {value!r}")
    return value


def _json(path: Path, *, needed: bool) -> dict[str, Any]:
    if not path.is_file():
        if needed:
            raise ModelError(f"{path.parent} has no {path.name}; give a complete Hugging Face model folder")
        return {}
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} cannot be read as JSON: {error}; download it again") from None
    if not isinstance(found, dict):
        raise ModelError(f"{path} must hold a JSON object; download it again")
    return found
