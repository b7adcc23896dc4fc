"""Which files paths lead to."""

from __future__ import annotations

import os
from pathlib import Path

import fsspec
import pytest

from zephon_core.errors import InputError, SpecError
from zephon_core.ratios.datasets.files import FoundFile
from zephon_core.ratios.datasets.listing import Container, list_files, sort_out


def touch(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"{}\n")


def names(root: Path, *paths: str) -> list[str]:
    return [
        file.url.removeprefix(f"{root}/") for file in list_files([f"{root}/{path}".rstrip("/") for path in paths or ("",)]).files
    ]


def test_a_directory_gives_all_files_of_known_formats_below_it_sorted(tmp_path: Path) -> None:
    touch(tmp_path, "b.jsonl", "a/c.parquet", "a/d.jsonl.gz", "z.arrow", "y.tar", "README.md", "a/x.jsonl.zst", "q.crc")
    assert names(tmp_path) == ["a/c.parquet", "a/d.jsonl.gz", "a/x.jsonl.zst", "b.jsonl", "y.tar", "z.arrow"]


def test_hidden_files_and_those_that_begin_with_an_underscore_are_passed_over(tmp_path: Path) -> None:
    touch(tmp_path, "a.jsonl", ".b.jsonl", "_c.jsonl", "_SUCCESS", "_temporary/d.jsonl", ".git/e.jsonl", "f/.g/h.jsonl")
    assert names(tmp_path) == ["a.jsonl"]


def test_json_files_are_data_only_where_there_is_no_other(tmp_path: Path) -> None:
    touch(tmp_path, "plain/a.json", "plain/b.json.gz", "arrow/data.arrow", "arrow/dataset_info.json", "arrow/state.json")
    assert names(tmp_path, "plain") == ["plain/a.json", "plain/b.json.gz"]
    assert names(tmp_path, "arrow") == ["arrow/data.arrow"]


def test_globs_lists_and_directories_can_be_mixed_and_take_a_file_once(tmp_path: Path) -> None:
    touch(tmp_path, "a-1.jsonl", "a-2.jsonl", "b/c.jsonl", "b/d.jsonl")
    assert names(tmp_path, "a-*.jsonl", "b", "b/c.jsonl") == ["a-1.jsonl", "a-2.jsonl", "b/c.jsonl", "b/d.jsonl"]
    assert names(tmp_path, "**/*.jsonl") == ["a-1.jsonl", "a-2.jsonl", "b/c.jsonl", "b/d.jsonl"]


def test_a_name_that_looks_like_a_glob_and_exists_is_itself(tmp_path: Path) -> None:
    touch(tmp_path, "a[1].jsonl", "a1.jsonl")
    assert names(tmp_path, "a[1].jsonl") == ["a[1].jsonl"]


def test_linked_directories_are_followed_and_circles_end(tmp_path: Path) -> None:
    touch(tmp_path, "data/a.jsonl", "more/b.jsonl")
    (tmp_path / "data" / "linked").symlink_to(tmp_path / "more")
    (tmp_path / "more" / "back").symlink_to(tmp_path / "data")
    (tmp_path / "data" / "self").symlink_to(".")
    assert names(tmp_path, "data") == ["data/a.jsonl", "data/linked/b.jsonl"]


def test_a_link_to_what_is_around_the_folder_brings_nothing_in(tmp_path: Path) -> None:
    touch(tmp_path, "data/a.jsonl", "data/deep/b.jsonl", "other/c.jsonl")
    (tmp_path / "data" / "up").symlink_to("..")
    (tmp_path / "data" / "deep" / "root").symlink_to("/")
    assert names(tmp_path, "data") == ["data/a.jsonl", "data/deep/b.jsonl"]
    (tmp_path / "link").symlink_to("data")
    assert names(tmp_path, "link") == ["link/a.jsonl", "link/deep/b.jsonl"]


@pytest.mark.parametrize("path", ["", "/*", "/*.jsonl"])
def test_a_shard_that_is_no_file_is_a_problem(tmp_path: Path, path: str) -> None:
    touch(tmp_path, "data/b.jsonl", "data/z.jsonl")
    for name in ("a.jsonl", "notes", ".hidden.jsonl"):
        (tmp_path / "data" / name).symlink_to("nowhere")
    (tmp_path / "data" / "c.jsonl").symlink_to("c.jsonl")
    os.mkfifo(tmp_path / "data" / "d.jsonl")
    listing = list_files(f"{tmp_path}/data{path}")
    assert [Path(file.url).name for file in listing.files] == ["b.jsonl", "z.jsonl"]
    assert [(Path(problem.url).name, problem.reason, problem.transient) for problem in listing.problems] == [
        ("a.jsonl", "is a link to nowhere, which isn't there", False),
        ("c.jsonl", "can't be reached (Too many levels of symbolic links)", True),
        ("d.jsonl", "is no regular file", False),
    ]
    (tmp_path / "data" / "a.jsonl").unlink()
    assert list_files(f"{tmp_path}/data{path}").key("") != listing.key("")


def test_nothing_but_a_link_that_leads_nowhere_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").symlink_to("nowhere")
    with pytest.raises(InputError, match=r"a\.jsonl: is a link to nowhere, which isn't there"):
        list_files(str(tmp_path))


def test_what_is_named_and_absent_is_a_problem_of_its_own(tmp_path: Path) -> None:
    touch(tmp_path, "a.jsonl")
    listing = list_files([f"{tmp_path}/a.jsonl", f"{tmp_path}/b.jsonl", f"{tmp_path}/c-*.jsonl"])
    assert [file.url for file in listing.files] == [f"{tmp_path}/a.jsonl"]
    assert [(problem.url.removeprefix(f"{tmp_path}/"), problem.reason, problem.transient) for problem in listing.problems] == [
        ("b.jsonl", "is not there", True),
        ("c-*.jsonl", "matches no file", False),
    ]


def test_nothing_at_all_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no file of a known format, expected JSONL"):
        list_files(str(tmp_path))
    with pytest.raises(InputError, match="is not there"):
        list_files(str(tmp_path / "absent"))
    with pytest.raises(SpecError, match="is an empty list"):
        list_files([])


@pytest.mark.parametrize("below", ["", "deep/"])
def test_remote_directories_and_globs(below: str) -> None:
    system = fsspec.filesystem("memory")
    root = "/listing"
    for name in ("a.jsonl", f"{below}b.jsonl", f"{below}_c.jsonl", "d.txt"):
        system.pipe(f"{root}/{name}", b"{}\n")
    try:
        found = [file.url.removeprefix("memory://").lstrip("/") for file in list_files("memory://listing").files]
        assert found == ["listing/a.jsonl", f"listing/{below}b.jsonl"]
        assert [file.url for file in list_files("memory://listing/a*.jsonl").files] == ["memory:///listing/a.jsonl"]
    finally:
        system.rm(root, recursive=True)


def test_file_urls_are_paths(tmp_path: Path) -> None:
    touch(tmp_path, "a.jsonl", "b/c.jsonl")
    assert list_files(f"file://{tmp_path}") == list_files(str(tmp_path))
    assert list_files(f"file://{tmp_path}/*.jsonl") == list_files(f"{tmp_path}/*.jsonl")


def files(*urls: str) -> list[FoundFile]:
    return [FoundFile(url, 1, "1-1") for url in urls]


def test_folders_of_mds_litdata_and_lance_are_containers() -> None:
    found = list(
        sort_out(
            "/d",
            files(
                *("/d/m/index.json", "/d/m/shard.00000.mds.zstd", "/d/l/index.json", "/d/l/chunk-0-0.bin"),
                *("/d/t.lance/_versions/1.manifest", "/d/t.lance/data/x.lance", "/d/t.lance/_deletions/y.arrow"),
                *("/d/other/index.json", "/d/other/a.jsonl"),
            ),
        )
    )
    containers = {each.url: (each.format, len(each.files)) for each in found if isinstance(each, Container)}
    assert containers == {"/d/l": ("litdata", 2), "/d/m": ("mds", 2), "/d/t.lance": ("lance", 3)}
    assert [each.url for each in found if isinstance(each, FoundFile)] == ["/d/other/a.jsonl"]
