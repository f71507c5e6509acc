"""`muser model list`."""


def list_models() -> None:
    """List the models that can be fetched by name and the files that are here."""
    from muser import places
    from muser.cli.console import one_line
    from muser.weights.catalogue import CATALOGUE, on_disk, strangers

    rows = [
        (
            entry.name,
            _state(entry.is_here),
            on_disk(entry.size) if entry.is_here else entry.sizes,
            entry.summary,
        )
        for entry in CATALOGUE
    ]
    rows += [
        (
            one_line(path.stem),
            _state(True),
            on_disk(path.stat().st_size),
            one_line(path.name),
        )
        for path in strangers()
    ]
    print(aligned([("NAME", "STATE", "SIZE", "WHAT"), *rows]))
    print(f"\nModels folder: {one_line(str(places.models()))}")


def _state(is_here: bool) -> str:
    return "here" if is_here else "not fetched"


def aligned(rows: list[tuple[str, ...]]) -> str:
    """Rows of text as columns, two spaces apart; the last column is left as it is."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]])
        for row in rows
    )
