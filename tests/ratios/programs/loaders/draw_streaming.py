"""Write an MDS set at each place of an export for MosaicML Streaming, draw from it, and print how often each came, as JSON.

draw_streaming.py FILE SAMPLES
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType

import yaml

# The package's front imports its image datasets, and with them torchvision; what draws is in streaming.base.
front = ModuleType("streaming")
front.__path__ = list(PathFinder.find_spec("streaming").submodule_search_locations)
sys.modules["streaming"] = front

from streaming.base import MDSWriter, Stream, StreamingDataset  # noqa: E402

streams = yaml.safe_load(Path(sys.argv[1]).read_text())["streams"]
for name, arguments in streams.items():
    with MDSWriter(out=arguments["local"], columns={"name": "str"}) as writer:
        for _ in range(50):
            writer.write({"name": name})
dataset = StreamingDataset(
    streams=[Stream(**arguments) for arguments in streams.values()], epoch_size=int(sys.argv[2]), batch_size=1
)
sys.stdout.write(json.dumps(Counter(row["name"] for row in dataset)) + "\n")
