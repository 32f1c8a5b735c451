"""The proxy's way to write calls, on a real store."""

from budwood.proxy.recording.ledger import Ledger
from budwood.trajectory_store import CallIntent, Store, new_call_id, new_lane_id


async def test_flushing_waits_while_the_writer_finishes_one_call_after_the_other(tmp_path):
    with Store.open(tmp_path / "store.db") as store:
        run = store.open_run("test")
        rollout, lane = store.open_rollout(run.id).id, new_lane_id()
        ledger = Ledger(store)
        for _ in range(5):
            for _ in range(200):
                ledger.intend(
                    CallIntent(
                        id=new_call_id(),
                        rollout_id=rollout,
                        dialect="chat",
                        lane=lane,
                        body_hash=b"",
                        body=b"{}",
                    )
                )
            await ledger.flushed()
        assert len(store.calls(rollout)) == 1000
