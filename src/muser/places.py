"""Where Muser keeps files of its own: models, compiled libraries, packed weights, records.

`MUSER_HOME` names one folder for all of it; without it the platform's cache folder is used for
what can be made again, and its data folder for records. Nothing is created by asking for a place.
"""

import os
from pathlib import Path


def home() -> Path:
    """The folder that holds the others: `MUSER_HOME`, else the platform's cache folder."""
    named = os.environ.get("MUSER_HOME")
    if named:
        try:
            return Path(named).expanduser().absolute()
        except RuntimeError:  # `~name` of nobody is a folder of that name, as in a shell
            return Path(named).absolute()
    from platformdirs import user_cache_path

    return user_cache_path("muser", appauthor=False)


def models() -> Path:
    """Fetched model files, each under the name that its catalogue entry gives."""
    return home() / "models"


def libraries() -> Path:
    """Compiled kernel libraries, named by their keys."""
    return home() / "libraries"


def records() -> Path:
    """Records of measurements, which cannot be made again."""
    if os.environ.get("MUSER_HOME"):
        return home() / "records"
    from platformdirs import user_data_path

    return user_data_path("muser", appauthor=False) / "records"


def packed() -> Path:
    """Weights turned for this processor's kernels, named by their keys."""
    return home() / "packed"
