from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest

from harness.errors import ModelError
from harness.models import resolve_model
from harness.plan import ModelSpec
from tests.harness.tiny import EOS, VOCAB, write_llama

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "model"))


def edit(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_a_folder_is_resolved_with_the_facts_of_its_files(folder: Path) -> None:
    model = resolve_model(ModelSpec(path=str(folder)))
    assert (model.path, model.eos_token_ids, model.vocab_size, model.context_length) == (
        folder,
        (EOS,),
        VOCAB,
        256,
    )
    assert model.source == f"folder {folder}"
    assert model.sha256 is not None
    assert len(model.sha256) == 64


def test_weights_behind_a_server_are_not_asked_for(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    model = resolve_model(ModelSpec(path=str(folder), remote=True))
    assert model.sha256 is None
    assert model.eos_token_ids == (EOS,)


def test_a_pinned_digest_that_fits_is_accepted_and_another_refused_naming_both(folder: Path) -> None:
    found = resolve_model(ModelSpec(path=str(folder))).sha256
    assert resolve_model(ModelSpec(path=str(folder), sha256=found)).sha256 == found
    with pytest.raises(ModelError, match=rf"{'0' * 64} but .* have {found}"):
        resolve_model(ModelSpec(path=str(folder), sha256="0" * 64))


def test_one_changed_byte_of_the_weights_is_noticed(folder: Path) -> None:
    pinned = resolve_model(ModelSpec(path=str(folder))).sha256
    weights = folder / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    with pytest.raises(ModelError, match=r"target\.sha256"):
        resolve_model(ModelSpec(path=str(folder), sha256=pinned))


@pytest.mark.parametrize(
    ("gone", "match"),
    [
        ("config.json", "config.json"),
        ("tokenizer.json", "tokenizer"),
        ("model.safetensors", "model.safetensors"),
    ],
)
def test_a_missing_file_is_named(folder: Path, gone: str, match: str) -> None:
    (folder / gone).unlink()
    with pytest.raises(ModelError, match=match):
        resolve_model(ModelSpec(path=str(folder)))


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="nowhere is no folder"):
        resolve_model(ModelSpec(path=str(tmp_path / "nowhere")))


def test_generation_config_wins_over_config_for_eos(folder: Path) -> None:
    edit(folder / "generation_config.json", eos_token_id=[9, 3, 9])
    assert resolve_model(ModelSpec(path=str(folder))).eos_token_ids == (3, 9)


def test_eos_comes_from_config_where_there_is_no_generation_config(folder: Path) -> None:
    (folder / "generation_config.json").unlink()
    assert resolve_model(ModelSpec(path=str(folder))).eos_token_ids == (EOS,)


def test_a_nested_language_model_is_read(folder: Path) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({"model_type": "multi", "text_config": json.loads(path.read_text())}))
    assert resolve_model(ModelSpec(path=str(folder))).vocab_size == VOCAB


@pytest.mark.parametrize("value", [None, 0, "many"])
def test_a_config_without_a_usable_vocabulary_is_refused(folder: Path, value: object) -> None:
    edit(folder / "config.json", vocab_size=value)
    with pytest.raises(ModelError, match="vocab_size"):
        resolve_model(ModelSpec(path=str(folder)))


def test_a_config_that_is_not_json_is_refused(folder: Path) -> None:
    (folder / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"config\.json cannot be read"):
        resolve_model(ModelSpec(path=str(folder)))


# hub


def hub_cache(made: Path, root: Path) -> Path:
    """The layout of the hub's own cache, filled by hand."""
    snapshot = root / "models--owner--tiny" / "snapshots" / COMMIT
    shutil.copytree(made, snapshot)
    return snapshot


def test_a_pinned_hub_revision_is_taken_from_the_local_cache_without_network(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = hub_cache(made, tmp_path)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    model = resolve_model(ModelSpec(hub="owner/tiny", revision=COMMIT))
    assert model.path == snapshot
    assert model.source == f"hub owner/tiny@{COMMIT}"


@pytest.mark.parametrize("revision", ["main", COMMIT[:12], "v" + COMMIT[1:]])
def test_only_a_full_commit_hash_is_a_pinned_revision(revision: str) -> None:
    with pytest.raises(ModelError, match="full commit hash"):
        resolve_model(ModelSpec(hub="owner/tiny", revision=revision))


def test_a_hub_model_that_cannot_be_had_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    said: list[str] = []
    with pytest.raises(ModelError, match=r"cannot download owner/tiny@0123456789ab: .*target\.path"):
        resolve_model(ModelSpec(hub="owner/tiny", revision=COMMIT), progress=said.append)
    assert said == ["downloading owner/tiny at 0123456789ab into the hub cache"]
