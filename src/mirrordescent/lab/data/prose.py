"""Turns columns of prose (reviews, messages, titles) into inputs by their words: latent semantic analysis.

tf-idf weighs each word of a text; a truncated singular value decomposition sums the words up in a few numbers, in which
words that occur in the same texts count alike (Deerwester et al. 1990). Both are learnt from the training rows alone,
and without labels.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from torch import Tensor

# Between words: space and punctuation of all sorts. Not \W, which also parts letters from the marks of Indian scripts.
BETWEEN = (
    r"\s!-/:-@\[-^`{-~\u00a1-\u00bf\u060c\u061b\u061f\u06d4\u0964\u0965\u2000-\u206f\u3000-\u303f"
    r"\uff01-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff65"
)
# Thai, Lao, Burmese, Khmer, Japanese, Chinese: scripts that are written without spaces
UNSPACED = (
    r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    r"\U00020000-\U0002fa1f"
)
WORD = re.compile(rf"[{UNSPACED}]+|[^{BETWEEN}{UNSPACED}]+")
RUN = re.compile(rf"[{UNSPACED}]")

FEWEST_WORDS = 3  # in the typical text of a column of prose
LOOKED_AT = 1000  # texts, to tell whether a column is prose
MOST_WORDS = 50_000  # that count, the most frequent ones
FEWEST, MOST = 4, 300  # numbers that the words are summed up in
ROWS_PER_NUMBER = 8  # with more numbers, a network learns few rows by heart
VARIANCE = 3.0  # of all these numbers together: as much as three columns of numbers have
ROUNDS = 4  # of the decomposition's power iteration
STEP = 2.0**-11  # the numbers are multiples of this, so that last bits, which depend on the machine, seldom count


def words(text: str) -> list[str]:
    """The words of a text; where a script has no spaces, its pairs of letters.

    >>> words("It's a READ_me, naïve: 2.5!"), words("नमस्ते दुनिया।"), words("東京タワー 1")
    (['it', 's', 'a', 'read_me', 'naïve', '2', '5'], ['नमस्ते', 'दुनिया'], ['東京', '京タ', 'タワ', 'ワー', '1'])
    """
    text = unicodedata.normalize("NFKC", text).casefold()
    found = WORD.findall(text)
    if not RUN.search(text):
        return found
    return [part for word in found for part in (_pairs(word) if RUN.match(word) else [word])]


def _pairs(run: str) -> list[str]:
    return [run[i : i + 2] for i in range(len(run) - 1)] or [run]


def is_prose(texts: Sequence[str]) -> bool:
    """Whether a typical one of these texts has at least three words in letters, with spaces or commas between them.

    >>> is_prose(["a fine film", "red,large,sold"]), is_prose(["img/a/cat.png", "Ann Lee"]), is_prose(["1 2 3 4"])
    (True, False, False)
    """
    some = texts[:: -(-len(texts) // LOOKED_AT) or 1]
    counts = sorted(_count(text) for text in some)
    return bool(counts) and counts[len(counts) // 2] >= FEWEST_WORDS


def _count(text: str) -> int:
    # a path or an address is no prose, although it has several words; tags are, with spaces between them or without
    parts = re.split(r"[\s,;|]+", text)
    return sum(len(words(part)) if RUN.search(part) else any(c.isalpha() for c in part) for part in parts)


def numbered(texts: Sequence[str]) -> Iterator[float]:
    """A number per text that texts of the same words share; it says nothing else.

    >>> one, two, three = numbered(["A fine film.", "a fine  film", "a film"])
    >>> one == two, one == three
    (True, False)
    """
    for text in texts:
        said = " ".join(words(text)).encode("utf-8", "surrogatepass")
        yield float(int.from_bytes(blake2b(said, digest_size=6).digest(), "big"))


def summed_up(train: Sequence[Sequence[str]], test: Sequence[Sequence[str]]) -> tuple[Tensor, Tensor, list[int]]:
    """The numbers that the words of both parts' texts are summed up in, (n, k) and (m, k), float32.

    train, test: per column its texts, "" where there is none. The words of every column are counted apart. Also
    returned: how many words of each column count, which are those that at least two training rows have. If there are
    none at all, k is 0. k grows with the number of rows, to at most 300.
    """
    from scipy import sparse
    from sklearn.utils.extmath import randomized_svd
    from threadpoolctl import threadpool_limits

    parts = [_weighed(*column) for column in zip(train, test, strict=True)]
    sizes = [part[0].shape[1] for part in parts]
    x, test_x = (sparse.hstack([part[i] for part in parts], format="csr") for i in (0, 1))
    numbers = min(MOST, max(FEWEST, x.shape[0] // ROWS_PER_NUMBER), min(x.shape))
    if not numbers:
        return torch.zeros(x.shape[0], 0), torch.zeros(test_x.shape[0], 0), sizes
    with threadpool_limits(1):  # sums in another order differ in their last bits
        _, _, directions = randomized_svd(x, numbers, n_iter=ROUNDS, random_state=0)
        z, test_z = x @ directions.T, test_x @ directions.T
    middle = z.mean(axis=0)
    unit = float(np.sqrt(((z - middle) ** 2).sum(axis=1).mean() / VARIANCE)) or 1.0
    inputs = [torch.from_numpy(np.round((part - middle) / unit / STEP) * STEP).float() for part in (z, test_z)]
    return inputs[0], inputs[1], sizes


def _weighed(train: Sequence[str], test: Sequence[str]) -> tuple[Any, Any]:
    """tf-idf of the words that at least two training texts have, as sparse matrices, (n, words) and (m, words)."""
    from scipy import sparse
    from sklearn.feature_extraction.text import TfidfVectorizer

    counter = TfidfVectorizer(analyzer=words, min_df=2, max_features=MOST_WORDS, sublinear_tf=True)
    try:
        x = counter.fit_transform(train)
    except ValueError:  # scikit-learn's way to say that there is no such word
        return sparse.csr_matrix((len(train), 0)), sparse.csr_matrix((len(test), 0))
    return x, counter.transform(test) if len(test) else sparse.csr_matrix((0, x.shape[1]))
