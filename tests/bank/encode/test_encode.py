"""Encoding: what comes out, what is refused, and what is never done twice. Killing it is tested in tests/faults."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from zephon_core.bank.encode import EncodeOutcome, encode_tokens, read_outcome, row_encoder, valid_rows
from zephon_core.bank.encode.run import make_plan
from zephon_core.bank.specs import EncodeSpec, Grouping, RunOptions
from zephon_core.errors import InputError, LeaseHeldError, MismatchError, ModelError, SpecError, WorkerError
from zephon_core.ledger import BLOCK_RECORD
from zephon_core.progress import NULL_PROGRESS

PLUGIN = '''
import os
from pathlib import Path
from types import SimpleNamespace
import numpy as np

LOG = Path(__file__).with_name("encoded.log")

class Encoder:
    """Features from sums of ids: cheap, and different for every text."""
    hidden_size = 8
    content_sha256 = "one"
    def encode(self, ids):
        with LOG.open("a") as log:
            log.write(f"{os.getpid()} {ids.shape[0]} {ids.shape[1]}\\n")
        angles = ids.sum(1)[:, None] * np.arange(1, 9) * 0.37 + ids.shape[1]
        return np.cos(angles).astype(np.float32)

class Changed(Encoder):
    content_sha256 = "two"

class Wider(Encoder):
    hidden_size = 9

class Spoilt(Encoder):
    def encode(self, ids):
        features = super().encode(ids)
        features[ids[:, 0] == 7, 3] = np.nan
        features[ids[:, 0] == 8, 0] = np.inf
        return features

class Huge(Encoder):
    def encode(self, ids):
        features = super().encode(ids)
        features[ids[:, 0] == 7] *= 1e6
        return features

class Small(Encoder):
    """Runs out of memory on more than three rows at once."""
    def encode(self, ids):
        if len(ids) > 3:
            raise MemoryError
        return super().encode(ids)

class Tiny(Encoder):
    def encode(self, ids):
        raise MemoryError

class Lying(Encoder):
    def encode(self, ids):
        return super().encode(ids).astype(np.float64)

SHARED = SimpleNamespace(read_enabled=True, update_enabled=True, seen=[])

class WithMemory(Encoder):
    runtime = SHARED
    def encode(self, ids):
        SHARED.seen.append((SHARED.read_enabled, SHARED.update_enabled))
        if ids.shape[1] == 1:
            raise RuntimeError("a fault in the model")
        return super().encode(ids)
'''


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of the module with the encoders above."""
    name = f"encoders_{hashlib.sha256(str(tmp_path).encode()).hexdigest()[:12]}"
    (tmp_path / f"{name}.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


@pytest.fixture
def encoded(tmp_path: Path) -> Callable[[], list[tuple[int, int, int]]]:
    """A function that returns and forgets which (process, rows, tokens) the encoders above have encoded since the last call."""

    def take() -> list[tuple[int, int, int]]:
        log = tmp_path / "encoded.log"
        if not log.exists():
            return []
        lines = log.read_text().splitlines()
        log.unlink()
        return [(int(pid), int(rows), int(length)) for pid, rows, length in map(str.split, lines)]

    return take


def write_tokens(directory: Path, texts: list[list[int]]) -> Path:
    directory.mkdir()
    lengths = np.array([len(ids) for ids in texts], np.int32)
    np.save(directory / "token_ids.npy", np.array([token for ids in texts for token in ids], np.uint16))
    np.save(directory / "token_offsets.npy", np.concatenate([[0], np.cumsum(lengths)]).astype(np.uint64))
    np.save(directory / "lengths.npy", lengths)
    return directory


def some_texts(count: int, longest: int = 30, seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(10, 1000, rng.integers(1, longest + 1)).tolist() for _ in range(count)]


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    return write_tokens(tmp_path / "tokens", some_texts(400))


def spec_for(model: str, **settings: Any) -> EncodeSpec:
    return EncodeSpec.model_validate({"max_batch": 8, "token_budget": 64, "model": model, **settings})


class Encode:
    """Encodes into folders of its own."""

    def __init__(self, tokens: Path, root: Path, spec: EncodeSpec) -> None:
        self.tokens, self.root, self.spec = tokens, root, spec

    def __call__(self, name: str, **run: Any) -> EncodeOutcome:
        folder = self.root / name
        folder.mkdir(exist_ok=True)
        return encode_tokens(self.tokens, self.spec, folder, run=RunOptions(**run))

    def matrix(self, name: str) -> bytes:
        return (self.root / name / "features.f16.npy").read_bytes()

    def tree(self, name: str) -> dict[str, tuple[bytes, int]]:
        return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in sorted((self.root / name).iterdir())}


@pytest.fixture
def encode(tokens: Path, tmp_path: Path, plugin: str) -> Encode:
    return Encode(tokens, tmp_path, spec_for(f"{plugin}:Encoder"))


def test_rows_hold_their_texts_features_in_the_order_of_the_texts(encode: Encode) -> None:
    outcome = encode("a")
    assert (outcome.text_count, outcome.encoded_rows, outcome.hidden_size, outcome.complete) == (400, 400, 8, True)
    features = np.load(encode.root / "a" / "features.f16.npy", mmap_mode="r")
    assert features.dtype == np.float16
    for row, ids in enumerate(some_texts(400)):
        raw = np.cos(np.float64(sum(ids)) * np.arange(1, 9) * 0.37 + len(ids))
        assert np.abs(features[row] - raw / np.linalg.norm(raw)).max() < 1e-3
    json.dumps(asdict(outcome), allow_nan=False)


def test_blocks_hold_equal_lengths_within_the_bounds_the_longest_first(encode: Encode, encoded: Any) -> None:
    outcome = encode("a")
    shapes = [(rows, length) for _, rows, length in encoded()][: outcome.blocks]
    assert all(rows <= max(1, min(8, 64 // length)) for rows, length in shapes)
    assert [length for _, length in shapes] == sorted((length for _, length in shapes), reverse=True)
    assert sum(rows for rows, _ in shapes) == 400


def test_normalisation_can_be_switched_off_and_float32_can_be_stored(encode: Encode) -> None:
    encode.spec = encode.spec.model_validate({**encode.spec.model_dump(), "normalize": False, "store_dtype": "float32"})
    encode("a")
    features = np.load(encode.root / "a" / "features.f32.npy")
    ids = some_texts(400)[5]
    assert features.dtype == np.float32
    assert np.allclose(features[5], np.cos(sum(ids) * np.arange(1, 9) * 0.37 + len(ids)), atol=1e-6)


def cut_marks(ledger: Path) -> None:
    """Make all records of a ledger provisional: cut the marks off, as a power cut before a flush would have."""
    content = ledger.read_bytes()
    step = BLOCK_RECORD.itemsize
    records = [content[place : place + step] for place in range(64, len(content), step)]
    ledger.write_bytes(content[:64] + b"".join(record for record in records if record[:8] != b"\xff" * 8))


class Meanwhile:
    """A progress sink that lets something happen once, before the first block is encoded or after the last one is flushed."""

    def __init__(self, before: Callable[[], None] | None = None, after: Callable[[], None] | None = None) -> None:
        self.before, self.after = before, after

    @contextmanager
    def phase(self, label: str, *, total: float | None, unit: str) -> Iterator[Any]:
        before, self.before = self.before, None
        after, self.after = self.after, None
        if before:
            before()
        with NULL_PROGRESS.phase(label, total=total, unit=unit) as phase:
            yield phase
        if after:
            after()

    def note(self, message: str) -> None:
        pass


class TestFinished:
    def test_what_is_left_does_not_depend_on_workers_or_time(self, encode: Encode) -> None:
        encode("a")
        encode("b", workers=3)
        one, other = encode.tree("a"), encode.tree("b")
        assert {name: content for name, (content, _) in one.items()} == {name: content for name, (content, _) in other.items()}
        assert sorted(one) == ["blocks.json", "blocks.npy", "features.f16.npy"]

    @pytest.mark.parametrize("run", [{}, {"rows": "3:9"}, {"limit_texts": 5}, {"parts": 4, "part": 2}, {"workers": 2}])
    def test_going_on_with_it_changes_no_byte_and_no_time(self, encode: Encode, encoded: Any, run: dict[str, Any]) -> None:
        first = encode("a")
        encoded()
        before = encode.tree("a")
        again = encode("a", **run)
        assert encode.tree("a") == before
        assert encoded() == []
        assert (again.complete, again.rows_now) == (True, 0)
        assert (again.largest, again.receipt, again.encoded_rows) == (first.largest, first.receipt, 400)
        assert read_outcome(encode.root / "a").complete

    def test_the_block_table_can_be_read_without_this_library(self, encode: Encode) -> None:
        outcome = encode("a")
        table = np.load(encode.root / "a" / "blocks.npy")
        assert len(table) == outcome.blocks
        assert table["rows"].sum() == 400
        assert (table["length"] == sorted(table["length"], reverse=True)).all()
        assert table["largest"].max() == np.float32(outcome.largest)
        assert valid_rows(encode.root / "a", encode.tokens).all()


class TestSome:
    """Only what is asked for is encoded, in the blocks in which it always is."""

    def asked(self, encode: Encode, **run: Any) -> tuple[set[int], set[int]]:
        """Encode a part; return the rows that must be there and those that are."""
        plan = make_plan(np.load(encode.tokens / "lengths.npy"), encode.spec)
        if "rows" in run:
            start, end = map(int, run["rows"].split(":"))
            needed = set(plan.order[start:end].tolist())
        else:
            needed = set(range(run["limit_texts"]))
        blocks = [set(plan.rows(block).tolist()) for block in range(len(plan))]
        wanted = set().union(*(rows for rows in blocks if rows & needed))
        outcome = encode("part", **run)
        there = set(np.flatnonzero(valid_rows(encode.root / "part", encode.tokens)).tolist())
        assert outcome.encoded_rows == len(there) == outcome.rows_now
        assert not outcome.complete
        return wanted, there

    @pytest.mark.parametrize(
        "run", [{"rows": "0:1"}, {"rows": "130:171"}, {"rows": "399:400"}, {"limit_texts": 1}, {"limit_texts": 20}]
    )
    def test_exactly_the_blocks_asked_for_are_encoded(self, encode: Encode, run: dict[str, Any]) -> None:
        wanted, there = self.asked(encode, **run)
        assert there == wanted

    def test_a_range_that_closes_the_last_gap_makes_it_complete(self, encode: Encode) -> None:
        encode("whole")
        assert not encode("a", rows="0:200").complete
        assert not encode("a", rows="300:400").complete
        outcome = encode("a", rows="200:300")
        assert outcome.complete
        assert encode.matrix("a") == encode.matrix("whole")
        assert encode.tree("a").keys() == encode.tree("whole").keys()

    def test_a_cap_at_or_above_the_number_of_texts_is_no_cap(self, encode: Encode) -> None:
        assert encode("b", limit_texts=400).complete
        assert encode("c", limit_texts=9999).complete

    @pytest.mark.parametrize("rows", ["0:401", "7:7", "9:3", "400:401"])
    def test_a_range_outside_of_the_texts_is_refused(self, encode: Encode, rows: str) -> None:
        with pytest.raises(SpecError, match="rows"):
            encode("a", rows=rows)

    def test_parts_are_disjoint_and_any_order_and_repetition_makes_the_whole(self, encode: Encode, encoded: Any) -> None:
        encode("whole")
        shapes = sorted((rows, length) for _, rows, length in encoded())
        counts = [encode("a", parts=4, part=part).rows_now for part in (2, 0, 2, 3)]
        assert counts[2] == 0
        assert not read_outcome(encode.root / "a").complete
        assert encode("a", parts=4, part=1).complete
        assert encode.matrix("a") == encode.matrix("whole")
        assert sorted((rows, length) for _, rows, length in encoded()) == shapes
        assert encode("b", parts=3, part=1).rows_now + encode("b", parts=1).rows_now == 400
        assert encode.matrix("b") == encode.matrix("whole")

    def test_all_parts_at_once_is_the_whole(self, encode: Encode) -> None:
        assert encode("a", parts=4).complete

    def test_nothing_is_encoded_twice(self, encode: Encode, encoded: Any) -> None:
        first = encode("a", rows="100:250")
        assert len(encoded()) == first.blocks_done
        second = encode("a", rows="50:300")
        assert len(encoded()) == second.blocks_done - first.blocks_done
        assert second.rows_now == second.encoded_rows - first.encoded_rows


class TestRefused:
    """A directory of other work is never continued and never wiped."""

    @pytest.fixture
    def begun(self, encode: Encode) -> Encode:
        encode("a", rows="0:100")
        return encode

    def check(self, encode: Encode, named: str) -> None:
        before = encode.tree("a")
        with pytest.raises(MismatchError, match=rf"was begun with {named} .*, and now it is "):
            encode("a")
        assert encode.tree("a") == before

    def test_other_weights_under_the_same_path(self, begun: Encode, tmp_path: Path, plugin: str) -> None:
        begun.spec = begun.spec.model_validate({**begun.spec.model_dump(), "model": f"{plugin}:Changed"})
        self.check(begun, "model")

    @pytest.mark.parametrize(
        ("name", "value"),
        [("max_batch", 7), ("token_budget", 65), ("normalize", False), ("store_dtype", "float32")],
    )
    def test_another_plan_or_method(self, begun: Encode, name: str, value: Any) -> None:
        begun.spec = begun.spec.model_validate({**begun.spec.model_dump(), name: value})
        self.check(begun, "plan" if name == "token_budget" else name)

    def test_other_ids_of_the_same_lengths(self, begun: Encode) -> None:
        ids = np.load(begun.tokens / "token_ids.npy")
        np.save(begun.tokens / "token_ids.npy", ids[::-1])
        self.check(begun, "tokens")

    def test_reordered_texts(self, begun: Encode, tmp_path: Path) -> None:
        begun.tokens = write_tokens(tmp_path / "reordered", some_texts(400)[::-1])
        self.check(begun, "plan")

    def test_more_texts(self, begun: Encode, tmp_path: Path) -> None:
        begun.tokens = write_tokens(tmp_path / "more", [*some_texts(400), [5]])
        self.check(begun, "plan")

    def test_another_width(self, begun: Encode, plugin: str, monkeypatch: pytest.MonkeyPatch) -> None:
        import importlib

        monkeypatch.setattr(importlib.import_module(plugin).Encoder, "hidden_size", 9)
        self.check(begun, "hidden_size")

    def test_known_identities_are_taken_instead_of_the_files(self, encode: Encode) -> None:
        (encode.root / "a").mkdir()
        for tokens, model in (("t", "m"), ("t", "m")):
            encode_tokens(encode.tokens, encode.spec, encode.root / "a", identity={"tokens": tokens, "model": model})
        with pytest.raises(MismatchError, match="tokens 't', and now it is 'u'"):
            encode_tokens(encode.tokens, encode.spec, encode.root / "a", identity={"tokens": "u", "model": "m"})

    def test_allowing_poison_is_no_other_work(self, begun: Encode) -> None:
        begun.spec = begun.spec.model_validate({**begun.spec.model_dump(), "allow_poison": True})
        assert begun("a").complete

    def test_a_state_of_a_later_version(self, begun: Encode) -> None:
        path = begun.root / "a" / "blocks.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "format": 2}))
        with pytest.raises(MismatchError, match="has format 2, expected 1"):
            begun("a")

    def test_no_texts(self, tmp_path: Path, plugin: str) -> None:
        with pytest.raises(InputError, match="holds no texts"):
            encode_tokens(write_tokens(tmp_path / "none", []), spec_for(f"{plugin}:Encoder"), tmp_path)

    @pytest.mark.parametrize("grouping", ["packed", "padded"])
    def test_a_grouping_that_the_encoder_cannot_do(self, encode: Encode, grouping: str) -> None:
        with pytest.raises(ValidationError, match=f"is {grouping}, which .*:Encoder can't do"):
            encode.spec.model_validate({**encode.spec.model_dump(), "grouping": grouping})
        encode.spec = encode.spec.model_copy(update={"grouping": Grouping(grouping)})  # past the checks of the spec
        with pytest.raises(SpecError, match="grouping"):
            encode("a")


class TestPoison:
    @pytest.fixture
    def spoilt(self, tmp_path: Path, plugin: str) -> Encode:
        texts = some_texts(60)
        texts[11][0], texts[23][0], texts[24][0] = 7, 8, 7
        return Encode(write_tokens(tmp_path / "tokens", texts), tmp_path, spec_for(f"{plugin}:Spoilt"))

    def test_it_is_counted_by_reason_masked_and_never_usable(self, spoilt: Encode) -> None:
        outcome = spoilt("a")
        assert outcome.encoded_rows == 60
        assert outcome.poison == {"not a number": 2, "infinite": 1}
        assert (outcome.poison_rows, outcome.complete) == (3, False)
        table = np.load(spoilt.root / "a" / "blocks.poison.npy")
        assert table["row"].tolist() == [11, 23, 24]
        valid = valid_rows(spoilt.root / "a", spoilt.tokens)
        assert np.flatnonzero(~valid).tolist() == [11, 23, 24]
        features = np.load(spoilt.root / "a" / "features.f16.npy")
        assert np.isnan(features[~valid]).all()
        assert np.isfinite(features[valid]).all()

    def test_allowing_it_makes_the_same_folder_complete_without_work(self, spoilt: Encode) -> None:
        spoilt("a")
        before = spoilt.tree("a")
        spoilt.spec = spoilt.spec.model_validate({**spoilt.spec.model_dump(), "allow_poison": True})
        outcome = spoilt("a")
        assert (outcome.complete, outcome.poison_rows, outcome.rows_now) == (True, 3, 0)
        assert spoilt.tree("a") == before

    def test_what_overflows_float16_is_poison_unless_it_is_normalised(self, spoilt: Encode, plugin: str) -> None:
        for normalize, count in ((False, 2), (True, 0)):
            spoilt.spec = spec_for(f"{plugin}:Huge", normalize=normalize)
            outcome = spoilt(f"normalize-{normalize}")
            assert outcome.poison_rows == count
            assert outcome.poison == ({"beyond the stored type's range": 2} if count else {})

    def test_a_bank_of_nothing_but_poison_still_ends(self, tmp_path: Path, plugin: str) -> None:
        only = Encode(write_tokens(tmp_path / "tokens", [[7], [8, 1]]), tmp_path, spec_for(f"{plugin}:Spoilt"))
        assert only("a").poison_rows == 2


class TestMemoryRunsOut:
    def test_a_block_is_halved_until_it_fits_and_that_is_on_record(self, encode: Encode, plugin: str, encoded: Any) -> None:
        encode("whole")
        encoded()
        encode.spec = spec_for(f"{plugin}:Small")
        outcome = encode("a")
        assert encode.matrix("a") == encode.matrix("whole")
        shapes = [rows for _, rows, _ in encoded()]
        assert max(shapes) <= 3
        table = np.load(encode.root / "a" / "blocks.npy")
        assert outcome.halvings == table["halvings"].sum() > 0
        assert ((table["halvings"] > 0) == (table["rows"] > 3)).all()
        assert set(table["halvings"][table["rows"] == 8]) == {3}

    def test_a_single_text_that_does_not_fit_is_named(self, encode: Encode, plugin: str) -> None:
        encode.spec = spec_for(f"{plugin}:Tiny")
        with pytest.raises(ModelError, match=r"out of memory on a single text of 30 tokens \(row \d+\)"):
            encode("a")


class TestModelsFaults:
    def test_a_plugin_that_breaks_its_contract_is_named(self, encode: Encode, plugin: str) -> None:
        encode.spec = spec_for(f"{plugin}:Lying")
        with pytest.raises(ModelError, match="returned float64"):
            encode("a")
        with pytest.raises(ModelError, match="returned float64"):
            encode("a", workers=2)

    def test_a_memory_is_off_during_the_encode_and_back_on_when_it_fails(self, encode: Encode, plugin: str) -> None:
        import importlib

        runtime = importlib.import_module(plugin).SHARED
        encode.spec = spec_for(f"{plugin}:WithMemory")
        with pytest.raises(RuntimeError, match="a fault in the model"):
            encode("a")
        assert runtime.seen
        assert set(runtime.seen) == {(False, False)}
        assert (runtime.read_enabled, runtime.update_enabled) == (True, True)
        assert 0 < read_outcome(encode.root / "a").encoded_rows < 400
        with pytest.raises(WorkerError, match="RuntimeError: a fault in the model"):
            encode("b", workers=2)


class TestDamage:
    """What the disk lost is found when the work goes on, and encoded again; nothing else is."""

    @pytest.fixture
    def begun(self, encode: Encode) -> Encode:
        encode("whole")
        encode("a", rows="0:300")
        return encode

    def test_rows_that_changed(self, begun: Encode, encoded: Any) -> None:
        path = begun.root / "a" / "features.f16.npy"
        there = np.flatnonzero(valid_rows(begun.root / "a", begun.tokens))
        matrix = np.load(path, mmap_mode="r+")
        matrix[there[[3, 50]]] = 0
        matrix.flush()
        encoded()
        outcome = begun("a", rows="0:300")
        assert outcome.damaged_blocks == len(encoded()) in (1, 2)
        assert begun("a").complete
        assert begun.matrix("a") == begun.matrix("whole")

    def test_a_matrix_that_is_gone(self, begun: Encode) -> None:
        before = read_outcome(begun.root / "a").blocks_done
        (begun.root / "a" / "features.f16.npy").unlink()
        outcome = begun("a", rows="0:1")
        assert (outcome.damaged_blocks, outcome.blocks_done) == (before, 1)
        assert begun("a").complete
        assert begun.matrix("a") == begun.matrix("whole")

    def test_a_ledger_that_is_gone(self, begun: Encode) -> None:
        (begun.root / "a" / "blocks.all.ledger").unlink()
        assert begun("a").rows_now == 400
        assert begun.matrix("a") == begun.matrix("whole")

    def test_a_large_matrix_is_sampled_and_read_whole_once_something_is_found(
        self, begun: Encode, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("zephon_core.blocks.state._READ_ALL_BYTES", 100)
        monkeypatch.setattr("zephon_core.blocks.state._LATEST_BLOCKS", 2)
        matrix = np.load(begun.root / "a" / "features.f16.npy", mmap_mode="r+")
        plan = make_plan(np.load(begun.tokens / "lengths.npy"), begun.spec)
        matrix[plan.rows(3)] = 0
        matrix.flush()
        assert begun("a", rows="0:300").damaged_blocks == 0
        matrix[plan.rows(0)] = 0
        matrix.flush()
        assert begun("a", rows="0:300").damaged_blocks == 2

    def test_blocks_that_were_never_flushed_count_only_once_they_are_found_intact(
        self, begun: Encode, encoded: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name, value in (("_READ_ALL_BYTES", 100), ("_LATEST_BLOCKS", 1), ("_SAMPLE_ONE_IN", 1000)):
            monkeypatch.setattr(f"zephon_core.blocks.state.{name}", value)
        there = read_outcome(begun.root / "a").blocks_done
        cut_marks(begun.root / "a" / "blocks.all.ledger")
        assert read_outcome(begun.root / "a").blocks_done == 0
        assert not valid_rows(begun.root / "a", begun.tokens).any()
        matrix = np.load(begun.root / "a" / "features.f16.npy", mmap_mode="r+")
        matrix[make_plan(np.load(begun.tokens / "lengths.npy"), begun.spec).rows(5)] = 0
        matrix.flush()
        encoded()
        outcome = begun("a", rows="0:300")
        assert (outcome.damaged_blocks, outcome.blocks_done, len(encoded())) == (1, there, 1)
        assert begun("a").complete
        assert begun.matrix("a") == begun.matrix("whole")

    def test_a_list_of_unusable_rows_that_was_lost_costs_their_blocks_not_their_mask(self, begun: Encode, plugin: str) -> None:
        texts = some_texts(400)
        texts[11][0], texts[23][0] = 7, 8
        spoilt = Encode(write_tokens(begun.root / "spoilt", texts), begun.root, spec_for(f"{plugin}:Spoilt"))
        spoilt("p", rows="0:390")
        plan = make_plan(np.load(spoilt.tokens / "lengths.npy"), spoilt.spec)
        there = valid_rows(spoilt.root / "p", spoilt.tokens)
        hit = [block for block in range(len(plan)) if {11, 23} & set(plan.rows(block).tolist()) and there[plan.rows(block)].any()]
        assert hit
        (spoilt.root / "p" / "blocks.all.flaws").unlink()
        outcome = spoilt("p")
        assert outcome.damaged_blocks == len(hit)
        assert outcome.poison_rows == 2
        assert np.flatnonzero(~valid_rows(spoilt.root / "p", spoilt.tokens)).tolist() == [11, 23]

    def test_writes_of_one_part_that_another_host_undid_are_found_in_the_end(self, begun: Encode) -> None:
        for part in (0, 1):
            begun("b", parts=3, part=part)
        there = np.flatnonzero(valid_rows(begun.root / "b", begun.tokens))
        path = begun.root / "b" / "features.f16.npy"

        def undo() -> None:
            matrix = np.load(path, mmap_mode="r+")
            matrix[there[7]] = 0
            matrix.flush()

        run = RunOptions(parts=3, part=2)
        outcome = encode_tokens(begun.tokens, begun.spec, begun.root / "b", run=run, progress=Meanwhile(before=undo))
        assert outcome.damaged_blocks == 1
        assert not outcome.complete or begun.matrix("b") == begun.matrix("whole")
        assert begun("b").complete
        assert begun.matrix("b") == begun.matrix("whole")


class TestPartsAtOnce:
    """What the other parts are doing at this moment is neither judged nor waited for; whoever is last finishes the whole."""

    def test_what_another_part_has_not_flushed_is_its_own_business(self, encode: Encode, encoded: Any) -> None:
        encode("whole")
        first = encode("a", parts=2, part=0)
        cut_marks(encode.root / "a" / "blocks.part-0000-of-0002.ledger")
        encoded()
        second = encode("a", parts=2, part=1)
        assert second.blocks_done == second.blocks - first.blocks_done == len(encoded())
        assert not second.complete
        again = encode("a", parts=2, part=0)
        assert (again.complete, again.rows_now) == (True, 0)
        assert encode.matrix("a") == encode.matrix("whole")

    @pytest.mark.parametrize("moved", [False, True])
    def test_of_two_that_end_together_one_finishes(self, encode: Encode, moved: bool) -> None:
        encode("whole")
        encode("a", parts=2, part=0)

        def finish_first() -> None:
            assert encode("a", parts=2, part=0).complete
            if moved:
                (encode.root / "a").rename(encode.root / "artifact")

        folder = encode.root / "a"
        run = RunOptions(parts=2, part=1)
        outcome = encode_tokens(encode.tokens, encode.spec, folder, run=run, progress=Meanwhile(after=finish_first))
        assert (outcome.complete, outcome.encoded_rows) == (True, 400)
        assert encode.matrix("artifact" if moved else "a") == encode.matrix("whole")
        assert folder.exists() != moved


def test_a_second_run_of_the_same_part_is_refused_while_the_first_is_at_work(encode: Encode) -> None:
    from zephon_core.blocks import BlockState

    encode("a", rows="0:50")
    state = BlockState.read(encode.root / "a")
    assert state is not None
    ledger, flaws = state.open_ledgers("all")
    with ledger, flaws, pytest.raises(LeaseHeldError, match="another process"):
        encode("a")
    assert encode("a").complete


def test_workers_are_started_for_a_plugin_only_if_asked_for(encode: Encode, encoded: Any) -> None:
    encode("a")
    assert {pid for pid, _, _ in encoded()} == {os.getpid()}
    encode("b", workers=2)
    pids = {pid for pid, _, _ in encoded()}
    assert os.getpid() not in pids
    assert 1 <= len(pids) <= 2


def test_row_encoder_gives_what_is_stored(encode: Encode) -> None:
    encode("a")
    texts = [np.array(ids) for ids in some_texts(400)[:9]]
    found = row_encoder(encode.spec)(texts)
    assert found.dtype == np.float32
    assert (found.astype(np.float16) == np.load(encode.root / "a" / "features.f16.npy")[:9]).all()
    assert row_encoder(encode.spec)([]).shape == (0, 8)
