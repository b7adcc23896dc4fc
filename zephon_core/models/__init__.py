"""Frozen transformers: what one is, what its content is, and how it turns blocks of token ids into float32 features.

`ModelSpec` names a model and its arithmetic; `model_content_sha256` says what is in it; `read_model_folder` describes a local
folder without loading it; `load_encoder` loads it. An encoder takes blocks of equally long rows and returns one vector a row.
`WorkerPool` runs encoders (or anything else) in processes of one thread each.
"""

from __future__ import annotations

from zephon_core.models.encoder import Encoder, EncoderOptions, load_encoder
from zephon_core.models.folder import ModelFolder, read_model_folder
from zephon_core.models.identity import model_content_sha256
from zephon_core.models.pool import WorkerPool
from zephon_core.models.spec import Engine, ModelSpec, Precision, Quantization

__all__ = [
    "Encoder",
    "EncoderOptions",
    "Engine",
    "ModelFolder",
    "ModelSpec",
    "Precision",
    "Quantization",
    "WorkerPool",
    "load_encoder",
    "model_content_sha256",
    "read_model_folder",
]
