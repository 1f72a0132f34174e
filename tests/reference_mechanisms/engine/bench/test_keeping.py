"""A long comparison goes on where an earlier run of the same ended."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from reference_mechanisms.engine.bench.keeping import Kept
from reference_mechanisms.engine.bench.running import Bench, Known, Load
from reference_mechanisms.engine.bench.timing import Timed
from tests.reference_mechanisms.engine.bench import small

LOAD = Load(prompt=9, output=20, requests=12, seed=1, acceptance_length=3.0, timed=1)
CPU = torch.device("cpu")


def bench(path: Path, said: list[str], load: Load = LOAD) -> Bench:
    return Bench(small.target(CPU, torch.float64), load, said.append, Kept(path, {"seed": 1}))


def test_it_goes_on_where_it_was_ended(tmp_path: Path) -> None:
    path, heard = tmp_path / "compared.jsonl", list[tuple[int, int]]()
    first = bench(path, [], Load(**{name: getattr(LOAD, name) for name in LOAD.__slots__} | {"requests": 3}))
    first.autoregressive()
    first.speculative(None, 3, "k3")
    with path.open("a") as file:
        file.write('{"engine": "k3", "requ')  # torn
    lines = path.read_text().splitlines()[1:7]
    assert len(lines) == 6
    path.write_text(path.read_text().replace('"request": 1, "same": true', '"request": 1, "same": false'))
    said: list[str] = []
    second = bench(path, said)
    decoded: list[tuple[int, bool]] = []
    decode = second._decoded

    def watched(*args: object, **options: object) -> object:
        decoded.append((int(str(args[2])), bool(options.get("capture"))))
        return decode(*args, **options)  # type: ignore[arg-type]

    second._decoded = watched  # type: ignore[assignment, method-assign]
    second.autoregressive()
    found = second.speculative(None, 3, "k3", lambda tokens, wrong: heard.append((tokens, wrong)))
    later = [(n, True) for n in range(3, 12)]
    assert decoded == [*later, (0, False), *later, (0, False)]
    assert found["exact_tokens"] == 12 * 20
    # Rows do not round alike here, so some differ; the file knows them all, request 1 too.
    wrong = path.read_text().count('"same": false')
    assert found["requests_with_other_logits"] == wrong >= 1
    assert heard[-1] == (240, wrong)
    assert any("10 of 12 requests: 200 tokens compared, " in one for one in said)


def test_another_comparison_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "compared.jsonl"
    Kept(path, {"seed": 1}).add("ar", 0, token_ids=[1], logits_sha256="a")
    assert Kept(path, {"seed": 1}).get("ar", 0) == {
        "engine": "ar",
        "request": 0,
        "token_ids": [1],
        "logits_sha256": "a",
    }
    assert Kept(path, {"seed": 2}).get("ar", 0) is None
    assert Kept(path, {"seed": 1}).get("ar", 0) is None


def test_other_logits_are_counted(tmp_path: Path) -> None:
    one = bench(tmp_path / "compared.jsonl", [])
    one.autoregressive()
    decode, made = one._decoded, list[Timed]()

    def watched(*args: object, **options: object) -> Timed:
        made.append(decode(*args, **options))  # type: ignore[arg-type]
        return made[-1]

    one._decoded = watched  # type: ignore[method-assign]
    one.speculative(None, 3)
    known = [Known(found.token_ids, found.logits_sha256) for found in made[: LOAD.requests]]
    one._known = dict(enumerate(known))
    assert one.speculative(None, 3, "again")["requests_with_other_logits"] == 0
    one._known[4] = one._known[4]._replace(logits_sha256="another")
    assert one.speculative(None, 3, "once more")["requests_with_other_logits"] == 1


def test_nothing_is_profiled_before_it_was_timed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nothing was timed"):
        bench(tmp_path / "other.jsonl", []).profiled()
