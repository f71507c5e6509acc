"""Packed weights: a mapped file made once for a model file, or memory where nothing can be kept.

`packed_file.py` says what stands in the file. It is used if it is what was put there, and made
again otherwise, by one process at a time (`kept.py`).
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from muser.kernels import Library, zeros
from muser.kernels.shelf import PATIENCE_SECONDS
from muser.kernels.trust import DistrustError, check_folder
from muser.locking import held, seen
from muser.weights.kept import Kept, Mapped, PackSource
from muser.weights.packed_file import UNFINISHED, Packed, Plan, about
from muser.weights.panels import Packer, Panels, TensorSource

__all__ = ["Mapped", "PackSource", "Packed", "alone", "pack"]

log = logging.getLogger("muser.weights")
LOCK = ".lock"
KEPT_FROM = 8 << 20  # bytes: what is smaller is packed into memory at each load


def pack(
    library: Library,
    source: PackSource,
    names: Sequence[str],
    folder: Path,
    threads: int,
    mapped: Mapped | None = None,
) -> Packed:
    """The tensors `names` in panels, uint8; from `folder` if they were packed there before.

    What is made says so in the log: its size, and how much memory that takes meanwhile. Raises
    `FormatError` if the model file changes meanwhile.
    """
    packer = Packer(library)
    panels = tuple(packer.layout(source.tensor(name)) for name in dict.fromkeys(names))
    origin = source.origin
    if origin is None or sum(each.size for each in panels) < KEPT_FROM:
        return _in_memory(packer, source, panels, threads)
    plan = Plan.of(panels, about(origin.opened))
    path = folder / f"{plan.key}.packed"
    try:
        return _from_folder(Kept(path, packer, source, origin, plan, threads, mapped))
    except DistrustError as problem:
        reason = f"{folder} {problem}, so nothing in it is used"
    except OSError as error:
        reason = f"{folder} cannot take the packed weights ({error.strerror or error})"
    log.warning("%s; %.0f MB of memory hold them, at each load.", reason, plan.size / 1e6)
    return _in_memory(packer, source, panels, threads)


def _from_folder(kept: Kept) -> Packed:
    """Raises `DistrustError` and `OSError` for a folder that cannot be used."""
    folder = kept.path.parent
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_folder(folder)
    before = seen(kept.path)
    found = kept.find()
    if found is not None:
        return found
    with alone(folder) as is_alone:
        if is_alone:
            _sweep(folder)
        # Another process may have made it meanwhile; what was refused is not looked at twice.
        found = kept.find() if seen(kept.path) != before else None
        return found or kept.make()


@contextmanager
def alone(folder: Path) -> Iterator[bool]:
    """One process at a time packs or clears. False where there are no locks: then renaming keeps
    files whole."""

    def wait(holder: str) -> None:
        log.info("Waiting for %s, which packs weights into %s.", holder, folder)

    with ExitStack() as stack:
        try:
            stack.enter_context(held(folder / LOCK, wait, PATIENCE_SECONDS))
        except OSError:
            log.debug("%s has no locks.", folder)
            yield False
        else:
            yield True


def _sweep(folder: Path) -> None:
    """Removes unfinished files. Who wrote them has ended: the lock went with it."""
    for path in folder.iterdir():
        if UNFINISHED.fullmatch(path.name):
            path.unlink()


def _in_memory(
    packer: Packer, source: TensorSource, panels: tuple[Panels, ...], threads: int
) -> Packed:
    def whole(each: Panels) -> NDArray[np.uint8]:
        out, at = zeros(each.size, np.uint8), 0
        for piece in packer.pieces(source, each):
            out[at : at + piece.size] = piece
            at += piece.size
        return out

    from concurrent.futures import ThreadPoolExecutor  # costly import, needed by few

    with ThreadPoolExecutor(threads) as pool:
        return MappingProxyType(
            dict(zip((each.name for each in panels), pool.map(whole, panels), strict=True))
        )
