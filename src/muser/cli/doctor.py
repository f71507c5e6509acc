"""`muser doctor`: what this machine has, what is missing, and how long a start takes."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from muser.cli.console import one_line, speaks_utf8
from muser.cli.progress import narrated, obtained
from muser.errors import UsageError

if TYPE_CHECKING:
    from muser.cli.doctor_facts import Findings


def doctor(
    *,
    time: Annotated[
        bool,
        Parameter(
            help="Measure starts, cold and warm, alone on the machine.",
            negative=(),
            show_default=False,
        ),
    ] = False,
    model: Annotated[
        str | None,
        Parameter(
            name=("--model", "-m"),
            help="What --time loads: a catalogue name or a GGUF file; default smollm2-135m.",
        ),
    ] = None,
    json: Annotated[
        bool, Parameter(help="Print one JSON record.", negative=(), show_default=False)
    ] = False,
) -> None:
    """Say what this machine has and what is wrong, each with its remedy; 0 if a model can run."""
    if model is not None and not time:
        raise UsageError("--model is what --time loads.", "Add --time, or leave it out.")
    from muser.cli.doctor_facts import examine

    with narrated() as warnings:
        found = examine()
    if time and not found.needed:
        found.facts["start"] = measured(model)
    if json:
        import json as codec

        print(codec.dumps(record(found, warnings), ensure_ascii=not speaks_utf8()))
    else:
        print("\n".join(one_line(line) for line in lines(found)))
    if found.needed:
        raise found.needed[0]


def measured(model: str | None) -> dict[str, Any]:
    """Cold and warm starts. Raises `BusyError` while another measurement runs."""
    from dataclasses import asdict

    from muser import places
    from muser.bench.lock import alone
    from muser.bench.starting import cold_and_warm, middle

    path = obtained(model)
    with alone(places.home()):
        cold, warm = cold_and_warm(path)
    return {
        "model": str(path),
        "cold": asdict(cold),
        "warm": asdict(middle(warm)),
        "warm_runs": [asdict(start) for start in warm],
    }


def record(found: "Findings", warnings: list[str]) -> dict[str, Any]:
    """All of it; a problem that is `needed` stops every run."""
    problems = [
        {"sentence": problem.sentence, "remedy": problem.remedy, "needed": problem in found.needed}
        for problem in (*found.needed, *found.others)
    ]
    return {**found.facts, "problems": problems, "warnings": warnings}


def lines(found: "Findings") -> Iterator[str]:
    """For a person: a line a fact, then the problems; needed ones are said as the error."""
    facts = found.facts
    system, places = facts["system"], facts["places"]
    yield f"muser       {system['muser']}, Python {system['python']}, {system['system']}"
    yield f"processor   {facts['processor']['name']}: {' '.join(facts['processor']['bits'])}"
    yield f"kernels     {_kernels(facts['kernels'])}"
    yield f"compiler    {_compiler(facts['compiler'])}"
    yield f"libraries   {_place(places['libraries'])}"
    yield f"packed      {_place(places['packed'])}{_packed(facts['packed'])}"
    yield f"models      {_place(places['models'])}"
    for model in facts["models"]:
        state = "here" if model["here"] else "not fetched"
        yield f"            {model['name']}, {model['bytes'] / 1e6:.0f} MB, {state}"
    yield f"threads     {_threads(facts['threads'])}"
    if memory := facts["memory"]:
        shown = [f"{size / 1e9:.1f} GB {name}" for name, size in memory.items()]
        yield f"memory      {', '.join(shown).replace(' bytes', '')}"
    for name, value in facts["environment"].items():
        yield f"environment {name}={value}"
    yield from _start(facts.get("start"))
    for problem in found.others:
        yield f"problem     {problem.sentence} {problem.remedy}"
    if not (found.needed or found.others):
        yield "No problem was found."


def _kernels(kernels: Mapping[str, Any]) -> str:
    if kernels["runs"] is None:
        return "none that can run"
    (name, sha256) = next(iter(kernels["runs"].items()))
    supported, built = (", ".join(kernels[key]) or "none" for key in ("supported", "built"))
    return f"supported: {supported}; built: {built}; runs {name} {sha256}"


def _compiler(compiler: Mapping[str, str] | None) -> str:
    if compiler is None:
        return "none"
    return f"{compiler['command']}: {compiler['version']}, for {compiler['target']}"


def _place(place: Mapping[str, Any]) -> str:
    words = [
        *([] if place["exists"] else ["not made yet"]),
        "writable" if place["writable"] else "not writable",
        *([] if place["executable"] else ["noexec"]),
        *([] if place["trusted"] else ["not trusted"]),
        f"{place['free_bytes'] / 1e9:.1f} GB free",
    ]
    return f"{place['path']} ({', '.join(words)})"


def _packed(packed: Mapping[str, int]) -> str:
    if not packed["files"]:
        return ""
    noun = "file" if packed["files"] == 1 else "files"
    stale = f", {packed['stale']} of them stale" * bool(packed["stale"])
    return f": {packed['files']} {noun}, {packed['bytes'] / 1e6:.0f} MB{stale}"


def _threads(threads: Mapping[str, Any]) -> str:
    quota = "no quota" if threads["quota"] is None else f"a quota of {threads['quota']:g}"
    allowed = f"{threads['affinity']} of {threads['processors']} processors"
    return f"{threads['default']} by default: {allowed}, {quota}"


def _start(start: Mapping[str, Any] | None) -> Iterator[str]:
    if start is None:
        return
    yield f"start       of {start['model']}, in seconds"
    for name in ("cold", "warm"):
        yield f"  {name:9} {_parts(start[name])}"


def _parts(start: Mapping[str, float]) -> str:
    return ", ".join(f"{name.removesuffix('_s')} {took:.3f}" for name, took in start.items())
