import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from zephon_core.errors import CorruptArtifactError, MismatchError, MissingArtifactError, SpecError
from zephon_core.store import ArtifactRecord, ArtifactRef, ArtifactStore, Recipe, clear_partial

RECIPE = Recipe("scan", "ab" * 32, {"source 0": "cd" * 32}, {"option": 1})


class Notes:
    """A progress sink that keeps what it was told."""

    def __init__(self):
        self.notes = []

    def phase(self, label, *, total, unit):
        from zephon_core.progress import NULL_PROGRESS

        return NULL_PROGRESS.phase(label, total=total, unit=unit)

    def note(self, message):
        self.notes.append(message)


@pytest.fixture
def store(tmp_path):
    return ArtifactStore(tmp_path / "store")


def write_hello(directory):
    (directory / "hello.txt").write_text("hello")
    return {"texts": 1}


def test_an_artifact_is_made_once_and_found_again(store):
    first = store.build(RECIPE, write_hello)
    second = store.build(RECIPE, lambda directory: pytest.fail("made twice"))
    assert (first.cached, second.cached) == (False, True)
    assert first.ref == second.ref == store.find("scan", RECIPE.fingerprint)
    assert first.ref.key == f"scan-{RECIPE.fingerprint}"
    assert (first.ref.path / "hello.txt").read_text() == "hello"


def test_the_record_says_what_the_artifact_holds(store):
    record = store.record(store.build(RECIPE, write_hello).ref)
    assert record.inputs == {"source 0": "cd" * 32}
    assert record.spec == {"option": 1}
    assert record.statistics == {"texts": 1}
    assert record.files["hello.txt"].bytes == 5
    assert record.files["hello.txt"].sha256 == "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"


def test_finished_files_are_read_only(store):
    ref = store.build(RECIPE, write_hello).ref
    assert (ref.path / "hello.txt").stat().st_mode & 0o777 == 0o444


@pytest.mark.parametrize("damage", ["missing", "truncated", "no record", "torn record"])
def test_a_damaged_artifact_is_not_found_and_is_made_again(store, damage):
    ref = store.build(RECIPE, write_hello).ref
    path = ref.path / ("artifact.json" if "record" in damage else "hello.txt")
    if damage in ("missing", "no record"):
        path.unlink()
    else:
        path.chmod(0o644)
        os.truncate(path, 3)
    assert store.find("scan", RECIPE.fingerprint) is None
    assert store.build(RECIPE, write_hello).cached is False
    assert (ref.path / "hello.txt").read_text() == "hello"


def test_verify_finds_a_flipped_byte(store):
    ref = store.build(RECIPE, write_hello).ref
    store.verify(ref)
    (ref.path / "hello.txt").chmod(0o644)
    (ref.path / "hello.txt").write_text("hellp")
    with pytest.raises(CorruptArtifactError, match=r"hello\.txt: has SHA-256"):
        store.verify(ref)


def test_a_future_record_is_refused_by_name(store):
    ref = store.build(RECIPE, write_hello).ref
    path = ref.path / "artifact.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 99}))
    with pytest.raises(CorruptArtifactError, match="format 99"):
        store.record(ref)


def test_no_artifact_is_an_error_that_says_so(store, tmp_path):
    with pytest.raises(MissingArtifactError):
        store.record(ArtifactRef(kind="scan", fingerprint="00", url=str(tmp_path)))


def test_refresh_makes_it_again_and_says_whether_it_differs(store):
    store.build(RECIPE, write_hello)
    notes = Notes()
    store.build(RECIPE, write_hello, force=True, progress=notes)
    assert "every file is the same" in notes.notes[-1]

    def other(directory):
        (directory / "hello.txt").write_text("HELLO")
        return {}

    built = store.build(RECIPE, other, force=True, progress=notes)
    assert "hello.txt differ" in notes.notes[-1]
    assert not built.cached
    assert (built.ref.path / "hello.txt").read_text() == "HELLO"


def test_of_many_callers_one_makes_it(store):
    made = []
    results = []

    def slow(directory):
        made.append(1)
        time.sleep(0.2)
        return write_hello(directory)

    threads = [threading.Thread(target=lambda: results.append(store.build(RECIPE, slow))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [1]
    assert sorted(result.cached for result in results) == [False] + [True] * 5


def test_a_failed_build_leaves_its_work_for_the_next(store):
    def fail(directory):
        (directory / "half.txt").write_text("half")
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        store.build(RECIPE, fail)
    assert store.find("scan", RECIPE.fingerprint) is None

    def finish(directory):
        assert (directory / "half.txt").read_text() == "half"
        return write_hello(directory)

    assert set(store.record(store.build(RECIPE, finish).ref).files) == {"half.txt", "hello.txt"}


def test_unfinished_files_of_a_killed_run_never_become_part_of_an_artifact(store):
    partial = store.partial(RECIPE)
    (partial / ".tmp-artifact.json-99999-abcd").write_text("half")
    assert set(store.record(store.build(RECIPE, write_hello).ref).files) == {"hello.txt"}
    assert not list(store.directory("scan", RECIPE.fingerprint).glob(".tmp-*"))


def test_unfinished_files_of_others_are_left_alone_while_work_is_shared(store):
    theirs = store.partial(RECIPE) / ".tmp-blocks.json-99999-abcd"
    theirs.write_text("half")
    store.partial(RECIPE, shared=True)
    assert theirs.exists()


def test_work_begun_for_other_options_is_refused(store):
    store.partial(RECIPE)
    with pytest.raises(MismatchError, match="other inputs or options"):
        store.partial(Recipe(RECIPE.kind, RECIPE.fingerprint, RECIPE.inputs, {"option": 2}))


def test_names_that_could_leave_the_store_are_refused(store):
    with pytest.raises(SpecError, match="fingerprint"):
        store.find("scan", "../../etc")


BUILDER = """
import sys, time
from pathlib import Path
from zephon_core.store import ArtifactStore, Recipe

def produce(directory):
    for number in range(40):
        (directory / f"{number}.bin").write_bytes(bytes([number]) * 50_000)
    return {"files": 40}

print("go", flush=True)
ArtifactStore(sys.argv[1]).build(Recipe("scan", "ab" * 32, {}, {}), produce)
"""


def test_killed_at_any_moment_it_is_absent_or_whole(tmp_path):
    import random

    rng = random.Random(7)
    recipe = Recipe("scan", "ab" * 32, {}, {})
    store = ArtifactStore(tmp_path)
    for _ in range(20):
        process = subprocess.Popen([sys.executable, "-c", BUILDER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        process.stdout.readline()
        time.sleep(rng.uniform(0, 0.12))
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        ref = store.find("scan", recipe.fingerprint)
        if ref:
            store.verify(ref)
            assert len(ArtifactRecord.read(ref.path).files) == 40
            store.build(recipe, lambda directory: pytest.fail("there already"))
            for path in ref.path.iterdir():
                path.unlink()
            ref.path.rmdir()
    finished = subprocess.run([sys.executable, "-c", BUILDER, str(tmp_path)], check=True, capture_output=True)
    assert finished.stdout == b"go\n"
    store.verify(store.find("scan", recipe.fingerprint))


def test_a_recipe_is_named_by_what_it_is_made_of():
    recipe = Recipe.made_of("scan", 1, {"source": "ab"}, {"option": 1})
    assert recipe == Recipe.made_of("scan", 1, {"source": "ab"}, {"option": 1})
    others = [
        Recipe.made_of("other", 1, {"source": "ab"}, {"option": 1}),
        Recipe.made_of("scan", 2, {"source": "ab"}, {"option": 1}),
        Recipe.made_of("scan", 1, {"source": "cd"}, {"option": 1}),
        Recipe.made_of("scan", 1, {"source": "ab"}, {"option": 2}),
    ]
    assert len({recipe.fingerprint, *(other.fingerprint for other in others)}) == 5


def test_an_artifact_that_is_needed_is_there_or_told(store):
    with pytest.raises(MissingArtifactError, match=r"holds no valid scan-.*\. Run the steps before this one first\."):
        store.needed(RECIPE)
    built = store.build(RECIPE, write_hello)
    assert store.needed(RECIPE) == built.ref


def test_leftovers_are_cleared_but_for_what_they_are_of(store):
    partial = store.partial(RECIPE)
    (partial / "half").write_bytes(b"x")
    clear_partial(partial)
    assert [path.name for path in partial.iterdir()] == ["recipe.json"]
