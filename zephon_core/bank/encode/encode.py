"""Encode a bank's texts with a frozen model into one matrix, block by block, resumably.

What is done is what the ledger says. An encode that was stopped anywhere goes on with the missing blocks, which come out as
they would have: the finished matrix has the same bytes. Any number of processes may encode parts of one plan at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from zephon_core.bank.encode.features import finish_features
from zephon_core.bank.encode.outcome import EncodeOutcome, encode_outcome, read_standing
from zephon_core.bank.encode.plan import check_longest
from zephon_core.bank.encode.product import FeatureProduct
from zephon_core.bank.encode.run import choose_device, make_plan, share_of
from zephon_core.bank.encode.unit import normalizes
from zephon_core.bank.specs import EncodeSpec, RunOptions
from zephon_core.blocks import BlockState, BlockWork, TokenRows
from zephon_core.budget import PLAN_VERSION, BlockPlan
from zephon_core.errors import CorruptArtifactError, InputError
from zephon_core.fingerprint import file_sha256
from zephon_core.models import EncoderOptions, load_encoder, model_content_sha256, read_model_folder
from zephon_core.models.plugins import is_plugin
from zephon_core.progress import NULL_PROGRESS, Progress

__all__ = ["ENCODE_VERSION", "EncodeOutcome", "encode_identity", "encode_tokens", "read_outcome", "row_encoder", "valid_rows"]

ENCODE_VERSION = 1
_UNSETTLED = {"forward": "", "hidden_size": 0}
_PLAN_SETTINGS = ("grouping", "max_batch", "token_budget")

RowEncoder = Callable[[Sequence[npt.NDArray[np.int64]]], npt.NDArray[np.float32]]


def encode_tokens(
    tokens: Path,
    spec: EncodeSpec,
    directory: Path,
    *,
    run: RunOptions | None = None,
    progress: Progress = NULL_PROGRESS,
    identity: Mapping[str, str] | None = None,
    hash_file: Callable[[Path], str] = file_sha256,
) -> EncodeOutcome:
    """Encode the texts whose token ids lie in `tokens`, as far as `run` asks for and as they aren't encoded in `directory` yet.

    identity: SHA-256 of what goes in, under "tokens" and "model"; what is missing is worked out by reading the files.
    hash_file: returns a file's SHA-256; the model's are looked at again once it is loaded, and at the end.
    Raises InputError (no texts), ModelError, SpecError, MismatchError (the directory holds an encode of something else, with
    another model or in another manner), LeaseHeldError (another process encodes this part), WorkerError, ArtifactError (disk full).
    """
    store = TokenRows(tokens)
    if not len(store):
        raise InputError(str(tokens), "holds no texts", wanted="at least one", remedy="Check the sources and the field paths.")
    plan = make_plan(store.lengths, spec)
    if not is_plugin(spec.model.path):
        check_longest(read_model_folder(spec.model.path), int(plan.lengths.max()))
    run = run or RunOptions()
    state = BlockState.open(directory, encode_identity(tokens, spec, plan, identity or {}), len(plan), _UNSETTLED)
    product = FeatureProduct(store, spec, run, state.document["identity"]["model"], hash_file)
    work = BlockWork(plan, store.lengths, state, product, share_of(run), progress)
    work.run()
    return encode_outcome(work.standing(allow_poison=spec.allow_poison), **work.tally.to_json())


def encode_identity(tokens: Path, spec: EncodeSpec, plan: BlockPlan, known: Mapping[str, str]) -> dict[str, Any]:
    """Return everything that decides the features, by name; what `known` lacks of "tokens" and "model" is hashed."""
    decides = spec.model_dump(mode="json", exclude={"allow_poison": True, "model": {"path"}})
    model = decides.pop("model")
    return {
        "version": [ENCODE_VERSION, PLAN_VERSION],
        "text_count": plan.row_count,
        "plan": plan.digest(),
        "tokens": known.get("tokens") or file_sha256(tokens / "token_ids.npy"),
        "model": known.get("model") or model_content_sha256(spec.model),
        **decides,
        **model,
    }


def read_outcome(directory: Path) -> EncodeOutcome:
    """Read how much is encoded in `directory`, finished or not, from its ledgers alone. Raises CorruptArtifactError."""
    outcome = read_standing(directory, allow_poison=False)
    if outcome is None:
        raise _no_encode(directory)
    return outcome


def valid_rows(directory: Path, tokens: Path) -> npt.NDArray[np.bool_]:
    """Tell which rows of the matrix in `directory` hold features, bool [rows]: those encoded and not poison.

    tokens: the folder of token ids that was encoded; only its lengths are read, and only while blocks are missing.
    Raises CorruptArtifactError.
    """
    state = _state(directory)
    valid = np.ones(state.row_count, np.bool_)
    if not state.finished:
        settings = {name: state.document["identity"][name] for name in _PLAN_SETTINGS}
        plan = make_plan(TokenRows(tokens).lengths, EncodeSpec.model_validate({"model": "-", **settings}))
        valid[plan.order] = np.repeat(state.table()["rows"] > 0, plan.row_counts)
    valid[state.poison()["row"]] = False
    return valid


def row_encoder(spec: EncodeSpec, run: RunOptions | None = None) -> RowEncoder:
    """Load a bank's encoder into this process; return a function from texts' ids to features, float32 [texts, hidden_size].

    The function takes one int64 array of ids a text and returns what a bank stores, before the cast.
    """
    encoder = load_encoder(spec.model, EncoderOptions(spec.pooling.value, choose_device(run or RunOptions(), spec)))

    def encode(texts: Sequence[npt.NDArray[np.int64]]) -> npt.NDArray[np.float32]:
        with encoder.frozen():
            vectors = [encoder.encode([np.asarray(ids, np.int64)[None, :]]) for ids in texts]
        features = np.concatenate([np.zeros((0, encoder.hidden_size), np.float32), *vectors])
        return finish_features(features, normalize=normalizes(spec), dtype=np.dtype(np.float32)).stored.astype(np.float32)

    return encode


def _state(directory: Path) -> BlockState:
    state = BlockState.read(directory)
    if state is None:
        raise _no_encode(directory)
    return state


def _no_encode(directory: Path) -> CorruptArtifactError:
    return CorruptArtifactError(str(directory), "holds no encode", remedy="Encode first.")
