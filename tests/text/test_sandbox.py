"""Hostile templates end in an error, soon, and the next rendering works."""

import os
import sys
import threading
import time
from collections.abc import Iterator
from datetime import datetime

import pytest

from muser.errors import LimitError, ModelError
from muser.text.sandbox import Sandbox

NOW = datetime(2026, 8, 10)
GROW = (
    "{%% set ns = namespace(x=%s) %%}{%% for i in range(60) %%}{%% set ns.x = %s %%}{%% endfor %%}"
)
LISTS = GROW % ("[1]", "[ns.x, ns.x]")

ENDLESS = {
    "nested loops": "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}",
    "power": "{{ 9 ** (9 ** 9) > 1 }}",
    "macro tree": "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}"
    "{{ f(60) }}",
    "equality of shared lists": LISTS + "{% set x = ns.x %}" + LISTS + "{{ ns.x == x }}",
}
HUGE = {
    "repeated text": "{{ 'a' * 10 ** 12 }}",
    "doubled text": GROW % ("'aaaaaaaa'", "ns.x ~ ns.x") + "{{ ns.x | length }}",
    "doubled list": GROW % ("[1]", "ns.x + ns.x") + "{{ ns.x | length }}",
    "long output": "{% for i in range(9999) %}{{ 'a' * 99999 }}{% endfor %}",
    "format width": "{{ '%2000000000d' % 1 }}",
    "centred": "{{ 'a' | center(2000000000) }}",
    "indent": "{{ [1] | tojson(indent=2000000000) }}",
    "shared lists": LISTS + "{{ ns.x }}",
    "shared lists as JSON": LISTS + "{{ ns.x | tojson }}",
}
DEEP = {
    "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "loop recursion": "{% for a in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "brackets": "{{ " + "[" * 50_000 + "]" * 50_000 + " }}",
    "negations": "{{ " + "not " * 100_000 + "1 }}",
    "blocks": "{% if 1 %}" * 10_000 + "{% endif %}" * 10_000,
}
ESCAPES = {
    "class": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "globals": "{{ raise_exception.__globals__ }}",
    "init": "{{ cycler.__init__.__globals__.os.system('true') }}",
    "attr filter": "{{ ''|attr('__class__')|attr('__mro__') }}",
    "format": "{{ '{0.__class__.__mro__}'.format(messages) }}",
    "format_map": "{{ '{x.__class__}'.format_map({'x': 1}) }}",
    "append": "{{ messages.append(1) }}",
    "update": "{{ {}.update({}) }}",
    "method of a function": "{{ strftime_now.__self__ }}",
    "include": "{% include '/etc/passwd' %}",
    "import": "{% import 'os' as os %}{{ os.getcwd() }}",
}


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    made = Sandbox(seconds=0.4)
    yield made
    made.close()


def works(sandbox: Sandbox) -> bool:
    return sandbox.render("{{ a }}", {"a": "ok"}, NOW) == "ok"


@pytest.mark.parametrize("name", [*ENDLESS, *HUGE, *DEEP])
def test_hostile_templates_are_stopped(sandbox: Sandbox, name: str) -> None:
    source = {**ENDLESS, **HUGE, **DEEP}[name]
    with pytest.raises((LimitError, ModelError)) as caught:
        sandbox.render(source, {"messages": []}, NOW)
    if name not in DEEP:
        assert isinstance(caught.value, LimitError) or "OverflowError" in caught.value.sentence
    assert works(sandbox)


@pytest.mark.parametrize("name", ESCAPES)
def test_nothing_leads_out(sandbox: Sandbox, name: str) -> None:
    try:
        text = sandbox.render(ESCAPES[name], {"messages": []}, NOW)
    except ModelError:
        return
    assert text == "", "an unsafe attribute reads as undefined"


def test_a_killed_process_is_replaced(sandbox: Sandbox) -> None:
    assert works(sandbox)
    process = sandbox._process
    assert process is not None
    process.kill()
    process.wait()
    assert works(sandbox)


def test_close_ends_the_process() -> None:
    made = Sandbox()
    made.start()
    process = made._process
    assert process is not None
    made.close()
    assert process.returncode is not None
    assert works(made)
    made.close()


def test_threads_take_turns(sandbox: Sandbox) -> None:
    results: list[str] = []

    def work(i: int) -> None:
        results.append(sandbox.render("{{ i }}", {"i": i}, NOW))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == sorted(map(str, range(8)))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_process_ends_with_its_parent() -> None:
    made = Sandbox()
    made.start()
    process = made._process
    assert process is not None
    assert process.stdin is not None
    process.stdin.close()  # what the end of this process would do
    for _ in range(200):
        if process.poll() is not None:
            break
        time.sleep(0.05)
    assert process.poll() is not None
    assert not os.path.exists(f"/proc/{process.pid}")
    made.close()
