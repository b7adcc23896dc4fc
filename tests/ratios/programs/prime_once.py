"""Prime one data set in a process of its own: `prime_once.py FOLDER STORE`; prints the ratio and whether it was measured here.

With $NO_ROOM set, no file can be written any more once the data set is open, as on a full disk.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from pathlib import Path

import ratio_inputs

from zephon_core.ratios.datasets import Dataset
from zephon_core.ratios.documents import RatioDocuments
from zephon_core.ratios.estimation import TokenEstimation
from zephon_core.ratios.measuring import Measuring
from zephon_core.store import ArtifactStore


def main() -> None:
    folder, root = Path(sys.argv[1]), sys.argv[2]
    store = ArtifactStore(root)
    dataset = Dataset.from_path(folder.name, str(folder), store=store)
    if os.environ.get("NO_ROOM"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    measuring = Measuring(TokenEstimation(measure=ratio_inputs.count_words), None)
    outcome = measuring.once(dataset, RatioDocuments(store))
    ratio = outcome.document.ratio
    found = {"ratio": ratio.tokens_per_byte, "source": ratio.source, "cached": outcome.cached, "stored": outcome.stored}
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
