import json
import time

import pytest

from zephon_core.errors import CorruptArtifactError, InputError, SpecError
from zephon_core.store import ArtifactStore, Recipe
from zephon_core.upkeep import list_entries, pull, push, resolve, sweep

DAY_S = 86_400.0


@pytest.fixture
def store(tmp_path):
    return ArtifactStore(tmp_path / "store")


def make(store, kind, fingerprint, inputs=None, size=100):
    def produce(directory):
        (directory / "data").write_bytes(b"x" * size)
        return {}

    return store.build(Recipe(kind, fingerprint, inputs or {}, {}), produce).ref


def names(entries):
    return {(entry.kind, entry.fingerprint) for entry in entries}


def test_the_list_tells_finished_interrupted_in_work_and_damaged_apart(store):
    make(store, "scan", "aa")
    damaged = make(store, "scan", "bb")
    (damaged.path / "data").unlink()
    store.partial(Recipe("tokens", "cc", {}, {}))
    recipe = Recipe("features", "dd", {}, {})
    with store.lease(recipe.key):
        store.partial(recipe)
        states = {entry.fingerprint: entry.state for entry in list_entries(store)}
    assert states == {"aa": "finished", "bb": "damaged", "cc": "interrupted", "dd": "in work"}


def test_an_empty_store_lists_nothing(store):
    assert list_entries(store) == []


def test_names_may_be_short_but_not_ambiguous(store):
    ref = make(store, "scan", "aa11")
    make(store, "scan", "aa22")
    assert resolve(store, "aa1") == resolve(store, "scan-aa1") == ref
    with pytest.raises(SpecError, match="2 artifacts"):
        resolve(store, "aa")
    with pytest.raises(SpecError, match="0 artifacts"):
        resolve(store, "ff")


def test_gc_is_a_dry_run_unless_told_otherwise(store):
    make(store, "scan", "aa")
    later = time.time() + 40 * DAY_S
    assert names(sweep(store, older_than_s=30 * DAY_S, now_s=later)) == {("scan", "aa")}
    assert store.find("scan", "aa")
    sweep(store, older_than_s=30 * DAY_S, now_s=later, dry_run=False)
    assert list_entries(store) == []


def test_gc_spares_the_young(store):
    make(store, "scan", "aa")
    assert sweep(store, older_than_s=30 * DAY_S, dry_run=False) == []


def test_gc_spares_what_is_published_and_all_it_was_made_from(store, tmp_path):
    make(store, "scan", "aa")
    make(store, "tokens", "bb", {"scan": "aa"})
    bank = make(store, "bank", "cc", {"tokens": "bb"})
    make(store, "scan", "dd")
    output = tmp_path / "bank"
    output.mkdir()
    store.note_published(bank, output)
    later = time.time() + 40 * DAY_S
    assert names(sweep(store, older_than_s=0, now_s=later, dry_run=False)) == {("scan", "dd")}
    output.rmdir()
    assert names(sweep(store, older_than_s=0, now_s=later)) == {("scan", "aa"), ("tokens", "bb"), ("bank", "cc")}


def test_gc_spares_work_under_a_lease_and_its_inputs(store):
    make(store, "scan", "aa")
    recipe = Recipe("tokens", "bb", {"scan": "aa"}, {})
    with store.lease(recipe.key):
        store.partial(recipe)
        assert sweep(store, older_than_s=0, now_s=time.time() + DAY_S) == []
    assert names(sweep(store, older_than_s=0, now_s=time.time() + DAY_S)) == {("scan", "aa"), ("tokens", "bb")}


def test_gc_stops_when_the_rest_fits(store):
    for number in range(4):
        make(store, "scan", f"a{number}", size=10_000)
        time.sleep(0.005)
    chosen = sweep(store, older_than_s=0, keep_bytes=25_000, now_s=time.time() + DAY_S)
    assert [entry.fingerprint for entry in chosen] == ["a0", "a1"]


@pytest.mark.parametrize("scheme", ["file", "memory"])
def test_pushed_and_pulled_it_is_the_same_artifact(store, tmp_path, scheme):
    ref = make(store, "scan", "aa")
    place = push(store, ref, f"{scheme}://{tmp_path}/elsewhere")
    other = ArtifactStore(tmp_path / "other")
    pulled = pull(other, place)
    assert (pulled.kind, pulled.fingerprint) == ("scan", "aa")
    other.verify(pulled)
    assert other.record(pulled) == store.record(ref)
    assert pull(other, place) == pulled


def test_pull_refuses_what_was_damaged_on_the_way(store, tmp_path):
    place = push(store, make(store, "scan", "aa"), f"{tmp_path}/elsewhere")
    path = tmp_path / "elsewhere" / "scan" / "aa" / "data"
    path.chmod(0o644)
    path.write_bytes(b"y" * 100)
    other = ArtifactStore(tmp_path / "other")
    with pytest.raises(CorruptArtifactError, match="another SHA-256"):
        pull(other, place)
    assert list_entries(other) == []
    assert [path.name for path in other.root.iterdir()] == []


def test_pull_says_where_nothing_is(store, tmp_path):
    with pytest.raises(InputError, match="holds no artifact"):
        pull(store, str(tmp_path / "nothing"))


def test_records_of_publishing_are_plain_json(store, tmp_path):
    store.note_published(make(store, "bank", "cc"), tmp_path)
    [note] = (store.root / "published").iterdir()
    assert json.loads(note.read_text()) == {"kind": "bank", "fingerprint": "cc", "output": str(tmp_path)}
