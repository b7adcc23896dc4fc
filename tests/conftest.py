"""What all tests share: where the test data are, hypothesis settings, and plain restatements of what fast code must compute."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings

# The first call of compiled code takes seconds, and tests share their machine: no example is judged by its time.
settings.register_profile("zephon", deadline=None, print_blob=True)
settings.load_profile("zephon")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of test data: $ZEPHON_TEST_DATA, else ../shared/data beside the checkout."""
    folder = Path(os.environ.get("ZEPHON_TEST_DATA") or Path(__file__).parents[2] / "shared" / "data")
    if not folder.is_dir():
        pytest.skip("no test data; set ZEPHON_TEST_DATA to their folder")
    return folder


@dataclass
class ExpectedScan:
    """What a scan must write, worked out row by row in plain Python."""

    texts: list[bytes] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)
    bad: list[tuple[int, int, int | None, str]] = field(default_factory=list)
    rows: int = 0
    total: int = 0

    def files(self) -> dict[str, bytes]:
        """The bytes of every file."""
        lines = [json.dumps(text.decode(), ensure_ascii=False).encode() + b"\n" for text in self.texts]
        digests = [hashlib.sha1(text).digest() for text in self.texts]
        order = sorted(range(len(digests)), key=lambda row: digests[row])
        arrays = {
            "digests.npy": np.array([list(digests[row]) for row in order], np.uint8).reshape(-1, 20),
            "rows.npy": np.array(order, np.uint32),
            "kinds.npy": np.array(self.kinds, np.uint8),
            "text_offsets.npy": np.cumsum([0, *map(len, lines)], dtype=np.uint64),
        }
        index = json.dumps({digest.hex(): row for row, digest in enumerate(digests)}).encode()
        return {"texts.jsonl": b"".join(lines), "index.json": index} | {name: npy(array) for name, array in arrays.items()}


def npy(array: np.ndarray) -> bytes:
    """The bytes of an array's .npy file."""
    import io

    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@pytest.fixture(scope="session")
def expected_scan() -> Callable[..., ExpectedScan]:
    """A function (sources' rows, fields) -> ExpectedScan; see `_expected_scan`."""
    return _expected_scan


def _expected_scan(
    sources: Sequence[bytes | Iterable[object]],
    fields: Sequence[str] = ("query", "candidates[].text"),
    max_row_bytes: int = 64 << 20,
) -> ExpectedScan:
    """Scan sources by the reference: bytes are JSONL as stored without compression, anything else yields parsed rows."""
    from zephon_core.bank.scan.fields import compile_fields
    from zephon_core.bank.scan.reference import line_texts, row_texts
    from zephon_core.bank.specs import FieldSpec
    from zephon_core.readers.rows import RowProblem

    table = compile_fields([FieldSpec.model_validate(path) for path in fields])
    expected = ExpectedScan()
    seen = set()
    for number, source in enumerate(sources):
        offset = 0
        items: Iterable[object] = source
        if isinstance(source, bytes):
            offset = 3 if source.startswith(b"\xef\xbb\xbf") else 0
            items = source[offset:].split(b"\n")
        last = len(items) - 1 if isinstance(items, list) else -1
        for position, item in enumerate(items):
            start, size = offset, len(item) + 1 if isinstance(item, bytes) else 0
            offset += size
            try:
                if isinstance(item, bytes):
                    texts = line_texts(item.removesuffix(b"\r") if position < last else item, table, max_row_bytes)
                    if texts is None:
                        continue
                else:
                    texts = row_texts(item, table)
            except RowProblem as problem:
                expected.rows += 1
                expected.bad.append((number, position + 1, start if isinstance(item, bytes) else None, problem.reason))
                continue
            expected.rows += 1
            expected.total += len(texts)
            for position_field, text in texts:
                if text not in seen:
                    seen.add(text)
                    expected.texts.append(text)
                    expected.kinds.append(int(table.kinds[position_field]))
    return expected


class Bucket:
    """A bucket of an S3-speaking server on loopback, and what was asked of that server."""

    def __init__(self, endpoint: str, requests: list[str]) -> None:
        import boto3

        self.name = f"bucket-{uuid.uuid4()}"
        self.url = f"s3://{self.name}"
        self._requests = requests
        self._client = boto3.client("s3", endpoint_url=endpoint)
        self._client.create_bucket(Bucket=self.name)

    def put(self, key: str, content: bytes) -> str:
        """Store an object, and return its URL."""
        self._client.put_object(Bucket=self.name, Key=key, Body=content)
        return f"{self.url}/{key}"

    def put_folder(self, folder: Path) -> str:
        """Store every file of a folder under the folder's name, and return the URL of that."""
        for file in sorted(path for path in folder.rglob("*") if path.is_file()):
            self.put(f"{folder.name}/{file.relative_to(folder)}", file.read_bytes())
        return f"{self.url}/{folder.name}/"

    def get(self, key: str) -> bytes:
        """Return an object's content."""
        return bytes(self._client.get_object(Bucket=self.name, Key=key)["Body"].read())

    def names(self) -> list[str]:
        """List the objects."""
        return [each["Key"] for each in self._client.list_objects_v2(Bucket=self.name).get("Contents", [])]

    def delete(self, key: str) -> None:
        """Remove an object."""
        self._client.delete_object(Bucket=self.name, Key=key)

    def asked(self) -> list[str]:
        """Return "METHOD key" of every object of this bucket that was asked for since the last time of asking."""
        found = []
        for line in self._requests:
            method, _, path = line.partition(" ")
            bucket, _, key = path.strip("/").partition("/")
            if bucket == self.name and key:
                found.append(f"{method} {key}")
        self._requests.clear()
        return found


@pytest.fixture(scope="session")
def s3_server() -> Iterator[tuple[str, list[str]]]:
    """Its endpoint, and a list to which it adds "METHOD path" of each request."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    requests: list[str] = []
    application = DomainDispatcherApplication(create_backend_app)

    def noted(environment: dict[str, Any], respond: Any) -> Any:
        requests.append(f"{environment['REQUEST_METHOD']} {environment['PATH_INFO']}")
        return application(environment, respond)

    class Handler(WSGIRequestHandler):
        def log(self, *_: object) -> None:
            """Say nothing: `requests` has it."""

    server = make_server("127.0.0.1", 0, noted, threaded=True, request_handler=Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.port}", requests
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def s3(s3_server: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Bucket]:
    """A new bucket; this process and its children find its server and the credentials where they find real ones."""
    import s3fs

    endpoint, requests = s3_server
    settings = {"ACCESS_KEY_ID": "AKIATESTTESTTESTTEST", "SECRET_ACCESS_KEY": "secret/of+the-tests", "DEFAULT_REGION": "us-east-1"}
    nowhere = {
        "CONFIG_FILE": str(tmp_path / "none"),
        "SHARED_CREDENTIALS_FILE": str(tmp_path / "none"),
        "EC2_METADATA_DISABLED": "true",
    }
    for name, value in {**settings, **nowhere, "ENDPOINT_URL": endpoint}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    s3fs.S3FileSystem.clear_instance_cache()
    yield Bucket(endpoint, requests)
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.fixture(autouse=True)
def children_as_before() -> Iterator[None]:
    """Take back the handler that torch's loaders with workers leave for children's ends.

    Ray leaves the process a signal stack that is gone: the end of any later child would end the tests.
    """
    before = signal.getsignal(signal.SIGCHLD)
    yield
    if signal.getsignal(signal.SIGCHLD) is not before:
        signal.signal(signal.SIGCHLD, before)
