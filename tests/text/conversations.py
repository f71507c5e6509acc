"""Conversations that exercise templates: keyword arguments of `ChatTemplate.render`."""

from collections.abc import Mapping
from typing import Any

USER = {"role": "user", "content": "What is the capital of France?"}
ANSWER = {"role": "assistant", "content": "  Paris, <b>of course</b> & “naturally”.\n"}
SYSTEM = {"role": "system", "content": "Be brief.\nBe kind. 😀"}
THOUGHT = {"role": "assistant", "content": "<think>\nHm.\n</think>\n\nParis."}
REASONED = {"role": "assistant", "content": "Paris.", "reasoning_content": "Easy."}

_PARAMETERS = {
    "z": 1,
    "a": {"type": "object", "é": "<'&\">", "required": [], "n": None, "f": 1e20, "t": True},
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "wx.now",
            "description": "Weather <now> & here",
            "parameters": _PARAMETERS,
        },
    },
    {"type": "function", "function": {"name": "wx.later", "parameters": {}}},
]
_CALL = {
    "id": "call12345",
    "type": "function",
    "function": {
        "name": "wx.now",
        "arguments": {"place": "Paris", "days": [1, 2.5, None, True]},
    },
}
_CALLING = {"role": "assistant", "content": None, "tool_calls": [_CALL]}
_TWICE = {"role": "assistant", "content": "", "tool_calls": [_CALL, {**_CALL, "id": "call67890"}]}
_RESULT = {"role": "tool", "tool_call_id": "call12345", "content": "21 °C"}
_PARTS = {
    "role": "user",
    "content": [{"type": "image"}, {"type": "text", "text": " What is this? "}],
}

CONVERSATIONS: Mapping[str, dict[str, Any]] = {
    "one turn": {"messages": [USER]},
    "system": {"messages": [SYSTEM, USER]},
    "three turns": {"messages": [SYSTEM, USER, ANSWER, USER]},
    "thought": {"messages": [USER, THOUGHT, USER, REASONED]},
    "no thinking": {"messages": [USER], "enable_thinking": False},
    "tools": {"messages": [SYSTEM, USER], "tools": TOOLS},
    "tool call": {"messages": [SYSTEM, USER, _CALLING, _RESULT], "tools": TOOLS},
    "two calls": {"messages": [USER, _TWICE, _RESULT, _RESULT, USER], "tools": TOOLS},
    "parts": {"messages": [_PARTS]},
    "two users": {"messages": [USER, USER]},
    "odd role": {"messages": [{"role": "narrator", "content": "Once."}]},
    "nobody": {"messages": []},
}
