"""Write a prepared JSONL set at each place of an export for Megatron-Energon, draw from it, and print how often each came, as JSON.

draw_energon.py FILE SAMPLES
"""

from __future__ import annotations

import itertools
import json
import sys
from collections import Counter
from pathlib import Path

import yaml
from megatron.energon import Cooker, DefaultTaskEncoder, TextSample, WorkerConfig, basic_sample_keys, get_train_dataset, stateless
from megatron.energon.epathlib import EPath
from megatron.energon.flavors.jsonl.jsonl_prepare import JsonlPreparator


@stateless
def cook(sample: dict) -> TextSample:
    return TextSample(**basic_sample_keys(sample), text=sample["json"]["text"])


class TaskEncoder(DefaultTaskEncoder):
    cookers = [Cooker(cook)]  # noqa: RUF012 - as the package has it


for entry in yaml.safe_load(Path(sys.argv[1]).read_text())["splits"]["train"]["blend"]:
    place = EPath(entry["path"])
    with place.open("w") as file:
        file.writelines(json.dumps({"text": place.name}) + "\n" for _ in range(50))
    JsonlPreparator.prepare_dataset(place)
dataset = get_train_dataset(
    sys.argv[1],
    worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0),
    batch_size=None,
    shuffle_buffer_size=None,
    max_samples_per_sequence=None,
    task_encoder=TaskEncoder(),
)
dataset.worker_config.worker_activate(sample_index=0)
sys.stdout.write(json.dumps(Counter(sample.text for sample in itertools.islice(dataset, int(sys.argv[2])))) + "\n")
