"""Three GPU probes of the canonical arithmetic: build, check, time, one table.

PYTHONPATH=src python bench/probes/h200.py [--only primitives,matvec,attention,gemm] [--seed N]
"""

import argparse
import os
import secrets
import sys
import time
import traceback

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # the oracle brings its own threads

import attention
import gemm
import matvec
import numpy as np
import primitives
from card import Card
from table import Line, markdown

PROBES = {"primitives": primitives, "matvec": matvec, "gemm": gemm, "attention": attention}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join(PROBES))
    parser.add_argument("--seed", type=int, default=secrets.randbits(48))
    return parser.parse_args()


def main() -> int:
    chosen = arguments()
    card = Card()
    print(f"{card.name}, {card.software}, {card.processors} multiprocessors")
    print(f"seed {chosen.seed}")
    lines: list[Line] = []
    failed = 0
    for name in chosen.only.split(","):
        start = time.perf_counter()
        try:
            lines += PROBES[name].run(card, np.random.default_rng(chosen.seed))
        except Exception:  # the table of the others is worth having
            traceback.print_exc()
            failed += 1
        print(f"{name}: {time.perf_counter() - start:.1f} s", flush=True)
    print(markdown(lines))
    wrong = [line for line in lines if line.different]
    print(f"{len(lines)} lines, {len(wrong)} with a difference, {failed} probes broken")
    return 1 if wrong or failed else 0


if __name__ == "__main__":
    sys.exit(main())
