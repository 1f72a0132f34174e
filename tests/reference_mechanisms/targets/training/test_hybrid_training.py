"""The hybrid target in training is the one that decodes; a run learns and keeps to its time."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from torch import Tensor

from reference_mechanisms.drafters.training.corpus import Corpus, Example, gather
from reference_mechanisms.engine.rows import Rows as EngineRows
from reference_mechanisms.engine.rows import Segment
from reference_mechanisms.errors import TargetError
from reference_mechanisms.targets.hybrid import load_hybrid
from reference_mechanisms.targets.hybrid_config import parse_hybrid_config
from reference_mechanisms.targets.training import pretraining, vocabulary
from reference_mechanisms.targets.training.chunked import Rows, delta_rule, unit_inverse
from reference_mechanisms.targets.training.network import HybridNetwork, Past
from reference_mechanisms.targets.training.plan import Pretraining, load_hybrid_plan
from reference_mechanisms.targets.training.pretraining import pretrain
from reference_mechanisms.targets.training.storing import described, load_network, store_target
from reference_mechanisms.targets.training.teaching import write_greedily

CPU = torch.device("cpu")
SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
SHIPPED_PLAN = Path("reference_mechanisms/targets/training/small-hybrid.toml")


def network(seed: int = 1) -> HybridNetwork:
    made = HybridNetwork(parse_hybrid_config(described(SIZES), "test"), seed)
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in made.parameters():
            if weight.ndim == 1:
                weight.add_(torch.randn(weight.shape, generator=random) * 0.2)
            elif weight.ndim == 2:
                weight.mul_(8)
            weight.copy_(weight.bfloat16())
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    into = tmp_path_factory.mktemp("hybrid")
    store_target(network(), described(SIZES), into)
    return into


def ids(rows: int, columns: int) -> Tensor:
    return torch.randint(3, 64, (rows, columns), generator=torch.Generator().manual_seed(5))


def one_by_one(rows: Rows) -> Tensor:
    memory = rows.value.new_zeros(*rows.value.shape[:2], rows.key.shape[-1], rows.value.shape[-1])
    found = []
    for row in range(rows.key.shape[2]):
        key, query = rows.key[:, :, row, :, None], rows.query[:, :, row, :, None]
        memory = memory * rows.log_decay[:, :, row, None, None].exp()
        delta = (rows.value[:, :, row] - (memory * key).sum(-2)) * rows.beta[:, :, row, None]
        memory = memory + key * delta[..., None, :]
        found.append((memory * query).sum(-2))
    return torch.stack(found, 2)


@pytest.mark.parametrize("count", [1, 64, 70])
def test_chunks_are_the_recurrence_and_so_are_their_gradients(count: int) -> None:
    made = torch.Generator().manual_seed(count)

    def noise(*shape: int) -> Tensor:
        return torch.randn(2, 3, count, *shape, generator=made, dtype=torch.float64)

    alike = noise(8) * 0.3 + 1  # keys that overlap, as those of repeated text do
    given = [noise(8), alike / alike.norm(dim=-1, keepdim=True), noise(5), noise().sigmoid(), -noise().exp()]
    gradients = []
    outputs = []
    for form in (lambda rows: delta_rule(rows)[0], one_by_one):
        leaves = [part.clone().requires_grad_() for part in given]
        output = form(Rows(*leaves))
        outputs.append(output)
        gradients.append(torch.autograd.grad((output * torch.arange(5.0)).sum(), leaves))
    assert torch.allclose(outputs[0], outputs[1], rtol=0, atol=1e-11)
    for mine, theirs in zip(*gradients, strict=True):
        assert torch.allclose(mine, theirs, rtol=0, atol=1e-9)


def test_the_inverse_keeps_its_digits_where_repeated_squaring_would_not() -> None:
    strict = torch.ones(64, 64).tril(-1)
    assert torch.equal(unit_inverse(strict) @ (strict + torch.eye(64)), torch.eye(64))


def test_a_stored_network_is_the_target_of_transformers_and_of_the_engine(folder: Path) -> None:
    from transformers import AutoModelForCausalLM  # noqa: PLC0415

    token_ids = ids(1, 90)
    stored = load_network(folder, torch.float32, CPU)
    mine = stored.logits(stored(token_ids).hidden)[0]
    stock = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        assert torch.allclose(mine, stock(token_ids).logits[0], rtol=0, atol=1e-4)
    target = load_hybrid(folder, torch.float32, CPU)
    rows = EngineRows(token_ids[0].tolist(), range(90), [Segment(slot=0, start=0, rows=90)])
    seen = target.forward(rows, target.new_cache(1, 128))
    assert torch.allclose(mine, target.logits(seen.hidden), rtol=0, atol=1e-4)


def test_padding_in_front_and_a_past_change_nothing(folder: Path) -> None:
    stored = load_network(folder, torch.float32, CPU)
    token_ids = ids(2, 80)
    padded = token_ids.clone()
    padded[1, 20:], padded[1, :20] = token_ids[1, :60], 0
    past = Past(stored.config, torch.tensor([0, 20]), 80, torch.float32)
    parts = [stored(padded[:, :70], past=past).hidden]
    parts += [stored(padded[:, at : at + 1], past=past).hidden for at in range(70, 80)]
    whole, pieces = stored(token_ids).hidden, torch.cat(parts, 1)
    assert torch.allclose(pieces[0], whole[0], rtol=0, atol=1e-4)
    assert torch.allclose(pieces[1, 20:], whole[1, :60], rtol=0, atol=1e-4)


def test_greedy_texts_are_those_of_prompts_alone(folder: Path) -> None:
    stored = load_network(folder, torch.float32, CPU)
    prompts = [tuple(ids(1, size)[0].tolist()) for size in (3, 9, 5)]
    together = write_greedily(stored, prompts, 40, 8)
    alone = [write_greedily(stored, [prompt], 40, 1)[0] for prompt in prompts]
    assert together == alone
    row = torch.tensor([[*prompts[1], *together[1][:7]]])
    assert int(stored.logits(stored(row).hidden[:, -1]).argmax()) == together[1][7]


def texts() -> Corpus:
    row = [*range(3, 60)] * 3
    return gather(
        [Example(tuple(row[at : at + 9]), tuple(row[at + 9 : at + 60]), "a", 0.0) for at in range(50)]
    )


def test_a_network_learns_a_text_that_repeats_itself() -> None:
    spec = Pretraining(steps=18, sequences=2, positions=48, points=3)
    points = [point for point, _ in pretrain(network(), texts(), spec, 1)]
    assert [point.step for point in points] == [6, 12, 18]
    assert points[-1].loss < points[0].loss - 0.5


def test_a_run_keeps_to_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretraining, "TRIAL", 2)
    ticks = iter((0.0, 0.0, 2.0, 2.0))  # each of the two trial steps takes a second

    def now() -> float:
        return next(ticks)

    spec = Pretraining(steps=5000, sequences=1, positions=16)
    last = list(pretrain(network(), texts(), spec, 1, seconds=8, clock=now))[-1]
    assert last[0].step == last[1] == 2 + 5  # 0.97 x 8 s less the two that are gone


def test_any_text_survives_the_vocabulary(tmp_path: Path) -> None:
    made = vocabulary.learn(["count the words 12", "count words"] * 3, 300)
    vocabulary.store(made, tmp_path)
    back = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    odd = "Größe \t 数 \U0001f600\r\n  x=12"
    assert back.decode(back.encode(odd).ids) == odd
    assert [back.token_to_id(token) for token in vocabulary.SPECIAL] == [0, 1, 2]


def test_answers_keep_their_ends_in_the_new_ids() -> None:
    old = vocabulary.learn(["hello there, how are you"], 290)
    new = vocabulary.learn(["hello hello you you"], 280)
    opening = f"{vocabulary.BEGIN}system\nx{vocabulary.END}\n{vocabulary.BEGIN}user\nhow{vocabulary.END}\n"
    asked = tuple(old.encode(f"{opening}{vocabulary.BEGIN}assistant\n").ids)
    answer = tuple(old.encode("hello you").ids)
    given = gather([Example(asked, (*answer, 2), "a", 0.0), Example(asked, answer, "a", 0.0)])
    found = vocabulary.encoded(given, old, new, range(2))
    said = [new.decode(found.only([row]).token_ids.tolist(), skip_special_tokens=False) for row in range(2)]
    chat = f"{vocabulary.BEGIN}user\nhow{vocabulary.END}\n{vocabulary.BEGIN}assistant\nhello you"
    assert said == [f"{chat}{vocabulary.END}", chat]


def test_a_plan_names_what_is_wrong(tmp_path: Path) -> None:
    text = SHIPPED_PLAN.read_text(encoding="utf-8")
    (tmp_path / "plan.toml").write_text(text.replace("steps = 8000", "steps = 0"), encoding="utf-8")
    with pytest.raises(TargetError, match="`steps` must be above 0, got 0"):
        load_hybrid_plan(tmp_path / "plan.toml")


def test_the_shipped_plan_stays_below_its_size() -> None:
    import msgspec  # noqa: PLC0415

    plan = load_hybrid_plan(SHIPPED_PLAN)
    config = parse_hybrid_config(described(msgspec.structs.asdict(plan.sizes)), "plan")
    weights = sum(weight.numel() for weight in HybridNetwork(config, 1).parameters())
    assert 2 * weights < 4.7e6


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_recorded_steps_are_the_steps_launched_one_by_one() -> None:
    spec = Pretraining(steps=6, sequences=4, positions=128, points=6)
    losses = []
    for recorded in (True, False):
        made = network().to("cuda")
        losses.append([point.loss for point, _ in pretrain(made, texts(), spec, 1, recorded=recorded)])
    assert losses[0] == pytest.approx(losses[1], rel=2e-2)
