"""Suffix ids for the next turn: what a template writes between a sampled reply and what follows.

A continued call is sent as P + O + S: the recorded prompt, the sampled ids, and the suffix S, the
ids that the template puts after the sampled stop once the new messages stand there. S can't be
had by tokenising its text alone (tokenizers add spaces, special tokens eat newlines), nor by
counting stops in a whole render (tool output may spell them), nor from a template rendered with
and without the tail (many write their last turn otherwise).

What decides how a template behaves is the conversation's structure, not its words. So a small
conversation of the same structure is rendered, each text replaced by a numbered marker
(`skeleton`), with the reply closed by an end marker and the new messages real. The ids after the
first sampled stop behind the end marker are S: the real continuation, tokenised in its place, for
the price of the new messages. Which family the template belongs to is never asked; where the next
turn's own token serves as the stop, the same rule finds it.

Markers also tell what the template does to the history (`verdict`): three renders of the skeleton,
remembered by structure, show whether a marker is lost, repeated or moved when the new messages
come. An edit of meaning is never spliced over, for the model would be shown what it would not see
when deployed; the one exception is dropped reasoning in a run that keeps reasoning on purpose. A
reply that is closed by another token than the sampled one isn't spliced either.

What a template could still do unseen is to look at words. Tag-like pieces of texts are therefore
kept in the skeleton, and a share of the suffixes is compared with whole renders: one difference
quarantines the structure for good.

Uses the engine through `Renderer` only, so template and tokenizer are the engine's own. Knows
nothing of calls, lanes or the store.
"""

from .finder import Suffix, SuffixFinder
from .markers import MarkersUnstable
from .profile import TemplateProfile, probe_profile
from .renderer import Renderer, RenderRejected
from .repair import repaired
from .verdict import Kind

__all__ = [
    "Kind",
    "MarkersUnstable",
    "RenderRejected",
    "Renderer",
    "Suffix",
    "SuffixFinder",
    "TemplateProfile",
    "probe_profile",
    "repaired",
]
