"""What a local Hugging Face folder holds, read from config.json and the headers of its safetensors files: no weight is loaded."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from zephon_core.errors import ModelError

__all__ = ["ModelFolder", "SentenceModules", "TensorFacts", "read_model_folder"]

_LONGEST_HEADER_BYTES = 100 << 20
_PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "model.pt", "model.pth")
_POOLING_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_DTYPE_BITS = {"F64": 64, "F32": 32, "F16": 16, "BF16": 16, "I64": 64, "I32": 32, "I16": 16, "I8": 8, "U8": 8, "BOOL": 8}


@dataclass(frozen=True)
class TensorFacts:
    """One tensor of a checkpoint: the file it is in, its type as safetensors names it, its shape."""

    file: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        """How many numbers the tensor holds."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class SentenceModules:
    """What modules.json of a sentence-transformers folder says comes after the transformer.

    pooling: modes, concatenated in order; normalize: whether vectors are scaled to length 1; unknown: modules that this library
    doesn't run, as "Dense (2_Dense)".
    """

    pooling: tuple[str, ...] = ()
    normalize: bool = False
    unknown: tuple[str, ...] = ()
    files: tuple[str, ...] = ()


@dataclass(frozen=True)
class ModelFolder:
    """A model's folder, described.

    path: where config.json and the weights lie; root: the folder that was named (the same, but for old sentence-transformers
    layouts); tensors: by name; modules: what modules.json asks for.
    """

    root: Path
    path: Path
    config: Mapping[str, Any]
    tensors: Mapping[str, TensorFacts]
    modules: SentenceModules

    @property
    def model_type(self) -> str:
        """The architecture's name in config.json, for example "bert"."""
        return str(self.config.get("model_type", ""))

    @property
    def architecture(self) -> str:
        """The class that saved the folder, for example "Qwen3ForCausalLM"."""
        names = self.config.get("architectures") or [""]
        return str(names[0])

    @cached_property
    def text_config(self) -> Mapping[str, Any]:
        """The part of config.json that describes the text transformer."""
        nested = self.config.get("text_config")
        return nested if isinstance(nested, dict) else self.config

    @property
    def hidden_size(self) -> int:
        """The width of a token vector. Raises ModelError if config.json doesn't say."""
        for name in ("hidden_size", "d_model", "n_embd", "dim"):
            if isinstance(value := self.text_config.get(name), int):
                return value
        raise ModelError(str(self.path / "config.json"), "names no hidden size", remedy="Use a transformer's folder.")

    @property
    def layer_count(self) -> int:
        """How many transformer layers there are; 0 if config.json doesn't say."""
        for name in ("num_hidden_layers", "n_layer", "n_layers", "num_layers"):
            if isinstance(value := self.text_config.get(name), int):
                return value
        return 0

    @property
    def vocabulary_size(self) -> int:
        """How many token ids the model knows; 0 if config.json doesn't say."""
        value = self.text_config.get("vocab_size")
        return value if isinstance(value, int) else 0

    @cached_property
    def longest_text(self) -> int:
        """The most tokens a text may have, where learnt position vectors bound it; 0 where nothing does."""
        for name, facts in self.tensors.items():
            if name.endswith(("position_embeddings.weight", "wpe.weight")) and len(facts.shape) == 2:
                padding = self.config.get("pad_token_id")
                reserved = (padding if isinstance(padding, int) else 0) + 1 if self.model_type in OFFSET_POSITIONS else 0
                return facts.shape[0] - reserved
        return 0

    @cached_property
    def parameter_count(self) -> int:
        """How many numbers the checkpoint holds."""
        return sum(facts.elements for facts in self.tensors.values())

    @cached_property
    def matrix_parameters(self) -> int:
        """How many weights are multiplied with every token: all matrices but embedding tables and LM heads."""
        tables = ("embed", "wte.", "wpe.", "lm_head", "predictions", "pooler", "shared.weight")
        return sum(
            facts.elements
            for name, facts in self.tensors.items()
            if len(facts.shape) >= 2 and not any(table in name for table in tables)
        )

    @cached_property
    def weight_bytes(self) -> int:
        """Bytes of all tensors as stored."""
        return sum(facts.elements * _DTYPE_BITS.get(facts.dtype, 8) // 8 for facts in self.tensors.values())

    @cached_property
    def weight_files(self) -> tuple[str, ...]:
        """The safetensors files that hold the tensors, by name, sorted."""
        return tuple(sorted({facts.file for facts in self.tensors.values()}))

    def forward_flops(self, length: int) -> int:
        """Floating-point operations for one token of a text of `length` tokens: two a weight, and attention's two products."""
        return 2 * self.matrix_parameters + 4 * length * self.hidden_size * self.layer_count


OFFSET_POSITIONS = ("roberta", "xlm-roberta", "camembert")


def read_model_folder(path: str | Path) -> ModelFolder:
    """Describe the model in the local folder `path`.

    Raises ModelError where there is no folder, no config.json, no safetensors (pickle weights are refused), or a broken header.
    """
    root = Path(path).expanduser()
    if not root.is_dir():
        found = "is a file" if root.exists() else "does not exist"
        raise ModelError(
            str(root), found, wanted="a local Hugging Face folder", remedy="Download the model first, and name its folder."
        )
    modules, folder = _sentence_modules(root)
    config = _read_json(folder / "config.json")
    tensors: dict[str, TensorFacts] = {}
    for name in _weight_files(folder):
        tensors |= _read_header(folder / name)
    return ModelFolder(root=root, path=folder, config=config, tensors=tensors, modules=modules)


def _weight_files(folder: Path) -> list[str]:
    index = folder / "model.safetensors.index.json"
    if index.exists():
        shards = _read_json(index).get("weight_map")
        if not isinstance(shards, dict) or not shards:
            raise ModelError(str(index), "has no weight_map", remedy="Download the model again.")
        names = sorted(set(map(str, shards.values())))
        for name in names:
            if Path(name).name != name or not (folder / name).is_file():
                raise ModelError(str(folder / name), "is missing, and the index names it", remedy="Download it again.")
        return names
    if (folder / "model.safetensors").is_file():
        return ["model.safetensors"]
    if pickles := [name for name in _PICKLES if (folder / name).exists()] or sorted(p.name for p in folder.glob("*.bin")):
        raise ModelError(
            str(folder),
            f"holds pickle weights only ({pickles[0]}), which can run code when they are loaded",
            wanted="model.safetensors",
            remedy="Save it anew with `model.save_pretrained(folder)` where you trust the file.",
        )
    raise ModelError(str(folder), "holds no weights", wanted="model.safetensors", remedy="Name the model's folder.")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ModelError(str(path), "is missing", remedy="Name a Hugging Face model's folder.") from None
    except (OSError, ValueError) as error:
        raise ModelError(str(path), f"can't be read ({error})", remedy="Download the model again.") from error
    if not isinstance(value, dict):
        raise ModelError(str(path), "is no JSON object", remedy="Download the model again.")
    return value


def _read_header(path: Path) -> dict[str, TensorFacts]:
    """Read the names, types and shapes of a safetensors file: eight bytes of length, then JSON."""
    broken = "is cut short or no safetensors file"
    try:
        with path.open("rb") as handle:
            prefix = handle.read(8)
            size = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
            if not 0 < size <= _LONGEST_HEADER_BYTES:
                raise ModelError(str(path), broken, remedy="Download the model again.")
            header = json.loads(handle.read(size))
        tensors = {
            name: TensorFacts(path.name, str(facts["dtype"]), tuple(int(n) for n in facts["shape"]))
            for name, facts in header.items()
            if name != "__metadata__"
        }
        end = max((int(facts["data_offsets"][1]) for name, facts in header.items() if name != "__metadata__"), default=0)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(str(path), f"{broken} ({error})", remedy="Download the model again.") from error
    if path.stat().st_size != 8 + size + end:
        raise ModelError(
            str(path), f"has {path.stat().st_size:,} bytes", wanted=f"{8 + size + end:,}", remedy="Download the model again."
        )
    return tensors


def _sentence_modules(root: Path) -> tuple[SentenceModules, Path]:
    """Read modules.json, if there is one, and find the transformer's own folder."""
    listing = root / "modules.json"
    if not listing.exists():
        return SentenceModules(), root
    try:
        entries = json.loads(listing.read_bytes())
        steps = [(str(entry["type"]).rsplit(".", 1)[-1], str(entry.get("path", ""))) for entry in entries]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(str(listing), f"can't be read ({error})", remedy="Download the model again.") from error
    folder, normalize = root, False
    pooling: tuple[str, ...] = ()
    unknown, files = [], ["modules.json"]
    for place, (kind, subfolder) in enumerate(steps):
        if kind == "Transformer" and place == 0:
            folder = root / subfolder
        elif kind == "Pooling" and not pooling:
            name = f"{subfolder}/config.json" if subfolder else "config.json"
            pooling = _pooling_modes(_read_json(root / name), root / name)
            files.append(name)
        elif kind == "Normalize":
            normalize = True
        elif kind != "Dropout":
            unknown.append(f"{kind} ({subfolder})" if subfolder else kind)
    return SentenceModules(pooling, normalize, tuple(unknown), tuple(files)), folder


def _pooling_modes(config: Mapping[str, Any], path: Path) -> tuple[str, ...]:
    named = config.get("pooling_mode")
    flagged = [mode for flag, mode in _POOLING_FLAGS.items() if config.get(flag)]
    modes = [named] if isinstance(named, str) else list(named or flagged)
    for mode in modes:
        if mode not in _POOLING_FLAGS.values():
            raise ModelError(str(path), f"asks for pooling {mode!r}", wanted=", ".join(_POOLING_FLAGS.values()))
    return tuple(modes) or ("mean",)
