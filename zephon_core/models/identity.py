"""What a model is by content: equal digests, equal features (in equal arithmetic)."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from pathlib import Path

from zephon_core.errors import ModelError
from zephon_core.fingerprint import file_sha256
from zephon_core.models.folder import ModelFolder, read_model_folder
from zephon_core.models.plugins import is_plugin, load_plugin, resolve_factory
from zephon_core.models.spec import ModelSpec

__all__ = ["model_content_sha256"]


def model_content_sha256(model: ModelSpec | str | Path, *, hash_file: Callable[[Path], str] = file_sha256) -> str:
    """Return the SHA-256 (64 hex digits) of all of a model's files that decide its features.

    For a folder: config.json, the safetensors files, modules.json and the modules' own configuration, and the Python files
    where remote code is allowed. Neither the tokenizer nor the folder's path counts. For a `package.module:factory`: the
    `content_sha256` that the factory or its object carries, else the source of the module.
    hash_file: returns a file's SHA-256; large files are worth remembering between runs.
    Raises ModelError for what can't be read.
    """
    spec = model if isinstance(model, ModelSpec) else ModelSpec(path=str(model))
    if is_plugin(spec.path):
        return _plugin_sha256(spec.path, hash_file)
    folder = read_model_folder(spec.path)
    state = hashlib.sha256(b"model folder 1\n")
    for name, path in sorted(_deciding_files(folder, remote_code=bool(spec.remote_code)).items()):
        state.update(f"{name} {hash_file(path)}\n".encode())
    return state.hexdigest()


def _deciding_files(folder: ModelFolder, *, remote_code: bool) -> dict[str, Path]:
    own = ["config.json", *folder.weight_files]
    if remote_code:
        own += [path.relative_to(folder.path).as_posix() for path in folder.path.rglob("*.py")]
    files = {f"transformer/{name}": folder.path / name for name in own}
    return files | {f"modules/{name}": folder.root / name for name in folder.modules.files}


def _plugin_sha256(path: str, hash_file: Callable[[Path], str]) -> str:
    factory = resolve_factory(path)
    digest = getattr(factory, "content_sha256", None)
    if digest is None:
        digest = load_plugin(path).content_sha256
    if callable(digest):
        digest = digest()
    if digest is None:
        source = inspect.getsourcefile(inspect.unwrap(factory)) if inspect.isroutine(factory) or inspect.isclass(factory) else None
        if source is None:
            raise ModelError(
                path,
                "has no source file and no content_sha256",
                remedy="Give the factory an attribute content_sha256: a text that changes whenever the features do.",
            )
        digest = f"source {hash_file(Path(source))}"
    return hashlib.sha256(f"plugin 1\n{path}\n{digest}\n".encode()).hexdigest()
