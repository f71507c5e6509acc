"""Texts that tokenizers disagree on: the same list on every machine."""

import random
from collections.abc import Iterator
from itertools import product

PROSE = (
    "The capital of France is Paris, and it's been so since 987 (or 508).",
    "I'll say we've DON'T you'Re they'LL he'd I'm it'S 'tis o'clock 'S's",
    "Dr. Smith's e-mail: j.smith+spam@example.co.uk; call +1 (555) 010-9999!",
    "HTTPServer XMLHttpRequest camelCase snake_case SCREAMING_CASE kebab-case iPhone",
    "Ünïcödé naïve façade ÉCOLE Straße ǅungla ǆ Ǆ ÀÉÎ àéî İstanbul ısı",
    "Привет, мир! ЁЛКА ёлка Ελληνικά ΑΒΓ αβγ ς Հայերեն ქართული ᏣᎳᎩ",
    "日本語のテキスト、中文文本。한국어 텍스트 ภาษาไทย हिन्दी ગુજરાતી தமிழ்",
    "العربية، عَرَبِيّ עברית עִבְרִית فارسی ‏RTL‎ mark",
    "e\u0301 o\u0308 a\u030a\u0327 n\u0303 \u0301start q\u0307\u0323 Z\u0351\u036b\u0343",
    "👍🏽 👩‍👩‍👧‍👦 🏴󠁧󠁢󠁥󠁮󠁧󠁿 🇫🇷🇩🇪 ☕️ ✨abc✨ 1️⃣ 😀😃a😄",
    "½ ² ³ ¼ Ⅷ ⅷ ① ٣٤٥ १२३ ㊿ 𝟘𝟙 1⁄2 ৪ 〇",
    "€5.00 £10 ¥100 $1,234.56 5% 3° ±2 × ÷ ∞ ≠ ∑ √ → « » “q” ‘q’ — – …",
    "ǉ ǈ Ǉ ﬁ ﬂ ﬃ ʰ ʷ ªº ʼn ʻokina Ａ Ｂ ａ ｂ ｱ ﾞ",
    "𝔘𝔫𝔦 𝐁𝐨𝐥𝐝 𝓢𝓬 𐐀𐐨 𞤀𞤢 𒀀 𓀀 \U0001f600 \U0002a6d6 \ue000 \U000f0000",
)
CODE = (
    'def f(x: int) -> str:\n    return f"{x!r:>10}"  # comment\n\n\nclass A(B):\n\tpass\n',
    '#include <stdio.h>\nint main(void) { return printf("%d\\n", 0x1F & ~3); }\r\n',
    "for (let i=0;i<10;++i){ a[i] ??= `t${i}`; } // => !== === ...args /* x */",
    "SELECT * FROM t WHERE a>=1 AND b<>'it''s' OR c IS NOT NULL; -- x\n",
    "<div class=\"a b\" data-x='1'>&nbsp;&#39;</div>\n<!-- c -->\n</br/>\n",
    "https://user:pw@host.example:8080/a/b.c?d=e&f=%20g#h //x ///y /a/\n/b\n",
    '{"a": [1, 2.5e-10, null, true], "b\\u00e9": {}}\n',
    "$ ls -la ~/.config | grep -E '^d' && echo \"done\" > /dev/null 2>&1\n",
    "\\begin{equation} E = mc^2 \\end{equation} $\\alpha_{i}^{2}$ \\\\ % c",
    "0x1.8p-3 1e10 1_000_000 3.14159265358979 0b1010 12345678901234567890 1.2.3.4",
)
SPACES = (
    "",
    " ",
    "  ",
    "\n",
    "\n\n\n",
    "\r\n\r\n",
    " \n \n ",
    "\t\t x\t y",
    "a  b   c    d     e",
    "trailing   ",
    "   leading",
    "line one\n\n  indented\n\n\n    more  \n",
    "a\u00a0b \u00a0 c\u2003d\u3000e\u2028f\u2029g\u0085h\u200bi\ufeffj\u1680k",
    "a\x0bb\x0cc\x1cd\x1fe\x00f\x7fg",
    "\n a\n\t b \r c\r\n d\n\r e /\n //\r\n.\n\n!\n \n",
)
SPECIALS = (
    "<|im_start|>user\nhi<|im_end|>",
    "<|im_start",
    "<|im_start|",
    "|im_start|>",
    "<<|im_end|>>",
    "<|im_end|><|im_end|> <|im_end|>\n",
    "a<|a|>b<|a|>|>c<|a|>|",
    "<|begin_of_text|>x<|begin_of_text|>",
    "<tool> x </tool><tool>",
    " <|im_end|> ",
    "<|IM_END|> <| im_end |> <|im_end|\u200b>",
)
PARTS = (
    "a",
    "Zz",
    "é",
    "Éa",
    "日",
    "\u0301",
    "9",
    "42",
    "٣",
    "'s",
    "'LL",
    "'",
    "!",
    "/",
    "-=",
    "😀",
    " ",
    "  ",
    "\n",
    "\r\n",
    "\t",
    "\u00a0",
    "ǅ",
    "ʰ",
    "²",
)


def all_texts() -> list[str]:
    """Some 400 texts, the given ones first."""
    given = [*PROSE, *CODE, *SPACES, *SPECIALS]
    pairs = ["".join(pair) + "x" for pair in product(PARTS[::2], PARTS[1::2])]
    return list(dict.fromkeys([*given, *_numbers(), *pairs, *_mixtures()]))


def _numbers() -> Iterator[str]:
    for size in range(1, 12):
        yield "1234567890123"[:size]
        yield f"x{'9' * size}.{'0' * size} {'7' * size}a"


def _mixtures() -> Iterator[str]:
    draw = random.Random(20261029)
    for size in range(2, 30):
        for _ in range(4):
            yield "".join(draw.choice(PARTS) for _ in range(size))
