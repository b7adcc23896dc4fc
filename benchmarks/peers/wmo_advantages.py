"""The advantage step of the PyPI package world-model-optimizer: `python wmo_advantages.py FOLDER`, where it is with tokenizers.

FOLDER/cases.jsonl holds a datum, its plan and the teacher's row in each line, FOLDER/settings.json the clips and centrings to try,
FOLDER/student.json and teacher.json the tokenizers. Writes FOLDER/peer-N.npy, the advantages of the datums it kept, end to end,
for setting N; prints JSON: for each setting its stats, the names it kept and processor seconds; and those that its token byte
offsets take on both sides, which is the part of planning that its releases hold.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import tokenizers
from wmo.optimize.model.data import TrainDatum
from wmo.optimize.model.xtoken.byte_offsets import span_byte_ends
from wmo.optimize.model.xtoken.chunks import ChunkPlan, attach_chunk_advantages


class Adapter:
    """A tokenizer as the package wants it."""

    def __init__(self, file: Path) -> None:
        self._tokenizer = tokenizers.Tokenizer.from_file(str(file))

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str | None]:
        """Name each id's token."""
        return [self._tokenizer.id_to_token(number) for number in ids]

    def decode(self, ids: list[int]) -> str:
        """Decode ids to text."""
        text: str = self._tokenizer.decode(ids, skip_special_tokens=False)
        return text


def main(folder: Path) -> None:
    """Run the settings and print what came out."""
    logging.disable(logging.CRITICAL)
    cases = [json.loads(line) for line in (folder / "cases.jsonl").read_text().splitlines()]
    datums = [TrainDatum(**{**case["datum"], "advantages": []}) for case in cases]
    plans = [ChunkPlan(**case["plan"]) for case in cases]
    rows = [case["row"] for case in cases]
    results: list[dict[str, Any]] = []
    for number, setting in enumerate(json.loads((folder / "settings.json").read_text())):
        train = SimpleNamespace(advantage_clip=setting["clip"], center_advantages=setting["center"])
        started = time.process_time()
        attached, stats = attach_chunk_advantages(datums, plans, rows, SimpleNamespace(train=train))
        seconds = time.process_time() - started
        np.save(folder / f"peer-{number}.npy", np.array([value for datum in attached for value in datum.advantages]))
        names = [datum.trial_name for datum in attached]
        results.append({"stats": stats.model_dump() | {"coverage_rate": stats.coverage_rate}, "kept": names, "seconds": seconds})
    student, teacher = Adapter(folder / "student.json"), Adapter(folder / "teacher.json")
    started = time.process_time()
    whole = 0
    for case in cases:
        whole += span_byte_ends(student, case["datum"]["model_input_tokens"]) is not None
        whole += span_byte_ends(teacher, case["teacher_ids"]) is not None
    print(json.dumps({"settings": results, "offsets_s": time.process_time() - started, "offsets_of": whole}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
