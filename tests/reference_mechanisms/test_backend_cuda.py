"""A session on a CUDA device: every arm steps alike, and its logits are bitwise those of `ar`."""

from __future__ import annotations

import msgspec
import pytest
import torch

from harness.plan import Deployment
from reference_mechanisms.backend import ReferenceSession, open_session
from tests.harness.tiny import deployment_of, write_llama
from tests.reference_mechanisms.test_trained_arms import LAYOUTS, arm, folder_of, requests, told

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    folder = write_llama(tmp_path_factory.mktemp("cuda") / "target")
    return deployment_of(folder, dtype="bfloat16", device="cuda")


@pytest.fixture(scope="module")
def session(deployment: Deployment, tmp_path_factory: pytest.TempPathFactory) -> ReferenceSession:
    at = tmp_path_factory.mktemp("drafters")
    trained = [arm(name, name, checkpoint=folder_of(name, at)) for name in LAYOUTS]
    return open_session(deployment, [arm("ar", "none"), arm("replay", "replay", drafts=9), *trained])


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_single_requests_have_the_logits_of_ar_bit_by_bit(
    session: ReferenceSession, temperature: float
) -> None:
    asked = requests(temperature=temperature)
    session.prepare("replay", asked)
    for request in asked:
        plain = list(session.stream("ar", [request]))
        for name in ("replay", *LAYOUTS):
            assert told(list(session.stream(name, [request]))) == told(plain)


def test_a_recording_replays_in_whole(session: ReferenceSession) -> None:
    asked = [msgspec.structs.replace(one, request_id="again") for one in requests()]
    session.prepare("replay", asked)
    for request in asked:
        for event in session.stream("replay", [request]):
            assert event.num_accepted_tokens == min(event.num_draft_tokens, len(event.token_ids))


def test_the_session_says_how_it_steps(session: ReferenceSession, deployment: Deployment) -> None:
    facts = session.describe()
    assert facts["row_invariant"] is True
    assert set(facts["steps"]) == {"ar", "replay", *LAYOUTS}
    assert all("rows, CUDA graphs" in how for how in facts["steps"].values())
    plain = open_session(deployment, [arm("ar", "none", graphs=False)]).describe()
    assert plain["steps"] == {"ar": "as many rows as needed"}
    assert plain["probe_of_single_requests"] is None
