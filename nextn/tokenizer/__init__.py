"""Text <-> tokens: `Tokenizer` (encode, decode, chat) and `TextStream` (text as tokens arrive)."""

from nextn.tokenizer.chat import ChatTemplate
from nextn.tokenizer.stream import Piece, TextStream
from nextn.tokenizer.tokenizer import Tokenizer

__all__ = ["ChatTemplate", "Piece", "TextStream", "Tokenizer"]
