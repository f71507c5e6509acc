"""`muser model show`: what a file says about itself; no weights are read."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from math import isfinite
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from muser.cli.console import one_line, speaks_utf8
from muser.cli.progress import obtained

if TYPE_CHECKING:
    from muser.formats import GgufFile

TOKENIZER = "tokenizer."
WIDEST = 80
MOST_VALUES = 8


def show(
    model: Annotated[str, Parameter(help="A catalogue name or the path of a GGUF file.")],
    *,
    json: Annotated[
        bool, Parameter(help="Print one JSON record.", negative=(), show_default=False)
    ] = False,
) -> None:
    """Show a model's architecture, hyperparameters, tokenizer and tensor census."""
    from muser.formats import GgufFile

    with GgufFile.open(obtained(model)) as file:
        record = described(file)
    if json:
        import json as codec

        print(codec.dumps(record, ensure_ascii=not speaks_utf8()))
        return
    print("\n\n".join("\n".join(_section(title, body)) for title, body in record.items()))


def described(file: "GgufFile") -> dict[str, dict[str, Any]]:
    """The file's facts by section, in the order in which they are shown."""
    architecture = file.metadata.get("general.architecture")
    own = f"{architecture}."
    return {
        "file": {
            "path": str(file.path),
            "bytes": file.size,
            "gguf version": file.version,
            "architecture": _brief(architecture),
            "name": _brief(file.metadata.get("general.name")),
            "supported": _supported(file),
        },
        "hyperparameters": {
            key.removeprefix(own): _brief(_shortest(file.metadata, key))
            for key in file.metadata
            if key.startswith(own)
        },
        "tokenizer": {
            key.removeprefix(TOKENIZER): _brief(_shortest(file.metadata, key))
            for key in file.metadata
            if key.startswith(TOKENIZER)
        },
        "tensors": _census(file),
    }


def _supported(file: "GgufFile") -> str:
    from muser.errors import MuserError
    from muser.models import build

    try:
        build(file.metadata, file.tensors.keys())
    except MuserError as problem:
        return f"no: {problem.sentence}"
    return "yes"


def _census(file: "GgufFile") -> dict[str, str]:
    counts: dict[str, int] = defaultdict(int)
    sizes: dict[str, int] = defaultdict(int)
    for info in file.tensors.values():
        counts[info.type.name] += 1
        sizes[info.type.name] += info.size
    census = {
        name: _total(counts[name], sizes[name])
        for name in sorted(sizes, key=lambda name: -sizes[name])
    }
    return census | {"all": _total(len(file.tensors), sum(sizes.values()))}


def _total(count: int, size: int) -> str:
    return f"{count} tensor{'' if count == 1 else 's'}, {size:,} bytes"


def _shortest(metadata: "Mapping[str, Any]", key: str) -> Any:
    """The value; an f32 as the shortest decimal that reads back as that f32: 1e-05."""
    import numpy as np

    from muser.formats import ValueType, type_of

    value = metadata[key]
    if isinstance(value, float) and type_of(metadata, key) is ValueType.F32:
        return float(str(np.float32(value)))
    if isinstance(value, np.ndarray) and value.dtype == np.float32 and value.size <= MOST_VALUES:
        return [float(str(item)) for item in value]
    return value


def _brief(value: Any) -> Any:
    """Scalars as they are; arrays and long texts as their kind and length."""
    if value is None:
        return None
    if isinstance(value, str):
        return value if len(value) <= WIDEST else f"{len(value):,} characters"
    if isinstance(value, float) and not isfinite(value):
        return str(value)  # JSON has no word for it
    if isinstance(value, bool | int | float):
        return value
    items = value.tolist() if hasattr(value, "tolist") else value
    if len(items) > MOST_VALUES:
        return f"{len(items):,} values"
    return [_brief(item) for item in items]


def _section(title: str, body: dict[str, Any]) -> Iterable[str]:
    width = max((len(key) for key in body), default=0)
    yield title
    for key, value in body.items():
        shown = f"{value:,}" if key == "bytes" else str(value)
        yield f"  {one_line(key.ljust(width))}  {one_line(shown)}"
