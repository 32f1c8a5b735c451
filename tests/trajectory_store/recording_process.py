"""A process that records until it is killed: `python recording_process.py URL`.

It says `ready ROLLOUT`, then one line a call that is durable: its id and the number that its tokens
are made of. Intents are left open in between, as a proxy's are.
"""

from __future__ import annotations

import sys
from array import array
from datetime import UTC, datetime

from budwood.trajectory_store import (
    CallId,
    CallIntent,
    CallResult,
    CallState,
    Lane,
    RequestBody,
    Store,
    new_call_id,
    new_lane_id,
)


def main(url: str) -> None:
    """Record for ever."""
    store = Store.open(url)
    rollout = store.open_rollout(store.open_run("process").id)
    lane = Lane(id=new_lane_id(), rollout_id=rollout.id, created_at=datetime.now(UTC))
    print("ready", rollout.id, flush=True)
    messages: list[bytes] = []
    parent: CallId | None = None
    prompt = array("I", [1, 2, 3])
    common = 0
    n = 0
    while True:
        n += 1
        messages.append(b'{"role":"user","content":"%d"}' % n)
        body = RequestBody.from_parts(b'{"messages":[\x00]}', messages)
        call_id = new_call_id()
        for each in (call_id, new_call_id()):
            store.begin_call(
                CallIntent(
                    id=each,
                    rollout_id=rollout.id,
                    dialect="chat",
                    lane=lane.id,
                    body_hash=b"h",
                    body=body,
                )
            )
        out = array("I", [n] * 50)
        store.finish_call(
            CallResult(
                id=call_id,
                state=CallState.COMMITTED,
                lane=lane,
                parent=parent,
                exact=True,
                prompt_ids=prompt,
                prompt_base=parent,
                prompt_common=common,
                out_ids=out,
                logprobs=array("f", [-0.25] * 50),
            )
        ).result()
        print(call_id, n, flush=True)
        parent, prompt = call_id, prompt + out
        common = len(prompt)


if __name__ == "__main__":
    main(sys.argv[1])
