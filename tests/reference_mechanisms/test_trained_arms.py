"""Drafters with weights through the backend: folders on disk, arms of a plan, one target."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness.cli import main
from harness.errors import UsageError
from harness.models import resolve_model
from harness.plan import ArmSpec, Deployment
from harness.records import DecodeRequest, Sampling, StepEvent
from reference_mechanisms.arms import ParameterError, parse_settings
from reference_mechanisms.backend import ReferenceSession, open_session
from tests.exhaustive import slow_but
from tests.harness.tiny import VOCAB, deployment_of, write_llama
from tests.reference_mechanisms.drafters.configs import SMALL
from tests.reference_mechanisms.drafters.folders import reference, tensors_of, write

BACKEND = "reference_mechanisms.backend:open_session"
OWN = ("lm_head.weight", "embed_tokens.weight")
FIT = {"vocab_size": VOCAB, "target_hidden_size": 32, "target_layer_ids": [-1, 0]}
LAYOUTS: dict[str, tuple[str, dict[str, Any], int]] = {
    "dflash": (
        "z-lab dflash",
        FIT | {"dflash_config": {"mask_token_id": 263, "target_layer_ids": [-1, 0]}},
        3,
    ),
    "dflash2": (
        "z-lab dflash2",
        FIT | {"dflash_config": SMALL["z-lab dflash2"]["dflash_config"] | {"target_layer_ids": [-1, 0]}},
        3,
    ),
    "dspark": ("deepspec dspark", FIT, 3),
    "eagle3": ("deepspec eagle3", FIT, 5),
}


def folder_of(name: str, at: Path, **changes: Any) -> str:
    layout, fit, _ = LAYOUTS[name]
    raw = SMALL[layout] | fit | changes
    return str(write(at / name, raw, tensors_of(reference(raw, *OWN))))


def arm(name: str, drafter: str, **params: Any) -> ArmSpec:
    return ArmSpec(
        name=name,
        kind="ar" if drafter == "none" else "candidate",
        backend=BACKEND,
        params={"drafter": drafter, **params},
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trained")


@pytest.fixture(scope="module")
def deployment(folder: Path) -> Deployment:
    return deployment_of(write_llama(folder / "target"))


@pytest.fixture(scope="module")
def session(deployment: Deployment, folder: Path) -> ReferenceSession:
    trained = [arm(name, name, checkpoint=folder_of(name, folder)) for name in LAYOUTS]
    return open_session(deployment, [arm("ar", "none"), *trained])


def requests(**sampling: object) -> list[DecodeRequest]:
    return [
        DecodeRequest(
            request_id=f"r{n}",
            prompt_token_ids=(256, *range(97, 98 + n)),
            sampling=msgspec.convert({"max_tokens": 20, **sampling}, Sampling),
            capture_logits=True,
        )
        for n in range(3)
    ]


def told(events: list[StepEvent]) -> list[tuple[str | None, str | None]]:
    ends = sorted((event for event in events if event.finish_reason), key=lambda event: event.index)
    return [(event.logits_sha256, event.text) for event in ends]


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("name", LAYOUTS)
def test_ids_and_logits_are_bitwise_those_of_ar(
    session: ReferenceSession, name: str, temperature: float
) -> None:
    plain = list(session.stream("ar", requests(temperature=temperature)))
    drafted = list(session.stream(name, requests(temperature=temperature)))
    assert told(drafted) == told(plain)
    assert max(event.num_draft_tokens for event in drafted) == LAYOUTS[name][2]


TREES = [(name, temperature) for name in LAYOUTS for temperature in (0.0, 0.9)]


@pytest.mark.parametrize(
    ("name", "temperature"), slow_but([one for one in TREES if one[1] or one[0] == "dflash"], TREES)
)
def test_ids_and_logits_of_trees_are_bitwise_those_of_ar(
    deployment: Deployment, folder: Path, name: str, temperature: float
) -> None:
    path = folder_of(name, folder)
    trees = [arm(f"tree {n}", name, checkpoint=path, tree=n, drafts=3) for n in (1, 6, 20)]
    session = open_session(deployment, [arm("ar", "none"), *trees])
    plain = list(session.stream("ar", requests(temperature=temperature)))
    for nodes in (1, 6, 20):
        drafted = list(session.stream(f"tree {nodes}", requests(temperature=temperature)))
        assert told(drafted) == told(plain)
        assert max(event.num_draft_tokens for event in drafted) == nodes
    said = session.describe()
    assert "tree: tree 1 (up to 1 nodes), tree 6 (up to 6 nodes)" in said["verification"]
    assert "1, 2, 3, 10, 20, 21 rows" in said["probe"]
    assert said["seeded"] is True


def test_rounded_drafters_change_no_output(deployment: Deployment, folder: Path) -> None:
    made = [
        arm(f"{name} {eight}", name, checkpoint=folder_of(name, folder), drafter_weights=eight)
        for name in LAYOUTS
        for eight in ("int8", "fp8")
    ]
    session = open_session(
        deployment, [arm("ar", "none"), msgspec.structs.replace(made[0], name="same"), *made]
    )
    plain = list(session.stream("ar", requests()))
    for one in made:
        assert told(list(session.stream(one.name, requests()))) == told(plain)
    networks = {name: bound.network for name, bound in session._bound.items()}
    assert len({id(network) for network in networks.values()}) == len(made)  # rounded alike, shared
    with pytest.raises(ParameterError, match="`drafter_weights` must be one of int8, fp8, got 'fp4'"):
        parse_settings({"drafter": "dflash", "drafter_weights": "fp4"})
    with pytest.raises(ParameterError, match="`drafter_weights` is unknown; drafter 'ngram' takes"):
        parse_settings({"drafter": "ngram", "drafter_weights": "fp8"})


def test_the_session_names_the_checkpoints(session: ReferenceSession, folder: Path) -> None:
    facts = session.describe()
    assert facts["checkpoints"] == {name: str(folder / name) for name in LAYOUTS}
    assert facts["drafters"]["dspark"] == "dspark"
    assert facts["seeded"] is True


def test_drawn_drafts_take_back_the_promise_of_a_seed(deployment: Deployment, folder: Path) -> None:
    drawn = arm(
        "drawn", "dspark", checkpoint=folder_of("dspark", folder), draft_sample_method="probabilistic"
    )
    session = open_session(deployment, [arm("ar", "none"), drawn])
    assert session.describe()["seeded"] is False
    events = list(session.stream("drawn", requests(temperature=0.9, ignore_eos=True)))
    assert sum(len(event.token_ids) for event in events) == 60
    plain = list(session.stream("ar", requests(temperature=0.9, ignore_eos=True)))
    assert told(events) != told(plain)  # distributed alike, not the same


def test_confidence_shortens_drafts(deployment: Deployment, folder: Path) -> None:
    path = folder_of("dspark", folder)
    session = open_session(
        deployment,
        [arm("all", "dspark", checkpoint=path), arm("sure", "dspark", checkpoint=path, min_confidence=0.7)],
    )
    drafted = {
        name: sum(event.num_draft_tokens for event in session.stream(name, requests()))
        for name in ("all", "sure")
    }
    assert 0 < drafted["sure"] < drafted["all"]


Change = Callable[[Path], dict[str, Any]]
WRONG: dict[str, tuple[Change, str]] = {
    "another drafter": (
        lambda at: {"drafter": "dflash", "checkpoint": folder_of("dspark", at)},
        r"arms\[x\]\.params: `drafter` is 'dflash', but `checkpoint` holds a dspark",
    ),
    "longer than a block": (
        lambda at: {"drafter": "dflash", "checkpoint": folder_of("dflash", at), "drafts": 4},
        r"arms\[x\]\.params: `drafts` is 4; the blocks of `checkpoint` give at most 3",
    ),
    "no confidence head": (
        lambda at: {
            "drafter": "dspark",
            "checkpoint": folder_of("dspark", at, enable_confidence_head=False),
            "min_confidence": 0.5,
        },
        r"arms\[x\]\.params: `min_confidence` is given",
    ),
    "of another target": (
        lambda at: {"drafter": "dflash", "checkpoint": folder_of("dflash", at, num_target_layers=36)},
        r"arms\[x\]\.params: `checkpoint`: .*: `num_target_layers` is 36, the target's is 2",
    ),
    "an unknown layout": (
        lambda at: {"drafter": "dflash", "checkpoint": folder_of("dflash", at)},
        r"arms\[x\]\.params: `checkpoint`: .*config.json: `architectures` is \['Other'\]",
    ),
}


@pytest.mark.parametrize(("params", "message"), WRONG.values(), ids=WRONG)
def test_an_error_names_the_arm_and_the_parameter(
    deployment: Deployment, tmp_path: Path, params: Change, message: str
) -> None:
    given = params(tmp_path)
    if "Other" in message:
        config = Path(given["checkpoint"]) / "config.json"
        config.write_text(config.read_text().replace("DFlashDraftModel", "Other"))
    with pytest.raises(UsageError, match=message):
        open_session(deployment, [arm("ar", "none"), arm("x", **given)])


def test_arms_share_a_checkpoint_and_keep_their_own_drafts(deployment: Deployment, folder: Path) -> None:
    path = folder_of("dflash", folder)
    session = open_session(
        deployment, [arm("a", "dflash", checkpoint=path), arm("b", "dflash", checkpoint=path, drafts=2)]
    )
    most = {
        name: max(event.num_draft_tokens for event in session.stream(name, requests())) for name in ("a", "b")
    }
    assert most == {"a": 3, "b": 2}


def shipped_for(sha256: str, name: str, root: Path) -> Path:
    target = {"specpilot_target": {"name": "tiny", "sha256": sha256}}
    return Path(folder_of(name, root / "tiny", **target)).parent.parent


def test_without_a_folder_the_drafter_shipped_for_the_target_is_used(
    deployment: Deployment, tmp_path: Path
) -> None:
    root = shipped_for(resolve_model(deployment.target).sha256 or "", "dflash", tmp_path)
    arms = [arm("ar", "none"), arm("x", "dflash", drafts=2)]
    session = open_session(deployment, arms, shipped=root)
    facts = session.describe()
    assert facts["checkpoints"] == {"x": "shipped tiny/dflash"}
    weights = (root / "tiny" / "dflash" / "model.safetensors").read_bytes()
    assert facts["checkpoint_sha256"] == {"x": hashlib.sha256(weights).hexdigest()}
    assert max(event.num_draft_tokens for event in session.stream("x", requests())) == 2


def test_a_drafter_shipped_for_another_target_is_refused(deployment: Deployment, tmp_path: Path) -> None:
    root = shipped_for("beef" * 16, "dflash", tmp_path)
    with pytest.raises(UsageError, match=r"arms\[x\].*trained for tiny \(beefbeefbeef\), this target's"):
        open_session(deployment, [arm("ar", "none"), arm("x", "dflash")], shipped=root)
    with pytest.raises(UsageError, match=r"no dspark comes with this package \(it has shipped tiny/dflash\)"):
        open_session(deployment, [arm("ar", "none"), arm("x", "dspark")], shipped=root)


def test_the_session_tells_what_the_weights_alone_give_away(session: ReferenceSession) -> None:
    findings = session.describe()["drafter_findings"]
    assert set(findings) == set(LAYOUTS)
    told = {one["detector"]: one["found"] for one in findings["dflash"]}
    assert told == {"untrained norms": False, "last layer tapped": False}
    assert all(isinstance(one["detail"], str) for one in findings["dflash"])


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_doctor_looks_at_a_folder_for_a_deployment(
    deployment: Deployment, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    file = tmp_path / "deployment.toml"
    file.write_text(
        f'schema = "deployment/1"\nname = "tiny"\ndevice = "cpu"\ncontext_length = 128\n'
        f'[target]\npath = "{deployment.target.path}"\ndtype = "float32"\n'
    )
    folder = folder_of(name, tmp_path)
    options = ["--deployment", str(file), "--prompts", "2", "--tokens", "24"]
    assert main(["drafters", "doctor", folder, *options]) == 1  # random weights know nothing
    said = capsys.readouterr().out.splitlines()
    assert said[0] == folder
    assert any(line.startswith("  head not shared: BROKEN") for line in said)
    assert len(said) == 8
    assert main(["drafters", "doctor", str(file)]) == 3
    assert "no drafter is shipped for the target of tiny" in capsys.readouterr().err
