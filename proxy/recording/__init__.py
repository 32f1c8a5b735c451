"""One call from its plan to its commit, and what it leaves in memory.

    recorder ──▶ lineage (its prompt) ──▶ generation (sampled, followed) ──▶ ledger (durable)

It owns no socket: `doors` bring requests in and take answers out. It may use `lineage`, `engine`
and `call`.
"""

from .generation import Finished, Generation
from .live import LiveRollout, LiveRollouts
from .recorder import Recorder

__all__ = ["Finished", "Generation", "LiveRollout", "LiveRollouts", "Recorder"]
