from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from harness.backends.transformers_engine import TransformersSession, open_session
from harness.errors import BackendError, UsageError
from harness.measure.worker import SystemClock
from harness.plan import ArmSpec, Deployment, ModelSpec, Param
from harness.protocols import Exchange
from harness.records import DecodeRequest, Sampling
from tests.harness.tiny import deployment_of, write_llama

BACKEND = "harness.backends.transformers_engine:open_session"
ARMS = (
    ArmSpec(name="ar", kind="ar", backend=BACKEND),
    ArmSpec(name="lookup", kind="stock", backend=BACKEND, params={"prompt_lookup": 4}),
)
CLOCK = SystemClock()
PROMPT = (256, *b"abcabcabcabc")


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> TransformersSession:
    folder = write_llama(tmp_path_factory.mktemp("hf") / "target")
    return open_session(deployment_of(folder), ARMS)


def decode(session: TransformersSession, arm: str, **sampling: object) -> Exchange:
    request = DecodeRequest(
        request_id="r0",
        prompt_token_ids=PROMPT,
        sampling=msgspec.convert({"max_tokens": 24, **sampling}, Sampling),
    )
    return session.exchange(arm, [request], CLOCK)[0]


@pytest.mark.parametrize("sampling", [{}, {"min_tokens": 20}, {"repetition_penalty": 1.3}], ids=str)
def test_prompt_lookup_emits_what_autoregressive_decoding_emits(
    session: TransformersSession, sampling: dict[str, object]
) -> None:
    plain, assisted = decode(session, "ar", **sampling), decode(session, "lookup", **sampling)
    assert assisted.token_ids == plain.token_ids
    assert assisted.finish_reason == plain.finish_reason
    assert sum(chunk.num_tokens for chunk in assisted.chunks) == len(assisted.token_ids)


def test_autoregressive_tokens_arrive_one_by_one_in_order(session: TransformersSession) -> None:
    found = decode(session, "ar")
    assert [chunk.num_tokens for chunk in found.chunks] == [1] * len(found.token_ids)
    times = [chunk.at_ns for chunk in found.chunks]
    assert times == sorted(times)
    assert found.end_ns == times[-1]


def test_a_stop_token_ends_the_output_with_its_reason(session: TransformersSession) -> None:
    free = decode(session, "ar", ignore_eos=True)
    stop = free.token_ids[5]
    found = decode(session, "ar", ignore_eos=True, stop_token_ids=[stop])
    assert found.token_ids == free.token_ids[: free.token_ids.index(stop) + 1]
    assert (found.finish_reason, found.stop_reason) == ("stop", stop)


def test_length_ends_the_output_with_its_reason(session: TransformersSession) -> None:
    found = decode(session, "lookup", ignore_eos=True, max_tokens=7)
    assert (len(found.token_ids), found.finish_reason, found.stop_reason) == (7, "length", None)


def test_penalties_it_does_not_know_are_refused(session: TransformersSession) -> None:
    with pytest.raises(BackendError, match="frequency_penalty"):
        decode(session, "ar", frequency_penalty=0.5)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        pytest.param({"lookup": 3}, "`lookup` is unknown", id="typo"),
        pytest.param({"prompt_lookup": -1}, "in 0..64", id="negative"),
        pytest.param({"prompt_lookup": True}, "got True", id="a truth value"),
    ],
)
def test_a_wrong_parameter_names_the_arm(tmp_path: Path, params: dict[str, Param], message: str) -> None:
    deployment = Deployment(
        schema="deployment/1",
        name="tiny",
        target=ModelSpec(path=str(tmp_path)),
        device="cpu",
        context_length=128,
    )
    with pytest.raises(UsageError, match=message) as refused:
        open_session(deployment, [ArmSpec(name="odd", kind="ar", backend=BACKEND, params=params)])
    assert "arms[odd]" in str(refused.value)
