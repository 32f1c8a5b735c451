"""A reversible tokenizer of ten thousand ids, and a hostile way of sampling with it.

Text becomes ids greedily from the left: a control token, a common word, two ASCII characters, one
character, or the bytes of a character. So tokens merge across the ends of messages, and what a
piece becomes depends on everything since the last control token: tokenising two texts apart gives
other ids than tokenising them together. Every id decodes to one text; most texts have many ids
(`sampled`), as a real vocabulary has: what a model sampled is seldom what its tokenizer would make
of the text. Whoever re-tokenises instead of remembering ids is found out by this one.
"""

import random
import re
from collections.abc import Iterable, Sequence
from functools import cached_property

CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKUP_TOKENS = (
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)
WORDS = (
    " the", " a", " file", " def", " test", " fix", " ok", " return", " and", " is", " in", " to",
    " you", "assistant", "system", "user", "name", "arguments", "command", "function", "    ",
    "ing", "tion", " \u2713", " na\u00efve", " \u6f22",
)  # fmt: skip
_ASCII = ["\n", *map(chr, range(32, 127))]
_FIRST_CONTROL = 256
_FIRST_WORD = 272
_FIRST_TWIN = 400
_FIRST_PAIR = 512


class ToyTokenizer:
    """Text to ids and back; `adversarial` makes `sampled` choose among the spellings of a text.

    Ids 0 to 255 are bytes, then control and markup tokens, words, a second id for each ASCII
    character, and the pairs. Ids above the last pair, up to `vocab_size`, decode to U+FFFD.
    """

    vocab_size = 10_000

    def __init__(self, *, adversarial: bool = False) -> None:
        self.adversarial = adversarial
        special = CONTROL_TOKENS + MARKUP_TOKENS
        self.special_ids = {text: _FIRST_CONTROL + i for i, text in enumerate(special)}
        self.pad_id = self.special_ids["<|endoftext|>"]
        self.end_id = self.special_ids["<|im_end|>"]
        self._ids = {text: _FIRST_WORD + i for i, text in enumerate(WORDS)} | self.special_ids
        self._ids |= {char: ord(char) for char in _ASCII}
        for i, left in enumerate(_ASCII):
            for j, right in enumerate(_ASCII):
                self._ids[left + right] = _FIRST_PAIR + len(_ASCII) * i + j
        self._bytes = [b"\xef\xbf\xbd"] * self.vocab_size
        for number in range(256):
            self._bytes[number] = bytes([number])
        for text, number in self._ids.items():
            self._bytes[number] = text.encode()
        for i, char in enumerate(_ASCII):
            self._bytes[_FIRST_TWIN + i] = char.encode()
        words = "|".join(map(re.escape, WORDS))
        self._pieces = re.compile(rf"{words}|[\n -~][\n -~]|[\s\S]")
        # Split off first: a pair must not swallow the start of a control token.
        self._special = re.compile(f"({'|'.join(map(re.escape, special))})")

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`; raises UnicodeEncodeError (a ValueError) on lone surrogates."""
        ids: list[int] = []
        for index, part in enumerate(self._special.split(text)):
            if index % 2:
                ids.append(self.special_ids[part])
            elif part:
                ids += self._encode_plain(part)
        return ids

    def _encode_plain(self, text: str) -> list[int]:
        known = self._ids
        pieces = self._pieces.findall(text)
        try:
            return [known[piece] for piece in pieces]
        except KeyError:
            ids: list[int] = []
            for piece in pieces:
                number = known.get(piece)
                ids += piece.encode() if number is None else (number,)
            return ids

    def sampled(self, text: str, seed: int) -> list[int]:
        """Return ids that decode to `text`, as a model might have sampled them."""
        if not self.adversarial:
            return self.encode(text)
        chance = random.Random(seed)
        ids: list[int] = []
        for index, part in enumerate(self._special.split(text)):
            if index % 2:
                ids.append(self.special_ids[part])
                continue
            position = 0
            while position < len(part):
                step = 2 if chance.random() < 0.5 else 1
                number = self._ids.get(part[position : position + step])
                if number is None or position + step > len(part):
                    ids += part[position].encode()
                    step = 1
                elif step == 1 and chance.random() < 0.5:
                    number = _FIRST_TWIN + _ASCII.index(part[position])
                    ids.append(number)
                else:
                    ids.append(number)
                position += step
        return ids

    def decode(self, ids: Iterable[int], *, skip_control: bool = False) -> str:
        """Return the text of `ids`; half characters become U+FFFD."""
        table = self._bytes
        if skip_control:
            control = {self.special_ids[text] for text in CONTROL_TOKENS}
            ids = [number for number in ids if number not in control]
        return b"".join([table[number] for number in ids]).decode("utf-8", "replace")

    def piece(self, number: int) -> bytes:
        """Return the bytes that id `number` stands for."""
        return self._bytes[number]

    @cached_property
    def printable_ids(self) -> Sequence[int]:
        """Ids of whole pieces that hold no markup: what invented text is drawn from."""
        found = (
            number
            for text, number in self._ids.items()
            if number >= _FIRST_WORD and not set(text) & set('<>[]\n\\"')
        )
        return sorted(found)
