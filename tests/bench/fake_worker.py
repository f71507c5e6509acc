"""A worker that counts: every choice is the sum of what it was fed, its clock is `ticks`."""

import os
import sys

from muser.bench.answering import answer_all, memory


class Counting:
    def do_identity(self):
        os.write(1, b"a library prints on standard output\n")
        return {"engine": "counting", "version": "1"}

    def do_load(self, model, threads, context, slots):
        if model == "missing":
            raise FileNotFoundError("missing")
        return {"ns": 7, "before": memory(), "after": memory()}

    def do_decode(self, prompts, fed, margins):
        ids = []
        for prompt, tokens in zip(prompts, fed, strict=True):
            total = sum(prompt)
            for token in tokens:
                total += token
                ids.append(total)
        return {"ids": ids, "ns": len(ids), "margins": [0.5] * len(ids) if margins else None}

    def do_prefill(self, ids, margins):
        print("the last words", file=sys.stderr, flush=True)
        os._exit(3)

    def do_memory(self):
        return memory()


if __name__ == "__main__":
    answer_all(Counting())
