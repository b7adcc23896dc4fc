"""A toy step on a real store: it makes one artifact and notes every build in a file, so that tests can count them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from zephon_core.fingerprint import fingerprint
from zephon_core.store import ArtifactRef, ArtifactStore, Recipe


def toy_recipe(text: str) -> Recipe:
    return Recipe("toy", fingerprint("toy", 1, text=text), {}, {"text": text})


def build_toy(root: str, text: str, *, force: bool = False) -> ArtifactRef:
    """Make the toy artifact of `text`; while a file `hold` stands in the root, a build goes on."""

    def produce(directory: Path) -> dict[str, Any]:
        with (Path(root) / "builds.log").open("a") as log:
            log.write(f"{text}\n")
        while (Path(root) / "hold").exists():
            time.sleep(0.02)
        (directory / "data.bin").write_bytes(text.encode() * 100)
        return {"bytes": len(text) * 100}

    return ArtifactStore(root).build(toy_recipe(text), produce, force=force).ref
