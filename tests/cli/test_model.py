"""`muser model list` and `muser model show`."""

import json
from pathlib import Path

import numpy as np
import pytest
from outcome import Command

from muser.formats.gguf_writer import write_gguf
