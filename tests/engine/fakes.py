"""A runner whose logits follow from the tokens it was shown, and a tokenizer of bytes."""

import hashlib

import numpy as np

from muser.devices import Limits
from muser.errors import Cancelled

VOCABULARY = 260  # 256 bytes, then special tokens
STOP = 257


class ByteTokenizer:
    stop_ids = frozenset({STOP})
    size = VOCABULARY

    def encode(self, text, *, special=False, bos=None):
        return list(text.encode())

    def text_bytes(self, token, *, special=False):
        return bytes([token]) if token < 256 else b""


class FakeRunner:
    """Logits of a row depend on every token before it; or `script` says what comes next."""

    def __init__(self, context=64, chunk=16, script=None):
        self.labels = {"F32": ("fake",)}
        self.libraries = {"fake": "00"}
        self.limits = Limits(context=context, slots=1, chunk=chunk)
        self.steps = []
        self.closed = False
        self.on_step = lambda: None
        self._script = script
        self._held = []
        self._stop = False

    def forward(self, step):
        self.on_step()
        if self._stop:
            raise Cancelled("Stopped.", "Start again.")
        self.steps.append(len(step.tokens))
        del self._held[int(step.positions[0]) :]
        self._held.extend(step.tokens.tolist())
        first = int(step.positions[0])
        if not len(step.outputs):
            return np.empty((0, VOCABULARY), np.float32)
        return np.stack([self._logits(first + row) for row in step.outputs])

    def choose(self, step):
        return self.forward(step).argmax(axis=1).astype(np.int32)

    def _logits(self, position):
        if self._script is not None:
            row = np.zeros(VOCABULARY, np.float32)
            row[self._script(self._held[: position + 1])] = 9
            return row
        seed = hashlib.sha256(repr(self._held[: position + 1]).encode()).digest()
        return np.random.default_rng(list(seed)).standard_normal(VOCABULARY).astype(np.float32)

    def cancel(self):
        self._stop = True

    def resume(self):
        self._stop = False

    def close(self):
        self.closed = True


def writing(text, prompt, end=STOP):
    """A script: after `prompt` tokens the model writes `text`, then `end`."""
    wanted = [*text.encode(), end]
    return lambda held: wanted[min(len(held) - prompt, len(wanted) - 1)]
