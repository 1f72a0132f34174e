"""Arms of other weights formats in one run: same tokens, one session for each format."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from agent_loop.variants import open_session
from harness.errors import UsageError
from harness.plan import ArmSpec, Param
from harness.records import DecodeRequest, Sampling
from tests.harness.tiny import deployment_of, write_llama

ENGINE = "reference_mechanisms.backend:open_session"
REQUEST = DecodeRequest(request_id="p", prompt_token_ids=tuple(range(96)), sampling=Sampling(max_tokens=16))


def arm(name: str, **params: Param) -> ArmSpec:
    return ArmSpec(name=name, kind="candidate", backend="agent_loop.variants:open_session", params=params)


def test_each_format_is_a_session_and_the_tokens_are_the_same(tmp_path: Path) -> None:
    deployment = deployment_of(write_llama(tmp_path / "m", dtype=torch.bfloat16), dtype="bfloat16")
    session = open_session(
        deployment,
        [
            arm("plain", engine=ENGINE, weights_format="bf16", drafter="none"),
            arm("packed", engine=ENGINE, weights_format="weight12", drafter="ngram", drafts=2, ngram_min=1),
            arm("chain", engine=ENGINE, weights_format="weight12", drafter="none"),
        ],
    )
    told = session.describe()
    assert told["weights_formats"] == {"plain": "bf16", "packed": "weight12", "chain": "weight12"}
    assert told["drafters"] == {"plain": "none", "packed": "ngram", "chain": "none"}
    assert len(session._distinct()) == 2
    tokens = {
        name: [token for event in session.stream(name, [REQUEST]) for token in event.token_ids]
        for name in ("plain", "packed", "chain")
    }
    session.close()
    assert tokens["plain"] == tokens["packed"] == tokens["chain"]


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"weights_format": "weight12"}, "needs `engine`"),
        ({"engine": ENGINE, "weights_format": "int4"}, "one of bf16, weight12"),
        ({"engine": "nothing", "weights_format": "bf16"}, "is not of the form"),
        ({"engine": ENGINE, "weights_format": "bf16", "drafter": "x"}, r"arms\[a\].params: `drafter`"),
    ],
    ids=["engine", "format", "name", "inner"],
)
def test_a_wrong_parameter_names_its_arm(tmp_path: Path, params: dict[str, Param], said: str) -> None:
    deployment = deployment_of(tmp_path / "unused")
    with pytest.raises(UsageError, match=said):
        open_session(deployment, [arm("a", **params)])
