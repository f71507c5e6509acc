"""Record what llama.cpp makes of the sample texts: `python -m tests.text.record [--train]`.

Needs the `xllamacpp` wheel. `--train` makes `data/merges.json` anew as well, from the samples and
the standard library's sources. Ids of the small vocabularies go to `data/goldens.json`; those of
SmolLM2 too when its GGUF file is named with `--smollm2 PATH`.
"""

import argparse
import json
import sysconfig
import tempfile
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

from muser.text.pretokenizers import PRETOKENIZERS
from tests.text.llama_cpp import LlamaVocabulary, open_vocabulary
from tests.text.samples import SPECIALS, all_texts
from tests.text.vocabularies import (
    DATA,
    USER_DEFINED,
    read_merges,
    vocabulary_metadata,
    write_vocabulary,
)

MERGES = 2000
SOURCES = ("argparse.py", "heapq.py", "textwrap.py", "statistics.py")


def train() -> list[str]:
    """Merges over whole texts: nothing is cut first, so tokens span words, digits and spaces."""
    from tokenizers import Tokenizer
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel
    from tokenizers.trainers import BpeTrainer

    library = Path(sysconfig.get_paths()["stdlib"])
    texts = [text for text in all_texts() * 2 if text not in SPECIALS]
    for name in SOURCES:
        source = (library / name).read_text("utf-8")
        texts += [source[i : i + 400] for i in range(0, 40000, 400)]
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = ByteLevel.alphabet()
    trainer = BpeTrainer(
        vocab_size=256 + MERGES, initial_alphabet=alphabet, max_token_length=12, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    pairs = json.loads(tokenizer.to_str())["model"]["merges"]
    return [" ".join(pair) for pair in pairs]


def ids_of(vocabulary: LlamaVocabulary, special: bool) -> list[list[int]]:
    return [vocabulary.encode(text, special=special) for text in all_texts()]


def golden_metadata(pre: str, merges: list[str], special: bool) -> dict[str, Any]:
    """llama.cpp always makes user-defined tokens of their names; Muser only when asked."""
    names = USER_DEFINED if special else ()
    return vocabulary_metadata(pre, merges, user_defined=names, bos_token_id=0)


def texts_digest() -> str:
    """Names the list of texts that the ids belong to."""
    return sha256(json.dumps(all_texts()).encode()).hexdigest()


def record(smollm2: Path | None) -> dict[str, Any]:
    merges = read_merges()
    with tempfile.TemporaryDirectory() as folder:

        def ids(pre: str, special: bool) -> list[list[int]]:
            path = Path(folder) / f"{pre}.{special}.gguf"
            write_vocabulary(path, golden_metadata(pre, merges, special))
            with open_vocabulary(path) as vocabulary:
                return ids_of(vocabulary, special)

        plain = {pre: ids(pre, False) for pre in PRETOKENIZERS}
        special = {"llama4": ids("llama4", True)}
    goldens: dict[str, Any] = {"plain": plain, "special": special}
    if smollm2 is not None:
        with open_vocabulary(smollm2) as vocabulary:
            goldens["smollm2"] = {
                "plain": ids_of(vocabulary, False),
                "special": ids_of(vocabulary, True),
            }
    return {
        "maker": f"tests/text/record.py with xllamacpp {version('xllamacpp')}",
        "texts": texts_digest(),
        **goldens,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--smollm2", type=Path)
    options = parser.parse_args()
    if options.train:
        made = {"maker": "tests/text/record.py --train", "merges": train()}
        (DATA / "merges.json").write_text(json.dumps(made, ensure_ascii=False) + "\n", "utf-8")
    goldens = json.dumps(record(options.smollm2), separators=(",", ":"))
    (DATA / "goldens.json").write_text(goldens.replace("]],", "]],\n") + "\n", "utf-8")


if __name__ == "__main__":
    main()
