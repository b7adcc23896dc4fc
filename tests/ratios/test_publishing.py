"""One map for all ranks: the first one down counts."""

from __future__ import annotations

import json
import threading
import uuid
from pathlib import Path
from typing import Any

import pytest

from zephon_core.errors import InputError
from zephon_core.ratios.documents import RatioDocument
from zephon_core.ratios.publishing import map_url, publish_map, read_map

SETTINGS = {"seed": 0, "places": {"a": "x/"}}


def document(name: str, ratio: float, *, content: int = 0, retryable: bool = False) -> RatioDocument:
    measurement = {"ratio": ratio, "source": "fallback" if retryable else "measured", "draws": 1}
    inputs = {"name": name, "content": content}
    return RatioDocument.make(name, measurement, dataset={}, inputs=inputs, seconds=0.0, retryable=retryable)


def keys_of(documents: dict[str, RatioDocument]) -> dict[str, str | None]:
    return {name: each.key for name, each in documents.items()}


def publish(url: str, documents: dict[str, RatioDocument], ttl_s: float = 100.0, **options: Any) -> dict[str, RatioDocument]:
    return publish_map(url, documents, {"c": 0.3}, failures_ttl_s=ttl_s, **options)


@pytest.fixture(params=["local", "file", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    folders = {"local": tmp_path / "deep" / "maps", "file": f"file://{tmp_path}/maps", "memory": f"memory://{uuid.uuid4()}/"}
    return map_url(str(folders[request.param]), SETTINGS)


def test_everybody_gets_what_the_first_one_put_down(url: str) -> None:
    first, second = ({"a": document("a", ratio), "b": document("b", 0.5)} for ratio in (0.25, 0.26))
    assert read_map(url, keys_of(first), failures_ttl_s=100) is None
    assert publish(url, first) == first
    assert publish(url, second) == first
    assert read_map(url, keys_of(second), failures_ttl_s=100) == first
    assert publish(url, second, replace=True) == second


def test_changed_content_replaces_the_map(url: str) -> None:
    publish(url, {"a": document("a", 0.25)})
    changed = {"a": document("a", 0.3, content=1)}
    assert read_map(url, keys_of(changed), failures_ttl_s=100) is None
    assert publish(url, changed) == changed


def test_who_could_not_reach_a_data_set_takes_the_word_of_who_could_and_the_other_way_round(url: str) -> None:
    known, guess = {"a": document("a", 0.25)}, {"a": document("a", 0.3, content=-1, retryable=True)}
    publish(url, known)
    assert publish(url, guess) == known and read_map(url, {"a": None}, failures_ttl_s=100) == known
    publish(url, guess, replace=True)
    assert publish(url, known) == guess  # the other ranks run with it
    assert publish(url, known, ttl_s=0) == known  # until that is long past
    assert publish(url, guess) == known


def test_a_map_lists_all_ratios_for_whoever_reads_it(tmp_path: Path) -> None:
    url = map_url(str(tmp_path), SETTINGS)
    publish(url, {"a": document("a", 0.25)})
    assert json.loads(Path(url).read_bytes())["ratios"] == {"a": [0.25, "measured", ""], "c": [0.3, "pinned", ""]}


def test_other_settings_have_another_place() -> None:
    urls = {map_url("x/", {"seed": seed, "places": places}) for seed in (0, 1) for places in ({"a": "x"}, {"a": "y"}, {"b": "x"})}
    assert len(urls) == 6 and all(url.startswith("x/") and url.endswith(".json") for url in urls)


def test_a_broken_map_is_put_right(url: str) -> None:
    import fsspec

    made = {"a": document("a", 0.25)}
    publish(url, made)
    for broken in (b'{"v": 1, "documents"', b"[]", b'{"v": 9, "documents": {}}', b'{"v": 1, "documents": {"a": {}}}'):
        with fsspec.open(url, "wb") as file:
            file.write(broken)
        assert read_map(url, keys_of(made), failures_ttl_s=100) is None
        assert publish(url, made) == made


def test_of_many_at_once_one_counts(tmp_path: Path) -> None:
    url = map_url(str(tmp_path), SETTINGS)
    together = threading.Barrier(8)
    got: list[dict[str, Any]] = []

    def put(number: int) -> None:
        together.wait()
        got.append(publish(url, {"a": document("a", 0.25 + number / 100)}))

    threads = [threading.Thread(target=put, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({each["a"].ratio.tokens_per_byte for each in got}) == 1
    assert [path.suffix for path in tmp_path.iterdir()] == [".json"]


def test_a_place_that_can_not_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(InputError, match="can't be written"):
        publish(f"{tmp_path}/taken/map.json", {"a": document("a", 0.25)})
