"""The text of a web page's article, for a terminal."""

from html.parser import HTMLParser

_ARTICLE = "devsite-article-body"  # the class of the element that holds the text
_BLOCKS = ("br", "dd", "div", "dt", "h1", "h2", "h3", "h4", "li", "p", "td", "tr")


def read_article(page: str) -> str:
    """The article of an HTML page as lines of text."""
    article = _Article()
    article.feed(page)
    article.close()
    lines = (" ".join(line.split()) for line in "".join(article.parts).splitlines())
    return "\n".join(line for line in lines if line)


class _Article(HTMLParser):
    """Gathers the text inside the first element of the class `_ARTICLE`.

    Only elements of that one's tag are counted: others may be left open.
    """

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self._tag: str | None = None
        self._open = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self._tag is None and _ARTICLE in (dict(attrs).get("class") or "").split():
            self._tag = tag
            self._open = 1
        elif self._open:
            self._open += tag == self._tag
        self._break(tag)

    def handle_endtag(self, tag: str) -> None:
        self._break(tag)
        if self._open:
            self._open -= tag == self._tag

    def handle_data(self, data: str) -> None:
        if self._open:
            self.parts.append(data)

    def _break(self, tag: str) -> None:
        if tag in _BLOCKS:
            self.parts.append("\n")
