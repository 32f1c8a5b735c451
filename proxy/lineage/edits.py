"""What a harness did to a history that carries our ids but no longer matches: a reason code.

Only a name for people to read: whatever it says, the conversation was rendered whole.
"""

from collections.abc import Sequence

from ..call import Message
from .reasons import Reason


def name_edit(before: Sequence[Message], after: Sequence[Message], *, same_tools: bool) -> Reason:
    """The reason code for the difference between a recorded conversation and the one sent now.

    `before` is the recorded request and its reply, `after` the incoming list.
    """
    shared = len(before)
    heads = [a.digest == b.digest for a, b in zip(before, after, strict=False)]
    if all(heads) and len(after) >= shared:
        return Reason.HISTORY_EDITED if same_tools else Reason.TOOLS_CHANGED
    bare = [a.bare_digest == b.bare_digest for a, b in zip(before, after, strict=False)]
    if all(bare) and len(after) >= shared:
        dropped = any(a.reasoning and not b.reasoning for a, b in zip(before, after, strict=False))
        return Reason.REASONING_DROPPED if dropped else Reason.HISTORY_EDITED
    kept = {message.digest for message in after}
    missing = [message for message in before if message.digest not in kept]
    known = {message.digest for message in before}
    if missing and _is_subsequence([m.digest for m in after if m.digest in known], before):
        first_new = next((m for m in after if m.digest not in known), None)
        if len(after) < shared and first_new is not None and len(missing) > 2:
            return Reason.COMPACTED
        if first_new is None or _stands_after(after, first_new, known):
            return Reason.MESSAGE_REMOVED
    at = bare.index(False) if False in bare else len(bare)
    if at < len(after) and at < shared and _is_shortened(before[at].text, after[at].text):
        return Reason.TRUNCATED
    return Reason.HISTORY_EDITED


def _is_subsequence(digests: Sequence[bytes], messages: Sequence[Message]) -> bool:
    rest = iter(message.digest for message in messages)
    return all(any(digest == other for other in rest) for digest in digests)


def _stands_after(after: Sequence[Message], new: Message, known: set[bytes]) -> bool:
    """Whether no recorded message follows the first new one: the new ones are only a tail."""
    position = next(i for i, message in enumerate(after) if message is new)
    return not any(message.digest in known for message in after[position:])


def _is_shortened(old: str, new: str) -> bool:
    """Whether `new` is shorter and keeps a start of `old` that is no accident."""
    if len(new) >= len(old):
        return False
    common = 0
    for a, b in zip(old, new, strict=False):
        if a != b:
            break
        common += 1
    return common >= min(16, len(new))
