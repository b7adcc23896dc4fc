"""The same rows give the same bank, whether they come as JSONL, Parquet or Arrow."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import assume, given
from hypothesis import strategies as st

from zephon_core.bank.scan import scan_texts
from zephon_core.bank.specs import ScanSpec
from zephon_core.readers.sources import resolve_sources

TEXT = st.none() | st.text(st.sampled_from('ab é\u3000\x1c\n\\"😀'), max_size=20)
CANDIDATE = st.none() | st.fixed_dictionaries({"text": TEXT, "tags": st.none() | st.lists(TEXT, max_size=3)})
ROWS = st.lists(st.fixed_dictionaries({"query": TEXT, "candidates": st.none() | st.lists(CANDIDATE, max_size=4)}), max_size=20)
TEXT_TYPES = [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int16(), pa.string())]
LIST_TYPES = [pa.list_, pa.large_list, pa.list_view]


@given(
    rows=ROWS,
    text=st.sampled_from(TEXT_TYPES),
    inner=st.sampled_from(TEXT_TYPES),
    lists=st.sampled_from(LIST_TYPES),
    batch=st.integers(1, 9),
)
def test_formats_agree(tmp_path_factory, rows, text, inner, lists, batch):
    folder = tmp_path_factory.mktemp("formats")
    struct = pa.struct({"text": inner, "tags": pa.list_(inner)})
    table = pa.table(
        {name: pa.array([row[name] for row in rows], kind) for name, kind in (("query", text), ("candidates", lists(struct)))}
    )
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pa.ipc.new_file(folder / "rows.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=batch)
    paths = ["rows.jsonl", "rows.arrow"]
    if lists is not pa.list_view and pa.string_view() not in (text, inner):
        pq.write_table(table, folder / "rows.parquet", row_group_size=batch)
        paths.append("rows.parquet")
    fields = ["candidates[].tags[]", "query", "candidates[].text"]
    results = []
    for name in paths:
        spec = ScanSpec(sources=(str(folder / name),), fields=fields)
        sources = resolve_sources(spec.sources)
        assume(any(text and text.strip() for text in _texts(rows)))
        statistics = scan_texts(spec, sources, folder / "out", threads=2, memory_bytes=1 << 20)
        files = {path.name: path.read_bytes() for path in (folder / "out").iterdir()}
        results.append((files, {key: statistics[key] for key in ("rows", "texts", "distinct", "kinds", "length_histogram")}))
    assert all(result == results[0] for result in results)


def _texts(rows):
    for row in rows:
        yield row["query"]
        for candidate in row["candidates"] or ():
            if candidate:
                yield candidate["text"]
                yield from candidate["tags"] or ()
