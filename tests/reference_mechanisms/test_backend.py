from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from transformers import GenerationConfig

from harness.errors import BackendError, ModelError, UsageError
from harness.plan import ArmSpec, Deployment, ModelSpec
from harness.records import DecodeRequest, Sampling, StepEvent
from reference_mechanisms.backend import ReferenceSession, open_session
from tests.harness.tiny import BOS, EOS, VOCAB, deployment_of, write_llama, write_tokenizer
from tests.reference_mechanisms.targets.hybrids import write_hybrid

BACKEND = "reference_mechanisms.backend:open_session"
ARMS = (
    ArmSpec(name="ar", kind="ar", backend=BACKEND, params={"drafter": "none"}),
    ArmSpec(name="replay", kind="replay", backend=BACKEND, params={"drafter": "replay", "drafts": 9}),
)


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    return deployment_of(write_llama(tmp_path_factory.mktemp("backend") / "target"))


@pytest.fixture(scope="module")
def session(deployment: Deployment) -> ReferenceSession:
    return open_session(deployment, ARMS)


def requests(count: int = 2, **sampling: object) -> list[DecodeRequest]:
    return [
        DecodeRequest(
            request_id=f"r{n}",
            prompt_token_ids=(256, 97 + n, 98),
            sampling=msgspec.convert({"max_tokens": 12, **sampling}, Sampling),
            capture_logits=True,
        )
        for n in range(count)
    ]


def last(events: Sequence[StepEvent]) -> list[StepEvent]:
    return sorted((e for e in events if e.finish_reason), key=lambda e: e.index)


def test_arms_emit_the_same_ids_from_the_same_logits(session: ReferenceSession) -> None:
    session.prepare("replay", requests())
    plain = list(session.stream("ar", requests()))
    replayed = list(session.stream("replay", requests()))
    assert [e.logits_sha256 for e in last(plain)] == [e.logits_sha256 for e in last(replayed)]
    assert [e.text for e in last(plain)] == [e.text for e in last(replayed)]
    assert len(replayed) < len(plain)


def test_what_the_session_says_of_itself_is_what_the_plan_asked_for(session: ReferenceSession) -> None:
    told = session.describe()
    assert told["device"] == "cpu"
    assert told["dtype"] == "float32"
    assert told["row_invariant"] is True
    assert told["seeded"] is True
    assert told["drafters"] == {"ar": "none", "replay": "replay"}
    assert "rows" in told["probe"]


def test_a_replay_arm_that_was_not_prepared_fails_its_request(session: ReferenceSession) -> None:
    request = msgspec.structs.replace(requests(1)[0], prompt_token_ids=(1, 2, 3))
    with pytest.raises(BackendError, match="r0: its continuation was not recorded"):
        list(session.stream("replay", [request]))


def test_a_request_that_does_not_fit_fails_by_name(session: ReferenceSession) -> None:
    with pytest.raises(BackendError, match=r"r0: .* do not fit the context of 128"):
        list(session.stream("ar", requests(1, max_tokens=126)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param({"context_length": 4096}, "`context_length` = 4096: the target's is 256", id="context"),
    ],
)
def test_a_deployment_the_engine_cannot_serve_is_refused(
    deployment: Deployment, change: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        open_session(msgspec.structs.replace(deployment, **change), ARMS)


def test_packed_weights_are_those_of_bf16_and_no_other_type(deployment: Deployment) -> None:
    packed = msgspec.structs.replace(deployment, weights_format="weight12")
    with pytest.raises(ModelError, match=r"weight12 holds bfloat16 weights; `target\.dtype` is float32"):
        open_session(packed, ARMS)
    half = msgspec.structs.replace(packed, target=msgspec.structs.replace(packed.target, dtype="bfloat16"))
    opened = open_session(half, ARMS)
    assert opened.describe()["linear_kernel"] == "weight12, decoded at load"
    opened.close()


def test_a_wrong_parameter_names_the_arm(deployment: Deployment) -> None:
    wrong = ArmSpec(name="fast", kind="stock", backend=BACKEND, params={"drafter": "ngram", "draft": 3})
    with pytest.raises(UsageError, match=r"arms\[fast\]\.params: `draft` is unknown"):
        open_session(deployment, [ARMS[0], wrong])


def test_a_folder_without_weights_is_refused(deployment: Deployment, tmp_path: Path) -> None:
    folder = write_llama(tmp_path / "target")
    (folder / "model.safetensors").unlink()
    target = ModelSpec(path=str(folder), dtype="float32")
    with pytest.raises(ModelError, match=r"has no model\.safetensors"):
        open_session(msgspec.structs.replace(deployment, target=target), ARMS)


HYBRID_ARMS = (
    *ARMS,
    ArmSpec(name="null", kind="null", backend=BACKEND, params={"drafter": "null", "drafts": 3}),
    ArmSpec(name="ngram", kind="candidate", backend=BACKEND, params={"drafter": "ngram", "ngram_min": 1}),
)


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> ReferenceSession:
    folder = tmp_path_factory.mktemp("backend") / "hybrid"
    write_hybrid(folder, vocab_size=VOCAB, bos_token_id=BOS, eos_token_id=EOS, num_hidden_layers=4)
    GenerationConfig(bos_token_id=BOS, eos_token_id=EOS).save_pretrained(folder)
    write_tokenizer(folder)
    return open_session(deployment_of(folder, name="hybrid"), HYBRID_ARMS)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("arm", ["replay", "null", "ngram"])
def test_a_hybrid_target_is_served_by_every_arm_bitwise_as_autoregressively(
    hybrid: ReferenceSession, arm: str, temperature: float
) -> None:
    asked = requests(1, temperature=temperature, seed=3)
    hybrid.prepare(arm, asked)
    plain, found = (last(list(hybrid.stream(name, asked))) for name in ("ar", arm))
    assert [(e.logits_sha256, e.text) for e in plain] == [(e.logits_sha256, e.text) for e in found]


def test_a_hybrid_target_is_found_row_invariant(hybrid: ReferenceSession) -> None:
    assert hybrid.describe()["row_invariant"] is True
