"""A model of a few files, an engine and its stock with known tokens: a whole run without weights."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from harness.errors import BackendError
from harness.models.folder import ModelFolder
from harness.plan import ArmSpec, Deployment
from harness.records import DecodeRequest, StepEvent

VOCAB = 258
EOS = 257
STEP_SECONDS = 0.015  # a busy machine must not hide it
MARGIN = 7.0  # of stock's best token over its second, in logits; the others have 0
HERE = "tests.sealed_evals.campaign.engine"


def write_model(folder: Path) -> Path:
    """Configuration and a tokenizer of one token a byte; no weights."""
    folder.mkdir(parents=True, exist_ok=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: n for n, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"vocab_size": VOCAB, "max_position_embeddings": 4096, "eos_token_id": EOS}
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "llama"}))
    kind = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>", "bos_token": "<s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(kind))
    return folder


def next_token(prompt: Sequence[int], emitted: int) -> int:
    """The token that follows: a function of the prompt and the place."""
    return (sum(prompt) * 31 + emitted * 7) % 200


class KnownStock:
    """Stock whose argmax is `next_token`, by a wide margin."""

    def describe(self) -> dict[str, Any]:
        return {"implementation": "known stock"}

    def logits(
        self, prompt_token_ids: Sequence[int], token_ids: Sequence[int], rows: int | None
    ) -> Iterator[npt.NDArray[np.float32]]:
        yield np.stack([self._row(prompt_token_ids, place) for place in range(len(token_ids))])

    def greedy(self, prompt_token_ids: Sequence[int]) -> Iterator[tuple[int, npt.NDArray[np.float32]]]:
        place = 0
        while True:
            yield next_token(prompt_token_ids, place), self._row(prompt_token_ids, place)
            place += 1

    def _row(self, prompt: Sequence[int], place: int) -> npt.NDArray[np.float32]:
        row = np.zeros(VOCAB, dtype=np.float32)
        row[next_token(prompt, place)] = 2.0 + MARGIN
        row[(next_token(prompt, place) + 1) % 200] = 2.0
        return row


def open_scorer(deployment: Deployment, model: ModelFolder | None = None) -> KnownStock:
    return KnownStock()


class KnownSession:
    """Emits `next_token`; a step of `width` tokens takes as long as one of a single token.

    Arm parameters: width (tokens a step), wrong (emits one token that is not stock's), fail (an
    error that quotes the prompt), tell (folder: prints the prompt and writes it there). Above
    temperature 0 it draws from stock's distribution by the request's seed, but for: cold (emits
    stock's best token), anew (draws by the seed at first, and otherwise when it is asked again).
    """

    def __init__(self, deployment: Deployment, arms: Sequence[ArmSpec]) -> None:
        self.params = {arm.name: arm.params for arm in arms}
        self.asked: Counter[tuple[str, tuple[int, ...]]] = Counter()

    def describe(self) -> dict[str, Any]:
        return {"engine": "known", "device": "cpu"}

    def prepare(self, arm: str, requests: Sequence[DecodeRequest]) -> None:
        pass

    def stream(self, arm: str, requests: Sequence[DecodeRequest]) -> Iterator[StepEvent]:
        for index, request in enumerate(requests):
            self._misbehave(arm, request)
            yield from self._one(arm, index, request)

    def close(self) -> None:
        pass

    def _one(self, arm: str, index: int, request: DecodeRequest) -> Iterator[StepEvent]:
        params = self.params[arm]
        width, total = int(params.get("width", 2)), request.sampling.max_tokens
        ids = [next_token(request.prompt_token_ids, place) for place in range(total)]
        if not request.sampling.greedy and not params.get("cold"):
            ids = self._drawn(ids, request, arm if params.get("anew") else "")
        if params.get("wrong"):
            ids[-1] = (ids[-1] + 5) % 200
        yield StepEvent(index=index, kind="prefill", token_ids=(ids[0],))
        place = 1
        while place < total:
            time.sleep(STEP_SECONDS)
            block = ids[place : place + width]
            place += len(block)
            yield StepEvent(
                index=index,
                kind="step",
                token_ids=tuple(block),
                num_draft_tokens=width - 1,
                num_accepted_tokens=len(block) - 1,
                finish_reason="length" if place >= total else None,
            )

    def _drawn(self, best: Sequence[int], request: DecodeRequest, counted: str) -> list[int]:
        """Of the two tokens that `top_k = 2` leaves, at each place the better or the next."""
        asked = self.asked[counted, request.prompt_token_ids]
        self.asked[counted, request.prompt_token_ids] += bool(counted)
        random = np.random.default_rng((request.seed, asked))
        behind = 1.0 / (1.0 + np.exp(MARGIN / request.sampling.temperature))
        return [(token + int(random.random() < behind)) % 200 for token in best]

    def _misbehave(self, arm: str, request: DecodeRequest) -> None:
        params = self.params[arm]
        text = "".join(chr(33 + token) if token < 94 else " " for token in request.prompt_token_ids)
        if params.get("fail"):
            raise BackendError(f"cannot decode {request.prompt_token_ids} = {text}")
        if "tell" in params:
            print(request.prompt_token_ids, text)
            Path(str(params["tell"])).mkdir(exist_ok=True)
            (Path(str(params["tell"])) / "stolen.txt").write_text(text)


def open_session(deployment: Deployment, arms: Sequence[ArmSpec]) -> KnownSession:
    return KnownSession(deployment, arms)
