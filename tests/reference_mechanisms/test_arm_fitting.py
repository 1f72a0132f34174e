"""A session that does not fit its GPU is refused before anything is loaded. Needs no GPU."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch

from harness.errors import ModelError
from harness.plan import ArmSpec, Deployment
from reference_mechanisms import backend
from reference_mechanisms.arm_drafters import DrafterFolder
from reference_mechanisms.arm_fitting import Deployed, session_needs
from reference_mechanisms.arms import parse_settings
from reference_mechanisms.backend import open_session
from reference_mechanisms.engine import fitting
from reference_mechanisms.engine.fitting import LIBRARIES, WeightFormat
from reference_mechanisms.errors import TargetError
from tests.harness.tiny import deployment_of, write_llama
from tests.reference_mechanisms.targets.hybrids import write_hybrid
from tests.reference_mechanisms.test_trained_arms import folder_of
from tests.reference_mechanisms.weight12.test_target import packed_of, write_model

CUDA = torch.device("cuda")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("fitting") / "target")


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was loaded, on a GPU that has what `free` says."""
    found: list[str] = []

    def load(*arguments: object) -> None:
        found.append(str(arguments[0]))
        raise TargetError("reached")

    monkeypatch.setattr(backend, "load_session_target", load)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    return found


def free(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(fitting, "free_bytes", lambda device: count)


def arm(name: str, **params: str | float | bool) -> ArmSpec:
    return ArmSpec(name=name, kind="candidate", backend="", params=params)


def on_cuda(folder: Path) -> Deployment:
    return deployment_of(folder, device="cuda")


def test_it_is_refused_with_its_bytes_before_loading(
    folder: Path, loaded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    free(monkeypatch, LIBRARIES // 2)
    with pytest.raises(ModelError) as refused:
        open_session(on_cuda(folder), [arm("ar", drafter="none")])
    told = str(refused.value)
    assert loaded == []
    assert told.startswith("deployment tiny with its arms does not fit: weights take ")
    for words in ("the cache", "graphs", f"{LIBRARIES // 2} are free", "take weight12, a shorter context"):
        assert words in told
    free(monkeypatch, 2 * LIBRARIES)
    with pytest.raises(ModelError, match="reached"):
        open_session(on_cuda(folder), [arm("ar", drafter="none")])
    assert len(loaded) == 1


def test_slots_of_a_batch_are_counted(
    folder: Path, loaded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    free(monkeypatch, LIBRARIES + (40 << 20))
    few, many = (arm("many", drafter="ngram", batch_slots=slots) for slots in (2, 512))
    with pytest.raises(ModelError, match="reached"):
        open_session(on_cuda(folder), [few])
    long = msgspec.structs.replace(on_cuda(folder), context_length=256)
    with pytest.raises(ModelError, match="does not fit"):
        open_session(long, [many])
    assert len(loaded) == 1


def deployed(folder: Path, weights: WeightFormat = "bf16", dtype: torch.dtype = torch.bfloat16) -> Deployed:
    return Deployed("d", folder, weights, dtype, CUDA, 128)


def test_every_part_has_its_share(folder: Path, tmp_path: Path) -> None:
    arms = {"a": parse_settings({"drafter": "ngram", "drafts": 4})}
    plain = session_needs(deployed(folder), arms, ())
    wide = session_needs(deployed(folder, dtype=torch.float32), arms, ())
    assert wide.cache == 2 * plain.cache
    drafter = Path(folder_of("dflash", tmp_path))
    with_drafter = session_needs(deployed(folder), arms, [DrafterFolder("x", drafter)] * 2)
    files = sum(path.stat().st_size for path in drafter.glob("*.safetensors"))
    assert with_drafter.weights == plain.weights + files > plain.weights
    more = {"a": parse_settings({"drafter": "ngram", "drafts": 32})}
    assert session_needs(deployed(folder), more, ()).graphs > plain.graphs


def test_a_packed_folder_and_a_hybrid_are_counted_too(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "target")
    arms = {"a": parse_settings({"drafter": "none"})}
    packed = session_needs(deployed(packed_of(folder), "weight12"), arms, ())
    assert 0 < packed.weights < session_needs(deployed(folder), arms, ()).weights
    assert session_needs(deployed(write_hybrid(tmp_path / "hybrid")), arms, ()).weights > 0
