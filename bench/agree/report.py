"""The record in a few lines, and the machine that it was made on."""

import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def host() -> dict[str, Any]:
    """CPU, cores, system and Python."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def _cpu() -> str:
    information = Path("/proc/cpuinfo")
    if not information.exists():
        return platform.processor()
    fields = dict(
        line.split(":", 1) for line in information.read_text().splitlines() if ":" in line
    )
    names = {key.strip(): value.strip() for key, value in fields.items()}
    about = [names.get("vendor_id", ""), f"family {names.get('cpu family', '?')}"]
    return ", ".join([names.get("model name", "?"), *about, f"model {names.get('model', '?')}"])


def lines(record: dict[str, Any]) -> Iterator[str]:
    """What a person reads; the JSON has it all."""
    reference, candidate = record["reference"], record["candidate"]
    yield f"{candidate['package']} against {reference['package']} on {record['host']['cpu']}"
    for name, case in record["cases"].items():
        yield f"{name}: {'passed' if case['passed'] else 'FAILED'}"
        for part, found in case.items():
            if isinstance(found, dict):
                yield from (f"  {line}" for line in _SENTENCES[part](found))


def _top_choice(found: dict[str, Any]) -> Iterator[str]:
    yield (
        f"first choice differs at {found['disagreements']} of {found['positions']} positions,"
        f" largest margin there {found['largest_margin']:.4f}"
    )
    for held in found["bounds"]:
        share = held["disagreements"] / max(held["positions"], 1)
        yield (
            f"beyond margin {held['margin']}: {held['disagreements']} of {held['positions']}"
            f" ({share:.2%}){_mark(held)}"
        )


def _logit_error(found: dict[str, Any]) -> Iterator[str]:
    yield (
        f"relative logit error {found['relative']:.3e} over {found['rows']} rows,"
        f" worst row {found['worst_row']:.3e}{_mark(found)}"
    )


def _loss(found: dict[str, Any]) -> Iterator[str]:
    yield (
        f"loss {found['candidate']:.5f} against {found['reference']:.5f} nat over"
        f" {found['chunks']} chunks ({found['tokens']} tokens): {found['difference']:+.5f}"
        f" ± {found['standard_error']:.5f}{_mark(found)}"
    )


def _scaled(found: dict[str, Any]) -> Iterator[str]:
    yield f"head times {found['head_scale']}:"
    yield from (f"  {line}" for line in _top_choice(found["top_choice"]))
    yield from (f"  {line}" for line in _logit_error(found["logit_error"]))


def _mark(found: dict[str, Any]) -> str:
    return "" if found.get("passed", True) else "  <- broken"


_SENTENCES = {
    "top_choice": _top_choice,
    "logit_error": _logit_error,
    "loss": _loss,
    "scaled_head": _scaled,
}
