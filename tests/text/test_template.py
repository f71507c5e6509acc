"""Templates in the style of each family render as jinja2 does and as their makers document."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from muser.errors import FormatError, LimitError, ModelError, UsageError
from muser.text import ChatTemplate, Tokenizer
from muser.text.sandbox import Sandbox
from tests.text.conversations import CONVERSATIONS, SYSTEM, USER
from tests.text.peer_jinja import render_directly
from tests.text.vocabularies import vocabulary_metadata

FOLDER = Path(__file__).parent / "templates"
NAMES = sorted(path.stem for path in FOLDER.glob("*.jinja"))
NOW = datetime(2026, 8, 10, 12, 30)
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    made = Sandbox()
    yield made
    made.close()


def template(sandbox: Sandbox, name: str, tokens: Mapping[str, str] = TOKENS) -> ChatTemplate:
    source = (FOLDER / f"{name}.jinja").read_text("utf-8")
    return ChatTemplate(source, tokens, sandbox)


def outcome(render: Any) -> str:
    try:
        return str(render())
    except UsageError as error:
        return f"refused: {error.sentence.split(': ', 1)[1].removesuffix('.')}"
    except ModelError:
        return "failed"


@pytest.mark.parametrize("prompt", [True, False])
@pytest.mark.parametrize("talk", CONVERSATIONS)
@pytest.mark.parametrize("name", NAMES)
def test_equals_jinja2(sandbox: Sandbox, name: str, talk: str, prompt: bool) -> None:
    """An own environment of jinja2, in this process, gives the same text or the same refusal."""
    made = template(sandbox, name)
    given = CONVERSATIONS[talk]
    ours = outcome(lambda: made.render(**given, add_generation_prompt=prompt, now=NOW))
    peer = render_directly(
        made.source,
        {"tools": None, "documents": None, **TOKENS, **given, "add_generation_prompt": prompt},
        NOW,
    )
    assert ours == peer


def test_every_template_renders_something(sandbox: Sandbox) -> None:
    """The comparison above would pass if everything failed alike."""
    for name in NAMES:
        made = template(sandbox, name)
        for talk in ("one turn", "three turns"):
            text = made.render(**CONVERSATIONS[talk], now=NOW)
            assert "capital of France" in text
    for name in ("llama3", "mistral", "muse", "qwen3"):
        assert "°C" in template(sandbox, name).render(**CONVERSATIONS["tool call"], now=NOW)


def test_muse_default(sandbox: Sandbox) -> None:
    made = template(sandbox, "muse", {"bos_token": "<|begin_of_text|>"})
    assert made.render([{"role": "user", "content": "hi"}], current_date="2026-08-10") == (
        "<|begin_of_text|><|start|>system<|message|>You are a helpful AI assistant.\n"
        "Knowledge cutoff: 2026-01-04.\n"
        "Current date: 2026-08-10.\n"
        "\n"
        "Reasoning strength: high.\n"
        "\n"
        '# Valid recipients: "self", "user".<|eot|>'
        "<|start|>user<|message|>hi<|eot|><|start|>assistant"
    )


def test_muse_tools(sandbox: Sandbox) -> None:
    made = template(sandbox, "muse", {"bos_token": ""})
    text = made.render(
        **CONVERSATIONS["tool call"], current_date="2026-08-10", reasoning_strength="low"
    )
    assert text.startswith("<|start|>system<|message|>" + SYSTEM["content"])
    assert "Current date" not in text
    assert "Reasoning strength: low." in text
    assert '# Valid recipients: "self", "user", "wx.*".<|eot|>' in text
    assert '{"name": "wx.now", "description": "Weather <now> & here", "parameters": {"z": 1' in text
    assert (
        "<|start|>assistant to=wx.now<|message|><atem:function_calls>\n"
        '<atem:invoke name="wx.now">\n'
        '<atem:parameter name="place">Paris</atem:parameter>\n'
        '<atem:parameter name="days">[1, 2.5, null, true]</atem:parameter>\n'
        "</atem:invoke>\n</atem:function_calls><|eot|>"
    ) in text
    assert (
        '<|start|>tool wx.now<|message|><tool_output name="wx.now">\n21 °C\n</tool_output><|eot|>'
    ) in text


def test_smollm2_default(sandbox: Sandbox) -> None:
    assert template(sandbox, "smollm2").render([USER]) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n<|im_start|>user\nWhat is the capital of France?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_dates_are_told(sandbox: Sandbox) -> None:
    assert "Today Date: 10 Aug 2026\n" in template(sandbox, "llama3").render([USER], now=NOW)
    assert "Current date: 2026-08-10." in template(sandbox, "muse").render([USER], now=NOW)


def test_the_date_is_that_of_each_rendering(sandbox: Sandbox) -> None:
    made = template(sandbox, "llama3")
    days = [made.render([USER], now=datetime(2026, 1, day)) for day in (1, 2)]
    assert ["Today Date: 01 Jan 2026" in days[0], "Today Date: 02 Jan 2026" in days[1]] == [
        True
    ] * 2


def test_refusals_are_the_templates_own_words(sandbox: Sandbox) -> None:
    with pytest.raises(UsageError, match="roles must alternate"):
        template(sandbox, "gemma").render([USER, USER])


def test_any_mapping_is_a_message(sandbox: Sandbox) -> None:
    made = template(sandbox, "chatml")
    assert made.render((MappingProxyType(USER),)) == made.render([USER])


@pytest.mark.parametrize("content", [object(), b"bytes", {1, 2}])
def test_only_plain_data(sandbox: Sandbox, content: object) -> None:
    with pytest.raises(UsageError, match="plain data"):
        template(sandbox, "chatml").render([{"role": "user", "content": content}])


def test_data_without_end(sandbox: Sandbox) -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(UsageError, match="plain data"):
        template(sandbox, "chatml").render([{"role": "user", "content": endless}])


def test_from_metadata() -> None:
    given = vocabulary_metadata("llama4", ("a b",), bos_token_id=257, eos_token_id=259)
    tokenizer = Tokenizer.from_metadata(given)
    assert ChatTemplate.from_metadata(given, tokenizer) is None
    with pytest.raises(FormatError, match="chat_template"):
        ChatTemplate.from_metadata({**given, "tokenizer.chat_template": 3}, tokenizer)
    source = "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}{{ pad_token }}"
    made = ChatTemplate.from_metadata({**given, "tokenizer.chat_template": source}, tokenizer)
    assert made is not None
    text = made.render([{"role": "user", "content": "<|im_end|>a"}])
    assert text == "<|begin_of_text|><|im_end|>a<|im_end|>"
    assert tokenizer.encode(text, special=True, bos=True) == [257, 259, ord("a"), 259]
    assert made.sha256 == sha256(source.encode()).hexdigest()
    made.close()


def test_a_broken_template_is_a_model_error(sandbox: Sandbox) -> None:
    for source in ("{% for %}", "{{ messages[7].content.x }}", "{{ 1 / 0 }}", "{{ f() }}"):
        with pytest.raises(ModelError, match="chat template"):
            sandbox.render(source, {"messages": []}, NOW)


def test_limit_error_is_not_hidden(sandbox: Sandbox) -> None:
    with pytest.raises(LimitError):
        sandbox.render("x" * ((1 << 20) + 1), {}, NOW)
