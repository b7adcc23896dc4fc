"""Whether token ids are a tokenizer's at all: where little aligns, one of the two is most often another one than was used."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from zephon_core.tokenizers import Tokenizer
from zephon_core.xtoken.datums import pieces
from zephon_core.xtoken.pictures.charts import percent
from zephon_core.xtoken.vocabulary import tabulate

__all__ = ["DOUBTFUL_COVERAGE", "own_share", "whose_ids"]

DOUBTFUL_COVERAGE = 0.5
"""Of the loss tokens: below it the ids themselves are looked at."""

_OWN = 0.9
_MOST_TOKENS = 20_000


def own_share(tokenizer: Tokenizer, offsets: npt.NDArray[np.int64], ids: npt.NDArray[np.int64]) -> float:
    """Tokenize anew what sequences of ids spell, some thousand tokens of them; return which share of them comes out again.

    Nearly all do where the ids are this tokenizer's. Another's spell broken words, which it cuts elsewhere.
    """
    vocabulary = tabulate(tokenizer)
    rows = [row for row in pieces(offsets, ids) if len(row)]
    rows = rows[: 1 + int(np.searchsorted(np.cumsum([len(row) for row in rows]), _MOST_TOKENS))]
    spans = [vocabulary.spans(row) for row in rows]
    again = tokenizer.encode_batch([each.content.tobytes().decode("utf-8", "replace") for each in spans])
    same = 0
    for row, each, start, length in zip(rows, spans, again.starts().tolist(), again.lengths.tolist(), strict=True):
        fresh = again.ids[start : start + length].astype(np.int64)
        places = vocabulary.spans(fresh).starts[:-1]
        same += int(np.isin(each.starts[:-1] * len(vocabulary) + row, places * len(vocabulary) + fresh).sum())
    return same / (sum(map(len, rows)) or 1)


def whose_ids(own: Mapping[str, float]) -> str:
    """Say which side's tokenizer is probably another one. own: what `own_share` says of a side, by its name."""
    shares = " and ".join(f"{percent(share)} of the {side}'s" for side, share in own.items())
    others = [f"the {side}'s tokenizer" for side, share in own.items() if share < _OWN]
    are = "is probably another than the one" if len(others) == 1 else "are probably others than those"
    verdict = f"{' and '.join(others)} {are} that gave them" if others else "they are ids of these tokenizers, so look at the texts"
    return f"Of the ids, {shares} come out again when what they spell is tokenized anew: {verdict}."
