"""The suite that transformers runs on each of its models, from its source distribution."""

import importlib
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from types import ModuleType

import transformers

FOLDER = Path(sys.prefix) / "transformers-suite"
STUBS = {"exporters/test_export.py": "ExportTesterMixin", "generation/test_utils.py": "GenerationTesterMixin"}
"""Files that the suite imports -> the mixin that is empty here: our models neither generate nor export to ONNX."""


def common() -> ModuleType:
    """`tests/test_modeling_common.py` of the transformers that is installed; pip downloads it if it is not there."""
    package = f"transformers_{transformers.__version__.replace('.', '_')}"
    if not (FOLDER / package / "test_modeling_common.py").exists():
        _download(FOLDER / package)
    sys.path.append(str(FOLDER))
    return importlib.import_module(f"{package}.test_modeling_common")


def _download(package: Path) -> None:
    """Write the suite as a package of its own, and beside it the one library that it needs and we do not."""
    pip = [sys.executable, "-m", "pip"]
    quiet = ["--quiet", "--disable-pip-version-check"]
    with tempfile.TemporaryDirectory() as folder:
        release = f"transformers=={transformers.__version__}"
        command = [*pip, "download", *quiet, "--no-binary", ":all:", "--no-deps", "--dest", folder, release]
        subprocess.run(command, check=True)
        (archive,) = Path(folder).glob("*.tar.gz")
        with tarfile.open(archive) as tar:
            names = [name for name in tar.getnames() if name.endswith("/tests/test_modeling_common.py")]
            file = tar.extractfile(names[0]) if names else None
            if file is None:
                sys.exit(f"the source distribution of {release} holds no tests; install a later transformers")
            text = file.read()
    subprocess.run(
        [*pip, "install", *quiet, "--no-deps", "--upgrade", "--target", str(FOLDER), "parameterized"], check=True
    )
    for path, mixin in STUBS.items():
        stub = package / path
        stub.parent.mkdir(parents=True, exist_ok=True)
        stub.write_text(f"class {mixin}:\n    pass\n", encoding="utf-8")
    (package / "test_modeling_common.py").write_bytes(text)
