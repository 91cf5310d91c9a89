"""`arxiv`: articles with their abstracts as lists of sentences (Cohan et al. 2018, arXiv's and PubMed's)."""

from collections.abc import Iterator
from typing import Annotated

from pydantic import ConfigDict, Field

from reread.preprocessing.labelled.file import LabelledFile
from reread.preprocessing.labelled.tasks.generate import GenerateExample
from reread.preprocessing.settings import Settings


class _Article(Settings):
    model_config = ConfigDict(extra="ignore")

    article_id: str
    article_text: Annotated[list[str], Field(min_length=1)]
    abstract_text: list[str] | None = None


def read_arxiv(source: LabelledFile) -> Iterator[GenerateExample]:
    """Sentences with `task.join` between them; those of abstracts without the <S> and </S> around each. An article
    without `abstract_text` is unlabelled; `sections` repeat the article and are not read."""
    for number, values in source.json_lines():
        location = source.location(number)
        article = source.parse(_Article, values, location)
        if article is None:
            continue
        text = source.join.join(one.strip() for one in article.article_text)
        target = None
        if article.abstract_text is not None:
            sentences = (one.strip().removeprefix("<S>").removesuffix("</S>") for one in article.abstract_text)
            target = source.join.join(one.strip() for one in sentences)
        yield GenerateExample(article.article_id, location, text, target)
