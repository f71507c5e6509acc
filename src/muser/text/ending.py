"""Which tokens end a generation.

A file names one or two ids; models end in more ways than that. The list of names is llama.cpp's
for "end of generation", fill-in-the-middle separators included, found by giving its build of
October 2026 a vocabulary of candidate names. Its `eom_token_id` key is left out on purpose: a
message can end without the turn ending (`<|eom|>` after a reasoning message).
"""

from collections.abc import Mapping

ENDING_NAMES = (
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|calls|>",
    "<|flush|>",
    "<end_of_turn>",
    "<turn|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "</s>",
    "<eos>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "[e~[",
    "<｜end▁of▁sentence｜>",
    "<end_of_utterance>",
    "<|fim_pad|>",
    "<fim-pad>",
    "<fim_pad>",
    "<PAD>",
    "[PAD]",
    "<|fim_repo|>",
    "<|repo_name|>",
    "<fim-repo>",
    "<REPO>",
    "<reponame>",
    "<|file_sep|>",
)

# Where one token of each group exists, `<|end|>` closes a message only, and these close the turn.
_MESSAGE_END = "<|end|>"
_TURN_ENDS = (frozenset({"<|return|>", "<|flush|>"}), frozenset({"<|call|>", "<|calls|>"}))


def stop_ids(specials: Mapping[str, int], named: tuple[int | None, ...]) -> frozenset[int]:
    """Ids of the special tokens that end a generation, and those that the file's keys name."""
    names = {name for name in ENDING_NAMES if name in specials}
    if all(names & group for group in _TURN_ENDS):
        names.discard(_MESSAGE_END)
    return frozenset(specials[name] for name in names) | {i for i in named if i is not None}
