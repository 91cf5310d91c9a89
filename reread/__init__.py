"""reread: distributed pretraining of encoders that read long documents, Chinese and English."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("reread")
except PackageNotFoundError:  # run from its folders, not installed
    __version__ = "0+unknown"
