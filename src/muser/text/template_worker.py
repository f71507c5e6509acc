"""The process that renders chat templates: jinja2 with the settings model makers test against.

It is run as a script, without `site` and without the rest of the package, so it imports nothing of
ours. Input and output are a stream of `u32 size, JSON`: first `{"path", "seconds"}`, the module
search path and the processor time that one rendering may take; then one
`{"source", "variables", "now"}` for each rendering, answered by `{"text"}` or by
`{"kind", "message"}`. The settings are those of transformers: an immutable sandbox, trim_blocks,
lstrip_blocks, loop controls, `generation` blocks, and a tojson that escapes nothing.
"""

import json
import signal
import sys
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import lru_cache
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment, Template
    from jinja2.parser import Parser

MEMORY = 1 << 30  # bytes of address space
MAX_SOURCE = 1 << 20
MAX_TEXT = 1 << 25


class Refused(Exception):
    """The template called `raise_exception`."""


class TooLong(Exception):
    """The rendered text passed its limit."""


def main() -> None:
    stdin, stdout = sys.stdin.buffer, sys.stdout.buffer
    limit_resources()
    terms = read(stdin)
    sys.path[:] = [*sys.path, *terms["path"]]
    environment = build_environment()
    compile_source = lru_cache(maxsize=2)(environment.from_string)
    while (request := read(stdin)) is not None:
        set_timer(terms["seconds"])
        environment.globals["strftime_now"] = datetime.fromisoformat(request["now"]).strftime
        answer = render(compile_source, request["source"], request["variables"])
        set_timer(0)
        write(stdout, answer)


def read(stream: IO[bytes]) -> Any:
    size = int.from_bytes(stream.read(4), "little")
    return json.loads(stream.read(size)) if size else None


def write(stream: IO[bytes], answer: dict[str, str]) -> None:
    payload = json.dumps(answer).encode("ascii")
    stream.write(len(payload).to_bytes(4, "little") + payload)
    stream.flush()


def limit_resources() -> None:
    """Memory, no files, no core dump; a system without these limits has only the parent's clock."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to stop
    try:
        import resource
    except ImportError:
        return
    for kind, amount in ((resource.RLIMIT_AS, MEMORY), (resource.RLIMIT_FSIZE, 0)):
        try:
            resource.setrlimit(kind, (amount, amount))
        except (OSError, ValueError):
            continue  # macOS refuses some
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def set_timer(seconds: float) -> None:
    """SIGPROF ends the process, inside long calls too."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)


def build_environment() -> "Environment":
    from jinja2 import nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """`{% generation %}` marks what a model wrote, for training; here it is only a scope."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: "Parser") -> nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            call = self.call_method("_body")
            return nodes.CallBlock(call, [], [], body).set_lineno(line)

        def _body(self, caller: Any) -> Any:
            return caller()

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = refuse
    return environment


def tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def refuse(message: object) -> None:
    raise Refused(str(message))


def render(
    compile_source: "Callable[[str], Template]", source: str, variables: dict[str, Any]
) -> dict[str, str]:
    from jinja2.exceptions import SecurityError, TemplateError

    try:
        if len(source) > MAX_SOURCE:
            raise TooLong
        return {"text": gather(compile_source(source).generate(variables))}
    except Refused as error:
        return {"kind": "refused", "message": str(error)[:1000]}
    except SecurityError as error:
        return {"kind": "forbidden", "message": str(error)[:1000]}
    except (MemoryError, RecursionError, TooLong) as error:
        return {"kind": "limit", "message": type(error).__name__}
    except TemplateError as error:
        return {"kind": "failed", "message": f"{type(error).__name__}: {error.message}"[:1000]}
    except Exception as error:
        return {"kind": "failed", "message": f"{type(error).__name__}: {error}"[:1000]}


def gather(parts: Iterable[str]) -> str:
    whole: list[str] = []
    size = 0
    for part in parts:
        size += len(part)
        if size > MAX_TEXT:
            raise TooLong
        whole.append(part)
    return "".join(whole)


if __name__ == "__main__":
    main()
