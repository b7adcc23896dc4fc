from __future__ import annotations

import os
import subprocess
import sys

CHECK = """
import hashlib
import numpy as np
from zephon_core.bank.scan.sha1 import hash_texts
data = np.frombuffer(hashlib.shake_128(b"text").digest(5000), np.uint8).copy()
lengths = np.array([*range(300), 1000, 4000])
starts = np.arange(len(lengths))
digests = np.empty((len(lengths), 20), np.uint8)
hash_texts(data, starts, lengths, digests)
for start, length, digest in zip(starts, lengths, digests):
    assert digest.tobytes() == hashlib.sha1(data[start : start + length]).digest(), length
"""


def test_digests_of_all_lengths_around_block_ends():
    exec(CHECK, {})


def test_cpus_without_sha_instructions_get_the_same():
    """Compile for the plainest CPU of this architecture; the machine code of another CPU is never loaded in its place."""
    environment = os.environ | {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
    subprocess.run([sys.executable, "-c", CHECK], env=environment, check=True, timeout=120)
