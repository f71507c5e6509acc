"""Record llama.cpp's greedy continuations as goldens: ids and margins for 24 prompts × 64 tokens.

    python bench/peers/xllamacpp_greedy.py MODEL.gguf tests/goldens/NAME.json

Uses the `xllamacpp` wheel, a prebuilt llama.cpp, through its own server: prompts go in as text,
ids and the log-probabilities of the first two candidates come out. The margin is the difference
of those two, which equals the difference of their logits. A prompt whose answer ends before 64
tokens is refused, since banning the end token would change what is being recorded.
"""

import argparse
import hashlib
import json
import urllib.request
from importlib.metadata import version
from pathlib import Path
from typing import Any

TOKENS = 64
THREADS = 1
PROMPTS = (
    "The capital of France is",
    "Once upon a time, in a village at the foot of a mountain,",
    "The three laws of thermodynamics can be stated as follows:",
    "def fibonacci(n):\n    ",
    "To bake a simple loaf of bread, you need",
    "In 1969, the first human beings",
    "Dear Sir or Madam,\n\nI am writing to",
    "The difference between a virus and a bacterium is",
    "Q: What is 12 times 12?\nA:",
    "import numpy as np\n\n# Compute the mean of each column\n",
    "The old lighthouse keeper had not spoken to anyone for",
    "Photosynthesis is the process by which",
    "A good password should",
    "SELECT name, price FROM products WHERE",
    "The main causes of the First World War were",
    "If you want to learn to play the piano,",
    "La capitale de l'Italie est",
    "The stock market fell sharply on Monday after",
    "1, 2, 3, 5, 8, 13, 21,",
    "The history of bridge building goes back to",
    "My favourite thing about living in the city is",
    "The human heart has four chambers:",
    "Shakespeare wrote many plays, including",
    "Scientists have discovered a new species of",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    record = {**_made_by(arguments.model), "prompts": _record(arguments.model)}
    arguments.out.write_text(_layout(record), encoding="utf-8")
    print(f"{arguments.out}: {len(record['prompts'])} prompts × {TOKENS} tokens")


def _record(model: Path) -> list[dict[str, Any]]:
    server = _serve(model)
    return [_continue(server.listening_address, prompt) for prompt in PROMPTS]


def _serve(model: Path) -> Any:
    """A running server; it stops when the last reference to it goes."""
    import xllamacpp

    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(model)
    parameters.n_ctx, parameters.n_parallel = 1024, 1
    parameters.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = THREADS
    parameters.fit_params = parameters.warmup = False
    parameters.verbosity = 1
    return xllamacpp.Server(parameters)


def _continue(address: str, prompt: str) -> dict[str, Any]:
    prompt_ids = _ask(address, "/tokenize", {"content": prompt, "add_special": True})["tokens"]
    greedy = {"temperature": 0, "n_probs": 2, "return_tokens": True, "cache_prompt": False}
    answer = _ask(address, "/completion", {"prompt": prompt_ids, "n_predict": TOKENS, **greedy})
    ids = answer["tokens"]
    if len(ids) != TOKENS:
        raise SystemExit(f"{prompt!r} stops after {len(ids)} tokens; choose another prompt.")
    margins = [_margin(step) for step in answer["completion_probabilities"]]
    return {"prompt": prompt, "prompt_ids": prompt_ids, "ids": ids, "margins": margins}


def _margin(step: dict[str, Any]) -> float:
    first, second = step["top_logprobs"]
    assert first["id"] == step["id"]
    return round(first["logprob"] - second["logprob"], 4)


def _ask(address: str, route: str, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(
        address + route, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=300) as reply:
        answer: dict[str, Any] = json.load(reply)
    return answer


def _made_by(model: Path) -> dict[str, Any]:
    import xllamacpp

    extension = Path(xllamacpp.xllamacpp.__file__)
    return {
        "script": "bench/peers/xllamacpp_greedy.py",
        "package": f"xllamacpp=={version('xllamacpp')}",
        "library": {extension.name: _sha256(extension)},
        "compiler": xllamacpp.BUILD_INFO["compiler"],
        "instruction_sets": xllamacpp.get_system_info(),
        "settings": {"flash_attention": "off", "kv": "f16", "threads": THREADS, "temperature": 0},
        "model": {"name": model.name, "bytes": model.stat().st_size, "sha256": _sha256(model)},
    }


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _layout(record: dict[str, Any]) -> str:
    """JSON with one line a field at the top and one line a prompt."""
    head = [
        f"  {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}"
        for key, value in record.items()
        if key != "prompts"
    ]
    prompts = ",\n".join(f"    {json.dumps(entry)}" for entry in record["prompts"])
    return "{\n" + ",\n".join(head) + ',\n  "prompts": [\n' + prompts + "\n  ]\n}\n"


if __name__ == "__main__":
    main()
