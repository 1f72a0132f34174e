from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from reference_mechanisms.arm_targets import load_session_target
from reference_mechanisms.engine.rows import Rows
from reference_mechanisms.errors import TargetError
from reference_mechanisms.targets.hybrid import HybridTarget, load_hybrid
from reference_mechanisms.targets.llama import LlamaTarget, load_llama
from reference_mechanisms.weight12.errors import CorruptError
from reference_mechanisms.weight12.folder import pack_folder
from reference_mechanisms.weight12.packed_checkpoint import PackedCheckpoint
from reference_mechanisms.weight12.target import load_packed_llama
from tests.reference_mechanisms.targets.hybrids import write_hybrid
from tests.reference_mechanisms.targets.models import pack

GPU = torch.cuda.is_available()
CPU = torch.device("cpu")
FAMILIES = {"llama": (LlamaConfig, LlamaForCausalLM), "qwen3": (Qwen3Config, Qwen3ForCausalLM)}


def write_model(folder: Path, family: str = "llama", *, tied: bool = False, bias: bool = False) -> Path:
    """Large enough that most matrices are packed; keys and values are kept."""
    config_class, model_class = FAMILIES[family]
    config = config_class(
        vocab_size=300,
        hidden_size=256,
        intermediate_size=320,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=128,
        bos_token_id=0,
        eos_token_id=1,
        tie_word_embeddings=tied,
        attention_bias=bias,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = model_class(config).bfloat16()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith("bias"):
                    parameter.normal_()
        model.save_pretrained(folder, max_shard_size="400kB")
    return folder


def packed_of(folder: Path) -> Path:
    target = folder.with_name(f"{folder.name}-packed")
    pack_folder(folder, target, lambda _: None)
    return target


def logits(target: LlamaTarget | HybridTarget, rows: Rows) -> torch.Tensor:
    cache: Any = target.new_cache(1, 128)
    found = target.forward(rows, cache)
    return target.logits(found.hidden)


@pytest.mark.parametrize("tied", [False, True], ids=["own head", "tied head"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_packed_target_is_the_plain_one_bit_for_bit(family: str, tied: bool, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", family, tied=tied)
    packed = packed_of(folder)
    names = PackedCheckpoint(packed)
    prefix = "model.layers.0.self_attn"
    assert names.packed(f"{prefix}.q_proj.weight")
    assert not names.packed(f"{prefix}.k_proj.weight")
    rows = pack((0, 0, range(2, 40)))
    expected = logits(load_llama(folder, torch.bfloat16, CPU), rows)
    for source in (packed, folder):  # packed before, and while it is loaded
        found = logits(load_packed_llama(source, torch.bfloat16, CPU), rows)
        assert torch.equal(found.view(torch.int16), expected.view(torch.int16))


@pytest.mark.parametrize("family", ["qwen3_5", "qwen3_next"])
def test_a_packed_hybrid_is_the_plain_one_bit_for_bit(family: str, tmp_path: Path) -> None:
    folder = write_hybrid(
        tmp_path / "model", family, vocab_size=300, hidden_size=256, intermediate_size=320, head_dim=64
    )
    for path in folder.glob("*.safetensors"):
        save_file({name: one.bfloat16() for name, one in load_file(path).items()}, path, {"format": "pt"})
    packed = packed_of(folder)
    assert PackedCheckpoint(packed).packed("model.layers.0.mlp.down_proj.weight")
    rows = pack((0, 0, range(2, 40)))
    plain = load_hybrid(folder, torch.bfloat16, CPU)
    expected = logits(plain, rows)
    for source in (packed, folder):
        target = load_session_target(source, "weight12", torch.bfloat16, CPU)
        assert isinstance(target, HybridTarget)
        assert target.linear_kernel == "weight12, decoded at load"
        assert torch.equal(logits(target, rows).view(torch.int16), expected.view(torch.int16))
    with pytest.raises(TargetError, match="holds a target with recurrent layers; give a dense one"):
        load_packed_llama(packed, torch.bfloat16, CPU)


def test_biases_are_added(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", bias=True)
    rows = pack((0, 0, range(2, 40)))
    expected = logits(load_llama(folder, torch.bfloat16, CPU), rows)
    assert torch.equal(logits(load_packed_llama(packed_of(folder), torch.bfloat16, CPU), rows), expected)


def test_only_bf16_is_served(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=r"holds bfloat16 weights; `target\.dtype` is float32"):
        load_packed_llama(write_model(tmp_path / "model"), torch.float32, CPU)


def test_a_plain_loader_refuses_the_packed_folder(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="quantization_config"):
        load_llama(packed_of(write_model(tmp_path / "model")), torch.bfloat16, CPU)


def test_a_changed_byte_is_found_while_loading(tmp_path: Path) -> None:
    packed = packed_of(write_model(tmp_path / "model"))
    path = max(packed.glob("*.safetensors"))
    data = bytearray(path.read_bytes())
    data[-200] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptError, match="sha256"):
        load_packed_llama(packed, torch.bfloat16, CPU)


def test_tensors_are_taken_by_their_own_names(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    found = PackedCheckpoint(packed_of(folder))
    name = "model.layers.1.mlp.up_proj.weight"
    assert name in found
    assert f"{name}_lo" not in found
    assert len(found.names) == 2 * 9 + 3
    assert torch.equal(
        found.take(name, (320, 256), torch.bfloat16), found.take_planes(name, 320, 256).decode()
    )
    assert found.take("model.norm.weight", (256,), torch.float32).dtype == torch.float32
    assert found.config() == json.loads((folder / "config.json").read_text())
    with pytest.raises(TargetError, match=r"has shape \(320, 256\), config\.json asks for \(256, 320\)"):
        found.take(name, (256, 320), torch.bfloat16)
    with pytest.raises(TargetError, match="tensor other is missing"):
        found.take("other", (1,), torch.bfloat16)
    with pytest.raises(TargetError, match=r"has no place in this architecture"):
        found.refuse_unused(())
    found.refuse_unused(("weight",))


@pytest.mark.gpu
@pytest.mark.skipif(not GPU, reason="needs a CUDA device")
def test_on_a_gpu_rows_do_not_notice_each_other(tmp_path: Path) -> None:
    target = load_packed_llama(
        packed_of(write_model(tmp_path / "model")), torch.bfloat16, torch.device("cuda")
    )
    target.new_cache(1, 128)
    x = torch.randn(100, 256, device="cuda").bfloat16()
    whole = target.logits(x)
    for first, last in ((0, 1), (63, 66), (99, 100)):
        assert torch.equal(target.logits(x[first:last]), whole[first:last])
