"""Why a call's prompt was made as it was: the codes of lineage; replies have `engine/exactness.py`.

The same codes stand in the ledger, in `show --why`, in export manifests and in metrics.
"""

from enum import StrEnum


class Reason(StrEnum):
    """A code and, in `EXPLANATIONS`, what it means to a reader."""

    FIRST_CALL = "first_call"
    UNKNOWN_HISTORY = "unknown_history"
    HISTORY_EDITED = "history_edited"
    REASONING_DROPPED = "reasoning_dropped"
    TOOLS_CHANGED = "tools_changed"
    TRUNCATED = "truncated"
    MESSAGE_REMOVED = "message_removed"
    COMPACTED = "compacted"
    FOREIGN_ASSISTANT = "foreign_assistant"
    EMPTY_TAIL = "empty_tail"
    PARENT_CUT = "parent_cut"
    PARENT_WITHOUT_IDS = "parent_without_ids"
    ENGINE_CHANGED = "engine_changed"
    MEDIA = "media"
    TEMPLATE_EDITS = "template_edits"
    STOP_NOT_IN_GAP = "stop_not_in_gap"
    NO_RENDER = "no_render"
    AMBIGUOUS = "ambiguous"
    QUARANTINED = "quarantined"
    REJECTED = "rejected"
    MARKER_LOST = "marker_lost"
    MARKER_IN_TEXT = "marker_in_text"
    EMPTY_SUFFIX = "empty_suffix"
    NO_MARKERS = "no_markers"
    TOO_COMPLEX = "too_complex"
    REPAIRED = "repaired"
    CONSTRAINED = "constrained"
    GREEDY = "greedy"
    MIXED = "mixed"


EXPLANATIONS: dict[str, str] = {
    Reason.FIRST_CALL: "no answer in the history: the conversation starts here",
    Reason.UNKNOWN_HISTORY: "the history holds answers, but none as it was recorded here",
    Reason.HISTORY_EDITED: "the harness changed an earlier message: its edited form was rendered",
    Reason.REASONING_DROPPED: "the harness sent the history back without the model's reasoning",
    Reason.TOOLS_CHANGED: "tools or template arguments differ from those of the earlier call",
    Reason.TRUNCATED: "the harness shortened the text of an earlier message",
    Reason.MESSAGE_REMOVED: "the harness left earlier messages out",
    Reason.COMPACTED: "the harness replaced earlier messages by fewer others",
    Reason.FOREIGN_ASSISTANT: "the new messages hold an assistant turn that was not sampled here",
    Reason.EMPTY_TAIL: "nothing new follows the earlier reply",
    Reason.PARENT_CUT: "the earlier reply ended by length or by a stop string, not by its stop id",
    Reason.PARENT_WITHOUT_IDS: "the earlier reply has no token ids",
    Reason.ENGINE_CHANGED: "the earlier reply came from another tokenizer or chat template",
    Reason.MEDIA: "images or other media are present: the engine renders",
    Reason.TEMPLATE_EDITS: "the model's own template changes the history when this turn is added",
    Reason.STOP_NOT_IN_GAP: "the template closes the reply by another token than was sampled",
    Reason.NO_RENDER: "the engine offers no render route",
    Reason.AMBIGUOUS: "two earlier calls fit equally; the most recent was taken",
    Reason.QUARANTINED: "a whole render once differed for this structure: it is not spliced again",
    Reason.REJECTED: "the template refuses the small conversation that finds the suffix",
    Reason.MARKER_LOST: "the template does not show the reply where its end is looked for",
    Reason.MARKER_IN_TEXT: "the new messages spell the marker that a suffix is found by",
    Reason.EMPTY_SUFFIX: "the template writes nothing for the new messages",
    Reason.NO_MARKERS: "the tokenizer has no text whose ids stay the same in any place",
    Reason.TOO_COMPLEX: "the structure of the conversation has too many parts to be marked",
    Reason.REPAIRED: "the template refused the messages' roles; they were rearranged for rendering",
    Reason.CONSTRAINED: "sampling was constrained (forced tool, grammar, biased logits)",
    Reason.GREEDY: "temperature 0: of no use for reinforcement learning",
    Reason.MIXED: "the weights changed during the call",
}
