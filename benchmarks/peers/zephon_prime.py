"""The PyPI package zephon's priming at its defaults, files and all: `python zephon_prime.py TOKENIZER_FOLDER NAME=PATH ...`.

Runs in an environment with zephon and transformers. Prints JSON: the ratios and the seconds of the whole call, worker processes
included, after the imports. Whatever the cache that it is given, zephon keeps what it measured in the folder for temporary files,
too: it gets one of its own, or it would only look up what an earlier run found.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time


def main() -> None:
    folder, *pairs = sys.argv[1:]
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TMPDIR"] = tempfile.tempdir = cache
        from zephon._internal.token_counting import TextTokenCountingSpec
        from zephon.io.dataset import Dataset
        from zephon.io.options import CacheOptions, StoreOptions
        from zephon.work.token_estimation import TokenEstimation, prime_token_ratios

        started = time.perf_counter()
        datasets = [Dataset.from_path(name, path) for name, _, path in (pair.partition("=") for pair in pairs)]
        ratios = prime_token_ratios(
            datasets=datasets,
            dataset_ids={dataset.name: number for number, dataset in enumerate(datasets)},
            estimation=TokenEstimation(),
            counting_spec=TextTokenCountingSpec(tokenizer_id=folder, field="text"),
            io_options=StoreOptions(cache=CacheOptions(root=cache)),
        )
        seconds = time.perf_counter() - started
    result = {name: [ratio.tokens_per_byte, ratio.source] for name, ratio in ratios.items()}
    json.dump({"ratios": result, "seconds": seconds}, sys.stdout)


if __name__ == "__main__":
    main()
