"""The version of this package, which pyproject.toml alone says."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("jaxattn")
except PackageNotFoundError:  # the sources are on the path without being installed
    __version__ = "0+uninstalled"
