"""The printable stand-ins for the 256 byte values that byte-level BPE vocabularies are written in (GPT-2's alphabet)."""

from __future__ import annotations

__all__ = ["BYTE_OF_SYMBOL", "SYMBOL_OF_BYTE", "text_of_symbols"]


def _byte_of_symbol() -> dict[str, int]:
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


BYTE_OF_SYMBOL = _byte_of_symbol()
SYMBOL_OF_BYTE = {byte: symbol for symbol, byte in BYTE_OF_SYMBOL.items()}


def text_of_symbols(token: str) -> str | None:
    """Return the text that a token of such a vocabulary stands for; None if its bytes alone are no UTF-8, or aren't bytes."""
    try:
        return bytes(BYTE_OF_SYMBOL[symbol] for symbol in token).decode("utf-8")
    except (KeyError, UnicodeDecodeError):
        return None
