"""Which tokens come before what will be sampled: the prefix forest, and suffixes for new messages.

It may use the canonical call, the engine's prompts and the store's words.
It never knows HTTP, sockets or how anything is stored.
"""
