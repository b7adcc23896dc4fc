"""From data sets to ratios: pins, what is known, what is measured, and what is done where that fails."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ratio_inputs
from ratio_inputs import make_dataset

from zephon_core.errors import FatalCountError, SpecError, TokenizerError
from zephon_core.ratios.counting import TextTokenCountingSpec
from zephon_core.ratios.datasets import Dataset
from zephon_core.ratios.documents import RatioDocuments
from zephon_core.ratios.estimation import TokenEstimation, TokenRatio
from zephon_core.ratios.measuring import Measuring, reach
from zephon_core.ratios.prime import FallbackWarning, fallback_message, prime, prime_token_ratios
from zephon_core.store import ArtifactStore

COUNT = TokenEstimation(measure=ratio_inputs.count_words)


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(tmp_path / "store")


@pytest.fixture
def dataset(tmp_path: Path, store: ArtifactStore) -> Callable[..., Dataset]:
    """Make a data set of small JSONL shards by its name."""

    def make(name: str, **size: Any) -> Dataset:
        return Dataset.from_path(name, str(make_dataset(tmp_path / "data", name, **size)), store=store)

    return make


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], set[str]]:
    """Say which data sets were counted since the last time of asking."""
    path = tmp_path / "log.txt"
    monkeypatch.setenv("COUNT_LOG", str(path))

    def read() -> set[str]:
        names = set(path.read_text().split()) if path.exists() else set()
        path.unlink(missing_ok=True)
        return names

    return read


def exact_ratio(made: Dataset) -> float:
    rows = [line for shard in made.shards for line in Path(shard.url).read_text().splitlines()]
    return sum(line.count("word") for line in rows) / sum(shard.raw_bytes for shard in made.shards)


def test_small_data_sets_are_counted_whole_and_come_in_order(dataset: Any, store: ArtifactStore) -> None:
    sets = [dataset(name) for name in ("z", "a")]
    ratios = prime_token_ratios(datasets=sets, estimation=COUNT, counting=None, store=store)
    assert list(ratios) == ["z", "a"]
    for made in sets:
        assert ratios[made.name].source == "measured" and ratios[made.name].design == "exact"
        assert ratios[made.name].tokens_per_byte == pytest.approx(exact_ratio(made))


def test_adding_a_data_set_measures_that_one_only(dataset: Any, store: ArtifactStore, log: Any) -> None:
    first, second, third = dataset("a"), dataset("b"), dataset("c")
    arguments: dict[str, Any] = {"estimation": COUNT, "counting": None, "store": store}
    two = prime_token_ratios(datasets=[first, second], **arguments)
    assert log() == {"a", "b"}
    three = prime_token_ratios(datasets=[third, second, first], **arguments)
    assert log() == {"c"}
    assert {name: three[name] for name in two} == two
    assert prime_token_ratios(datasets=[first, second, third], **arguments) == three
    assert log() == set()


def test_a_data_set_is_known_by_content_under_whatever_name_and_place(
    dataset: Any, store: ArtifactStore, tmp_path: Path, log: Any
) -> None:
    first = dataset("a")
    known = prime_token_ratios(datasets=[first], estimation=COUNT, counting=None, store=store)
    log()
    (tmp_path / "data" / "a").rename(tmp_path / "data" / "moved")
    moved = Dataset.from_path("other", str(tmp_path / "data" / "moved"), store=store)
    assert prime_token_ratios(datasets=[moved], estimation=COUNT, counting=None, store=store) == {"other": known["a"]}
    assert log() == set()


@pytest.mark.parametrize("change", [{"seed": 1}, {"estimation": TokenEstimation(measure=ratio_inputs.count_words, confidence=0.9)}])
def test_what_decides_measures_anew(dataset: Any, store: ArtifactStore, log: Any, change: Any) -> None:
    arguments: dict[str, Any] = {"datasets": [dataset("a")], "estimation": COUNT, "counting": None, "store": store}
    prime_token_ratios(**arguments)
    prime_token_ratios(**{**arguments, "workers": 1})
    log()
    prime_token_ratios(**{**arguments, **change})
    assert log() == {"a"}


def test_the_tokenizer_counts_by_content(dataset: Any, store: ArtifactStore, tmp_path: Path, word_tokenizer: Path) -> None:
    made = dataset("a")
    other = tmp_path / "copy.json"
    other.write_bytes(word_tokenizer.read_bytes())
    keys = {
        Measuring(TokenEstimation(), TextTokenCountingSpec(tokenizer, special_tokens=specials)).key(made)  # type: ignore[arg-type]
        for tokenizer in (word_tokenizer, other)
        for specials in ("bos_eos", "none")
    }
    assert len(keys) == 2
    ratios = prime_token_ratios(
        datasets=[made], estimation=TokenEstimation(), counting=TextTokenCountingSpec(other, special_tokens="none"), store=store
    )
    assert ratios["a"].tokens_per_byte == pytest.approx(exact_ratio(made))


def test_replayed_functions_are_in_the_key_and_in_the_count(dataset: Any, store: ArtifactStore, word_tokenizer: Path) -> None:
    made = dataset("a")
    arguments: dict[str, Any] = {
        "datasets": [made],
        "estimation": TokenEstimation(),
        "counting": TextTokenCountingSpec(word_tokenizer, special_tokens="none"),
        "store": store,
    }
    plain = prime_token_ratios(**arguments)
    upper = prime_token_ratios(**arguments, pre_tokenize_ops=["ratio_inputs:upper"])
    assert plain == upper != {}  # one unknown token a word: the same number, from documents of their own
    assert len(RatioDocuments(store).all()) == 2
    with pytest.raises(SpecError, match="pre_tokenize_ops"):
        prime_token_ratios(**arguments, pre_tokenize_ops=["nothing"])
    prime_token_ratios(**{**arguments, "estimation": COUNT}, pre_tokenize_ops=["nothing"])  # measure= gets the rows as they are


def test_pins_and_global_ratios_read_nothing(dataset: Any, store: ArtifactStore, log: Any) -> None:
    sets = [dataset("a"), dataset("b")]
    every = prime_token_ratios(datasets=sets, estimation=TokenEstimation(primer=0.3), counting=None, store=store)
    assert every == dict.fromkeys("ab", TokenRatio(0.3, "pinned"))
    estimation = TokenEstimation(primer={"a": 0.2}, measure=ratio_inputs.count_words)
    some = prime_token_ratios(datasets=sets, estimation=estimation, counting=None, store=store)
    assert some["a"] == TokenRatio(0.2, "pinned") and some["b"].source == "measured"
    assert log() == {"b"}
    pinned = TokenEstimation(primer={"a": 0.2, "b": 0.1})
    assert prime_token_ratios(datasets=sets, estimation=pinned, counting=None, store=store)["b"].source == "pinned"


def test_settings_that_can_not_be_stop_everything(dataset: Any, store: ArtifactStore, tmp_path: Path) -> None:
    sets = [dataset("a")]

    def refused(words: str, kind: type[Exception] = SpecError, **change: Any) -> None:
        with pytest.raises(kind, match=words):
            prime_token_ratios(**{"datasets": sets, "estimation": COUNT, "counting": None, "store": store, **change})

    refused("pins x", estimation=TokenEstimation(primer={"x": 0.2}))
    refused("twice", datasets=[sets[0], sets[0]])
    refused("counting", estimation=TokenEstimation())
    refused("imported|not there", estimation=TokenEstimation(measure="nowhere:at_all"))
    missing = TextTokenCountingSpec(tmp_path / "missing.json")
    refused("is not there", TokenizerError, estimation=TokenEstimation(), counting=missing)


def test_a_row_that_the_training_would_refuse_stops_everything(
    tmp_path: Path, dataset: Any, store: ArtifactStore, word_tokenizer: Path
) -> None:
    place = make_dataset(tmp_path / "data", "bad")
    (place / "shard-00001.jsonl").write_text('{"text": 7}\n')
    bad = Dataset.from_path("bad", str(place), store=store)
    with pytest.raises(FatalCountError, match=r"shard-00001\.jsonl:1"):
        prime_token_ratios(
            datasets=[dataset("a"), bad],
            estimation=TokenEstimation(),
            counting=TextTokenCountingSpec(word_tokenizer, field="text"),
            store=store,
        )


def test_one_warning_tells_of_all_guesses(dataset: Any, tmp_path: Path, store: ArtifactStore) -> None:
    sets = [dataset("good"), dataset("better")]
    lost = [Dataset.from_path(name, str(make_dataset(tmp_path / "data", name)), store=store) for name in ("gone", "lost")]
    for made in lost:
        for shard in made.shards:
            Path(shard.url).unlink()
    with pytest.warns(FallbackWarning) as caught:
        ratios = prime_token_ratios(datasets=[*sets, *lost], estimation=COUNT, counting=None, store=store)
    message = str(caught[0].message)
    assert len(caught) == 1 and caught[0].filename == __file__
    assert "2 of 4 ratios are guesses: gone: 0.25 tokens a byte (" in message and "; lost: 0.25 tokens a byte (" in message
    assert "were that " in message and "times the tokens wanted" in message
    assert {name: ratio.source for name, ratio in ratios.items()} == {
        "good": "measured",
        "better": "measured",
        "gone": "fallback",
        "lost": "fallback",
    }


def test_a_function_that_fails_costs_its_data_set_a_guess(dataset: Any, store: ArtifactStore) -> None:
    made = dataset("a")
    estimation = TokenEstimation(measure=ratio_inputs.fail, fallback_tokens_per_byte=0.3)
    for _ in range(2):  # the second time from its document: a guess is never silent
        with pytest.warns(FallbackWarning, match="always fails"):
            ratios = prime_token_ratios(datasets=[made], estimation=estimation, counting=None, store=store)
    assert ratios["a"].source == "fallback" and ratios["a"].tokens_per_byte == 0.3


def test_a_worker_that_is_killed_costs_its_data_set_a_guess_for_now(
    tmp_path: Path, store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COUNT_SURVIVOR", str(os.getpid()))
    place = tmp_path / "data" / "large"
    place.mkdir(parents=True)
    row = '{"text": "' + "word1 " * 10_000 + '"}\n'
    for shard in range(2):
        (place / f"shard-{shard}.jsonl").write_text(f'{{"text": "{shard}"}}\n' + row * 80)
    large = Dataset.from_path("large", str(place), store=store)
    estimation = TokenEstimation(measure=ratio_inputs.die, exact_below_bytes=1 << 30)
    with pytest.warns(FallbackWarning, match="1 of 1 ratios are guesses: large: "):
        ratios = prime_token_ratios(datasets=[large], estimation=estimation, counting=None, store=store, workers=2)
    assert ratios["large"].source == "fallback"
    assert RatioDocuments(store).all() == []


def test_files_that_went_away_are_tried_again_later(dataset: Any, store: ArtifactStore, log: Any) -> None:
    made = dataset("a")
    contents = {Path(shard.url): Path(shard.url).read_bytes() for shard in made.shards}
    for path in contents:
        path.unlink()
    estimation = TokenEstimation(measure=ratio_inputs.count_words, exact_below_bytes=0)
    arguments: dict[str, Any] = {"datasets": [made], "estimation": estimation, "counting": None, "store": store}
    with pytest.warns(FallbackWarning):
        prime_token_ratios(**arguments)
    assert RatioDocuments(store).all() == []
    for path, content in contents.items():
        path.write_bytes(content)
    arguments["datasets"] = [Dataset.from_path("a", str(next(iter(contents)).parent), store=store)]
    with pytest.warns(FallbackWarning):  # remembered for a while
        assert prime_token_ratios(**arguments)["a"].source == "fallback"
    assert log() == set()
    assert prime_token_ratios(**arguments, negative_ttl_s=0)["a"].source == "measured"


@pytest.mark.parametrize("exact_below_bytes", [0, 1 << 20])
def test_a_measurement_that_lacks_what_was_changed_meanwhile_is_no_lasting_one(
    tmp_path: Path, store: ArtifactStore, exact_below_bytes: int
) -> None:
    place = make_dataset(tmp_path / "data", "a", shards=8, rows=200)
    whole = Dataset.from_path("a", str(place), store=store)
    estimation = TokenEstimation(measure=ratio_inputs.count_words, exact_below_bytes=exact_below_bytes)
    arguments: dict[str, Any] = {"estimation": estimation, "counting": None, "store": store}
    cut = place / "shard-00003.jsonl"
    content = cut.read_bytes()
    cut.write_bytes(content[:1000])
    partial = prime_token_ratios(datasets=[whole], **arguments)["a"]
    assert partial.source == "measured" and "is not what the catalog says" in partial.reason
    assert RatioDocuments(store).all() == []
    cut.write_bytes(content)
    again = Dataset.from_path("a", str(place), store=store)
    assert again.fingerprint == whole.fingerprint
    assert prime_token_ratios(datasets=[again], **arguments)["a"].reason == partial.reason  # remembered for a while
    assert prime_token_ratios(datasets=[again], **arguments, negative_ttl_s=0)["a"].reason == ""
    assert len(RatioDocuments(store).all()) == 1


def test_a_place_that_can_not_be_reached_is_a_guess_that_is_remembered(tmp_path: Path, store: ArtifactStore) -> None:
    from zephon_core.errors import TransientInputError

    tries = []

    class Away:
        place = "s3://bucket/away/"

        def __call__(self) -> Dataset:
            tries.append(1)
            raise TransientInputError("s3://bucket/away/", "can't be listed (no credentials)")

    documents = RatioDocuments(store)
    measuring = Measuring(COUNT, None)
    for _ in range(2):
        with pytest.warns(FallbackWarning, match="no credentials"):
            found = prime({"away": Away()}, measuring, documents)
        assert found.ratios["away"].source == "fallback"
    assert len(tries) == 1 and documents.all() == []
    with pytest.warns(FallbackWarning):
        prime({"away": Away()}, measuring, RatioDocuments(store, negative_ttl_s=0))
    assert len(tries) == 2
    assert not isinstance(reach("away", Away(), measuring, documents), Dataset)


def test_every_rank_reads_what_the_first_one_published(dataset: Any, tmp_path: Path, log: Any) -> None:
    sets = [dataset("a"), dataset("b")]
    place = str(tmp_path / "shared")
    arguments: dict[str, Any] = {
        "datasets": sets,
        "estimation": TokenEstimation(primer={"b": 0.2}, measure=ratio_inputs.count_words),
    }
    first = prime_token_ratios(**arguments, counting=None, store=tmp_path / "node-0", publish=place)
    assert log() == {"a"}
    second = prime_token_ratios(**arguments, counting=None, store=tmp_path / "node-1", publish=place)
    assert second == first and log() == set()
    assert len(list(Path(place).iterdir())) == 1
    prime_token_ratios(**arguments, counting=None, store=tmp_path / "node-2", publish=place, refresh=True)
    assert log() == {"a"}


def test_refresh_measures_what_is_known(dataset: Any, store: ArtifactStore, log: Any) -> None:
    arguments: dict[str, Any] = {"datasets": [dataset("a")], "estimation": COUNT, "counting": None, "store": store}
    first = prime_token_ratios(**arguments)
    log()
    assert prime_token_ratios(**arguments, refresh=True) == first
    assert log() == {"a"}


def test_no_data_sets_no_ratios(store: ArtifactStore) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert prime_token_ratios(datasets=[], estimation=TokenEstimation(), counting=None, store=store) == {}


def test_a_sampled_ratio_brings_its_interval(dataset: Any, store: ArtifactStore) -> None:
    made = dataset("a", shards=4, rows=300)
    estimation = TokenEstimation(measure=ratio_inputs.count_words, exact_below_bytes=0, target_rel_error=0.05)
    ratio = prime_token_ratios(datasets=[made], estimation=estimation, counting=None, store=store)["a"]
    assert ratio.interval is not None and ratio.draws > 0
    low, high = ratio.interval
    assert low < ratio.tokens_per_byte < high and (high - low) / 2 <= 0.05 * ratio.tokens_per_byte
    assert np.isclose(ratio.tokens_per_byte, exact_ratio(made), rtol=0.1)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"seed": -1}, "seed: is -1"),
        ({"seed": "x"}, "seed: is 'x'"),
        ({"seed": True}, "seed: is True"),
        ({"workers": -3}, "workers: is -3"),
        ({"workers": 2.5}, "workers: is 2.5"),
        ({"negative_ttl_s": -1}, "negative_ttl_s: is -1"),
        ({"negative_ttl_s": float("nan")}, "negative_ttl_s: is nan"),
    ],
)
def test_settings_that_can_not_be_are_refused(dataset: Any, store: ArtifactStore, settings: Any, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        prime_token_ratios(datasets=[dataset("a")], estimation=COUNT, counting=None, store=store, **settings)


def test_formats_side_by_side_and_what_is_left_out_are_told(
    dataset: Any, store: ArtifactStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    place = make_dataset(tmp_path / "data", "a")
    pq.write_table(pa.table({"text": ["word1"], "name": ["a"]}), place / "shard-00000.parquet")
    (place / "gone.jsonl").symlink_to("nowhere")
    made = Dataset.from_path("a", str(place), store=store)
    prime_token_ratios(datasets=[made], estimation=COUNT, counting=None, store=store)
    assert "a: counts files of several formats together (3 of jsonl, 1 of parquet)" in caplog.text
    assert "gone.jsonl is left out: is a link to nowhere, which isn't there" in caplog.text


def test_one_known_ratio_is_named_once() -> None:
    ratios = {"a": TokenRatio(0.5, "measured"), "b": TokenRatio(0.25, "fallback", reason="it is away")}
    assert "were that a's (0.5), 2 times the tokens wanted" in fallback_message(ratios)


@pytest.mark.parametrize("broken", [False, True])
def test_a_data_set_that_lacks_a_file_shares_no_document_with_one_that_is_whole(
    tmp_path: Path, store: ArtifactStore, broken: bool
) -> None:
    place = make_dataset(tmp_path / "data", "a")
    reasons = []
    for left_out in (broken, not broken):
        if left_out:
            (place / "cut.parquet").write_bytes(b"nothing of the kind")
        else:
            (place / "cut.parquet").unlink(missing_ok=True)
        made = Dataset.from_path("a", str(place), store=store)
        reasons.append(prime_token_ratios(datasets=[made], estimation=COUNT, counting=None, store=store)["a"].reason)
    assert [bool(reason) for reason in reasons] == [broken, not broken]
    assert len(RatioDocuments(store).all()) == 2
