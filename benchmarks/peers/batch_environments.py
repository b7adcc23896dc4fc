"""Make an environment for each of the peers that batch by tokens: `python batch_environments.py [FOLDER]`.

One virtual environment a peer, in FOLDER or else the user's cache; what is there is left alone. fairseq itself doesn't install on
Python 3.11: its Cython module data_utils_fast.pyx, which holds batch_by_size, is compiled by itself from its source package.
Prints JSON: the interpreter of each peer, and of one that can't be made here the reason.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import venv
from pathlib import Path

PACKAGES = {
    "fairseq": ["numpy", "cython", "setuptools<80", "wheel"],
    "lhotse": ["numpy", "torch==2.13.0", "lhotse==1.33.0", "urllib3"],
    "torchdata": ["numpy", "torch==2.13.0", "torchdata==0.11.0"],
    "loop": ["numpy"],
}
FAIRSEQ = "fairseq==0.12.2"
SETUP = """
import numpy
from Cython.Build import cythonize
from setuptools import Extension, setup
module = Extension("data_utils_fast", ["data_utils_fast.pyx"], include_dirs=[numpy.get_include()], language="c++")
setup(name="data_utils_fast", py_modules=[], ext_modules=cythonize([module]))
"""


def environments(folder: Path | None = None) -> dict[str, str]:
    """Return the interpreter of each peer, or why there is none ("!" and the reason)."""
    if folder is None:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "zephon-flows" / "batch-peers"
    return {name: _made(folder / name, name) for name in PACKAGES}


def _made(folder: Path, name: str) -> str:
    python, done = folder / "bin" / "python", folder / "done"
    if not done.exists():
        print(f"making the environment of {name} in {folder}", file=sys.stderr, flush=True)
        venv.create(folder, with_pip=True, clear=True)
        try:
            _run(python, "-m", "pip", "install", "--quiet", *PACKAGES[name])
            if name == "fairseq":
                _compile_fairseq(folder, python)
        except (subprocess.CalledProcessError, OSError) as error:
            return f"!{error}"
        done.touch()
    return str(python)


def _compile_fairseq(folder: Path, python: Path) -> None:
    source = folder / "source"
    options = ("--quiet", "--no-deps", "--no-binary", ":all:", "--no-build-isolation", "--dest")
    _run(python, "-m", "pip", "download", *options, str(source), FAIRSEQ)
    (archive,) = source.glob("fairseq-*.tar.gz")
    with tarfile.open(archive) as files:
        for member in files.getmembers():
            if member.name.endswith("/data_utils_fast.pyx"):
                member.name = "data_utils_fast.pyx"
                files.extract(member, source, filter="data")
    (source / "setup.py").write_text(SETUP)
    _run(python, "setup.py", "--quiet", "build_ext", "--build-lib", _site_packages(python), cwd=source)


def _site_packages(python: Path) -> str:
    code = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    return subprocess.run([str(python), "-c", code], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def _run(*command: str | Path, cwd: Path | None = None) -> None:
    subprocess.run([str(part) for part in command], check=True, stdout=sys.stderr, cwd=cwd)


if __name__ == "__main__":
    print(json.dumps(environments(Path(sys.argv[1]) if len(sys.argv) > 1 else None), indent=2))
