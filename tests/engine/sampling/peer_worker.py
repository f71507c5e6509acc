"""Applies llama.cpp's samplers: a process that runs inside llama-cpp-python's environment.

A JSON list of cases on standard input, {"stage", "arguments", "logits", "history"}; on standard
output, for each, the pairs [id, logit] that are left, those at −inf not among them.
"""

import ctypes
import json
import math
import sys
from typing import Any

from llama_cpp import llama_cpp as api


def left(stage: str, arguments: list[Any], logits: list[float], history: list[int]) -> list[Any]:
    sampler = getattr(api, f"llama_sampler_init_{stage}")(*arguments)
    for token in history:
        api.llama_sampler_accept(sampler, token)
    data = (api.llama_token_data * len(logits))(
        *(api.llama_token_data(i, logit, 0.0) for i, logit in enumerate(logits))
    )
    row = api.llama_token_data_array(data, len(logits), -1, False)
    api.llama_sampler_apply(sampler, ctypes.byref(row))
    kept = [(row.data[i].id, row.data[i].logit) for i in range(row.size)]
    api.llama_sampler_free(sampler)
    return [pair for pair in kept if pair[1] != -math.inf]


def main() -> None:
    cases = json.load(sys.stdin)
    json.dump([left(**case) for case in cases], sys.stdout)


if __name__ == "__main__":
    main()
