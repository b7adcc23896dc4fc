"""What saved states travel in: each turns a state into what arrives at the other end."""

from __future__ import annotations

import json
import pickle
from io import BytesIO
from typing import Any

import pytest


def through_msgpack(state: Any) -> Any:
    msgpack = pytest.importorskip("msgpack")
    return msgpack.unpackb(msgpack.packb(state))


def through_torch(state: Any) -> Any:
    torch = pytest.importorskip("torch")
    file = BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


CARRIERS = {
    "json": lambda state: json.loads(json.dumps(state)),
    "json text": json.dumps,
    "json bytes": lambda state: json.dumps(state).encode(),
    "msgpack": through_msgpack,
    "pickle": lambda state: pickle.loads(pickle.dumps(state)),
    "torch": through_torch,
}
