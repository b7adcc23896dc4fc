"""Load a tokenizer from a folder or a file, with its content identity."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from zephon_core.errors import SourceChangedError, TokenizerError
from zephon_core.store import ArtifactStore
from zephon_core.tokenizers.added_tokens import AddedTokens
from zephon_core.tokenizers.early_cut import encode_first, find_early_cut
from zephon_core.tokenizers.huggingface import encode_with_huggingface
from zephon_core.tokenizers.identity import content_sha256, largest_id
from zephon_core.tokenizers.memo import IdentityMemo
from zephon_core.tokenizers.ragged import RaggedIds
from zephon_core.tokenizers.sentencepiece_file import sentencepiece_to_definition
from zephon_core.tokenizers.tiktoken_file import is_ranks, ranks_to_definition

if TYPE_CHECKING:
    import tokenizers

__all__ = ["Tokenizer", "identify_tokenizer", "load_identified", "load_tokenizer"]

_SLOW_FILES = ("vocab.txt", "vocab.json", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "*.tiktoken", "tekken.json")
_FILE, _CONFIG = "tokenizer.json", "tokenizer_config.json"
_BULKY_MODEL_KEYS = ("vocab", "merges")


class Tokenizer:
    """A fast Hugging Face tokenizer, without truncation or padding, and what it is.

    vocab_size: the largest id it can give, plus one.
    structure: its tokenizer.json without vocabulary and merges. definition_json: the whole, as JSON.
    early_cut: where a long text can be cut before it is encoded, without changing its first ids; None if that can't be known.
    Encoding is safe from any number of threads at once.
    """

    def __init__(self, definition_json: bytes, *, origin: str, memo: IdentityMemo | None = None) -> None:
        """Take a tokenizer.json's bytes; origin names it in messages. memo: where its identity is looked for before it is found.

        Raises TokenizerError where it is no tokenizer.json.
        """
        import tokenizers

        self.origin = origin
        self.definition_json = definition_json
        definition = _parse(definition_json, origin)
        try:
            self.huggingface: tokenizers.Tokenizer = tokenizers.Tokenizer.from_str(definition_json.decode("utf-8"))
        except Exception as error:  # the library raises no narrower type for a definition that it can't use
            raise _broken(origin, f"can't be used ({_one_line(error)})") from error
        self.huggingface.no_truncation()
        self.huggingface.no_padding()
        if memo is not None:
            self.content_sha256 = _remembered(memo, definition_json, definition)
        self.vocab_size = largest_id(definition) + 1
        self.structure: dict[str, Any] = {
            **definition,
            "model": {key: value for key, value in definition["model"].items() if key not in _BULKY_MODEL_KEYS},
        }
        self.added_tokens = AddedTokens.of(definition)
        self.early_cut, self._early_cut_words = find_early_cut(definition, self.added_tokens)

    @cached_property
    def content_sha256(self) -> str:
        """See `zephon_core.tokenizers.content_sha256`. Found when it is first asked for, or at once where it is remembered."""
        return content_sha256(self.definition())

    def encode_batch(self, texts: Sequence[str], *, max_tokens: int | None = None) -> RaggedIds:
        """All ids of each text, no special tokens added, on every core that the tokenizers library is allowed.

        With `max_tokens`, only the first so many of each, and the single id 0 for a text without ids: what banks hold.
        """
        encoded = partial(encode_with_huggingface, self.huggingface)
        if max_tokens is None:
            return encoded(texts)
        first = encode_first(encoded, texts, max_tokens, self.early_cut)
        return RaggedIds(first.ids, first.lengths)

    def definition(self) -> dict[str, Any]:
        """Parse the whole tokenizer.json anew. The result is large: don't keep it."""
        return _parse(self.definition_json, self.origin)

    def describe(self) -> dict[str, Any]:
        """Describe it for manifests and reports: JSON-able, without paths."""
        return {
            "content_sha256": self.content_sha256,
            "vocab_size": self.vocab_size,
            "model": self.structure["model"].get("type", ""),
            "normalizer": _node_names(self.structure.get("normalizer")),
            "pre_tokenizer": _node_names(self.structure.get("pre_tokenizer")),
            "added_tokens": len(self.added_tokens.contents),
            "early_cut": self._early_cut_words,
        }


def identify_tokenizer(path: str | Path, store: ArtifactStore) -> str:
    """Return the `content_sha256` of the tokenizer that `load_tokenizer` would load, without loading it if the store knows it.

    Raises TokenizerError as `load_tokenizer` does.
    """
    memo = _memo(store)
    file = Path(path) / _FILE if Path(path).is_dir() else Path(path)
    if not file.is_file():
        return load_tokenizer(path, store=store).content_sha256
    config = Path(path) / _CONFIG
    contents = [_read(file), _read(config)] if config.is_file() else [_read(file)]
    known = memo.get(*contents)
    if not known:
        known = load_tokenizer(path, store=store).content_sha256
        if contents[0].lstrip()[:1] == b"{":  # other files are identified by what this version makes of them
            memo.put(known, *contents)
    return known


def load_tokenizer(path: str | Path, *, store: ArtifactStore | None = None) -> Tokenizer:
    """Load a tokenizer from a Hugging Face folder, a tokenizer.json, a file of tiktoken ranks or a SentencePiece model.

    Ranks and SentencePiece models become a tokenizer.json in memory that gives the same ids; see `tiktoken_file` and
    `sentencepiece_file`. A folder's tokenizer.json is taken as it is. A folder that has other formats only (vocab.txt,
    vocab.json with merges.txt, tokenizer.model, ...) is converted by transformers, offline.

    store: where its identity is remembered. Raises TokenizerError for anything missing, broken, or at odds with the folder's
    tokenizer_config.json.
    """
    path = Path(path)
    memo = _memo(store) if store else None
    if path.is_file():
        return Tokenizer(_definition(_read(path), path), origin=str(path), memo=memo)
    if not path.is_dir():
        raise TokenizerError(str(path), "is not there", wanted="a Hugging Face folder or a tokenizer file")
    file = path / _FILE
    if file.is_file():
        tokenizer = Tokenizer(_read(file), origin=str(file), memo=memo)
        _refuse_contradictions(path / _CONFIG, tokenizer)
        return tokenizer
    if any(True for pattern in _SLOW_FILES for _ in path.glob(pattern)):
        return Tokenizer(_converted(path), origin=str(path), memo=memo)
    raise TokenizerError(str(path), "holds no tokenizer", wanted="a tokenizer.json", remedy="Name the folder or file that has one.")


def load_identified(path: str | Path, content_sha256: str, *, store: ArtifactStore) -> Tokenizer:
    """Load the tokenizer that was identified at `path`. Raises SourceChangedError where another one lies there now."""
    tokenizer = load_tokenizer(path, store=store)
    if tokenizer.content_sha256 != content_sha256:
        raise SourceChangedError(str(path))
    return tokenizer


def _memo(store: ArtifactStore) -> IdentityMemo:
    return IdentityMemo(store.root / "memo" / "tokenizers")


def _remembered(memo: IdentityMemo, definition_json: bytes, definition: dict[str, Any]) -> str:
    known = memo.get(definition_json)
    if not known:
        known = content_sha256(definition)
        memo.put(known, definition_json)
    return known


def _definition(content: bytes, path: Path) -> bytes:
    """Return the tokenizer.json that a file is, or is turned into."""
    if path.suffix == ".json" or content.lstrip()[:1] == b"{":
        return content
    if is_ranks(content):
        return ranks_to_definition(content, path)
    return sentencepiece_to_definition(content, path)


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise TokenizerError(str(file), f"can't be read ({error.strerror})") from error


def _parse(definition_json: bytes, origin: str) -> dict[str, Any]:
    try:
        definition = orjson.loads(definition_json)
    except orjson.JSONDecodeError as error:
        raise _broken(origin, f"is not JSON ({error})") from error
    model = definition.get("model") if isinstance(definition, dict) else None
    if not isinstance(model, dict) or not isinstance(model.get("vocab"), dict | list):
        raise _broken(origin, "has no model with a vocabulary")
    result: dict[str, Any] = definition
    return result


def _broken(origin: str, found: str) -> TokenizerError:
    return TokenizerError(
        origin, found, wanted="a tokenizer.json as the tokenizers library writes it", remedy="Fetch or save it again."
    )


def _converted(folder: Path) -> bytes:
    """Have transformers convert a folder without tokenizer.json, and return the tokenizer.json it would save."""
    remedy = "Save it once as tokenizer.json: AutoTokenizer.from_pretrained(folder).save_pretrained(folder)."
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        found = "has no tokenizer.json, and converting its files needs transformers"
        raise TokenizerError(str(folder), found, remedy="pip install transformers.") from error
    try:
        converted = AutoTokenizer.from_pretrained(str(folder), use_fast=True, local_files_only=True)
    except Exception as error:  # transformers and its converters raise whatever their libraries do
        found = f"has no tokenizer.json, and transformers can't convert its files ({_one_line(error)})"
        raise TokenizerError(str(folder), found, remedy=remedy) from error
    if not getattr(converted, "is_fast", False):
        raise TokenizerError(str(folder), "has no tokenizer.json, and no fast form that it could be converted to", remedy=remedy)
    text: str = converted.backend_tokenizer.to_str()
    return text.encode("utf-8")


def _refuse_contradictions(config_file: Path, tokenizer: Tokenizer) -> None:
    """Refuse a folder whose tokenizer_config.json makes transformers give other ids than its tokenizer.json alone would."""
    if not config_file.is_file():
        return
    try:
        config = orjson.loads(_read(config_file))
    except orjson.JSONDecodeError as error:
        raise TokenizerError(str(config_file), f"is not JSON ({error})") from error
    if not isinstance(config, dict):
        raise TokenizerError(str(config_file), "is not a JSON object")
    remedy = "Save the folder again with transformers' save_pretrained, or name the tokenizer.json itself to use it as it is."
    added = config.get("added_tokens_decoder")
    for token_id, token in added.items() if isinstance(added, dict) else ():
        content = str(token.get("content")) if isinstance(token, dict) else str(token)
        found_id = tokenizer.huggingface.token_to_id(content)
        if found_id is None or str(found_id) != token_id:
            found = f"adds token {content!r} as id {token_id}, which tokenizer.json has " + (
                f"as {found_id}" if found_id is not None else "not"
            )
            raise TokenizerError(str(config_file), found, remedy=remedy)
    normalizer = tokenizer.structure.get("normalizer") or {}
    lowercase = config.get("do_lower_case")
    if normalizer.get("type") == "BertNormalizer" and isinstance(lowercase, bool) and lowercase != normalizer.get("lowercase"):
        found = f"says do_lower_case: {str(lowercase).lower()}, and tokenizer.json the opposite"
        raise TokenizerError(str(config_file), found, remedy=remedy)


def _node_names(node: dict[str, Any] | None) -> str:
    if node is None:
        return ""
    parts = node.get("normalizers") or node.get("pretokenizers")
    return " + ".join(_node_names(part) for part in parts) if parts else str(node.get("type", ""))


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
