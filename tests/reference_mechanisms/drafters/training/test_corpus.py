from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from reference_mechanisms.drafters.training.corpus import Corpus, Example, gather, load, save
from reference_mechanisms.errors import DrafterError

EXAMPLES = [
    Example((1, 2), (3, 4, 5), "b", 0.0),
    Example((9,), (), "a", 0.7),
    Example((4, 4, 4), (8,), "b", 1.0),
]


def rows(corpus: Corpus) -> list[tuple[list[int], int, str, float]]:
    found = []
    for n, start in enumerate(corpus.starts()):
        ids = corpus.token_ids[start : start + corpus.lengths[n]].tolist()
        name = corpus.names[corpus.sources[n]]
        found.append((ids, int(corpus.prompt_lengths[n]), name, round(float(corpus.temperatures[n]), 3)))
    return found


@pytest.mark.parametrize("largest", [9, 70_000], ids=["two bytes an id", "four"])
def test_what_is_saved_is_read_back(largest: int, tmp_path: Path) -> None:
    corpus = gather([*EXAMPLES, Example((largest,), (1,), "c", 0.5)])
    save(corpus, tmp_path / "c.safetensors")
    assert rows(load(tmp_path / "c.safetensors")) == rows(corpus)
    assert rows(corpus)[0] == ([1, 2, 3, 4, 5], 2, "b", 0.0)
    assert corpus.written == 5


def test_some_of_a_corpus_is_a_corpus() -> None:
    corpus = gather(EXAMPLES)
    assert rows(corpus.only([2, 0])) == [rows(corpus)[2], rows(corpus)[0]]
    assert len(corpus.only([])) == 0


def test_broken_files_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    with pytest.raises(DrafterError, match="cannot read the corpus"):
        load(path)
    path.write_bytes(b"no")
    with pytest.raises(DrafterError, match="cannot read the corpus"):
        load(path)
    save(gather(EXAMPLES), path)
    arrays = load_file(path)
    save_file(arrays, path)
    with pytest.raises(DrafterError, match="no corpus of version"):
        load(path)
    arrays["lengths"] = arrays["lengths"] + np.int32(1)
    save_file(arrays, path, {"specpilot_corpus": "1", "names": '["a", "b"]'})
    with pytest.raises(DrafterError, match="do not fit together"):
        load(path)
