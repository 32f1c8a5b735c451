"""Three lineages that are wrong on purpose: the check must find each of them out."""

from dataclasses import replace

from budwood.proxy.call import ChatRequest
from budwood.proxy.engine import Prompt
from budwood.trajectory_store import LaneId, PromptMode

from .lineage_check import Planned
from .real_lineage import RealLineage


class AlwaysForks(RealLineage):
    """Renders every prompt whole: safe, and each turn is a branch of its own."""

    async def plan(self, request: ChatRequest) -> Planned:
        """Render whole."""
        planned = await super().plan(request)
        plan = planned.detail
        plan.prompt = Prompt(await self.engine.render(plan.messages, request.tools, {}))
        plan.mode, plan.prompt_base, plan.prompt_common = PromptMode.RENDERED, None, 0
        return replace(planned, mode="rendered", prompt_ids=plan.prompt.ids)


class AlwaysSplices(RealLineage):
    """Takes any conversation that carries ids of ours for a continuation of its latest call."""

    async def plan(self, request: ChatRequest) -> Planned:
        """Put what ends the render behind the tokens of the latest call of the lane."""
        planned = await super().plan(request)
        plan = planned.detail
        turns = [t for t in self.lineage.forest.turns.values() if t.lane.id == plan.lane_id]
        answers = [i for i, m in enumerate(request.messages) if m.role == "assistant"]
        if not turns or not answers:
            return planned
        latest = max(turns, key=lambda turn: turn.seq)
        whole = await self.engine.render(plan.messages, request.tools, {})
        history = plan.messages[: answers[-1] + 1]
        text = self.engine.text(history, request.tools, add_generation_prompt=False)
        n_ends, at = text.count("<|im_end|>"), -1
        for _ in range(n_ends):
            at = whole.index(self.engine.tokenizer.end_id, at + 1)
        before = self.sampled[str(latest.id)]
        plan.parent, plan.mode = latest, PromptMode.SPLICED
        plan.prompt = Prompt(before + whole[at + 1 :])
        plan.prompt_base, plan.prompt_common = latest.id, len(before)
        return replace(planned, mode="spliced", prompt_ids=plan.prompt.ids)


class MergesLanes(RealLineage):
    """Takes agents with the same system text for one."""

    def __init__(self, *args: object, **options: object) -> None:
        super().__init__(*args, **options)  # pyright: ignore[reportArgumentType]
        self._by_system: dict[bytes, LaneId] = {}

    async def plan(self, request: ChatRequest) -> Planned:
        """Put the call into the lane of its system text."""
        planned = await super().plan(request)
        plan = planned.detail
        plan.lane_id = self._by_system.setdefault(request.messages[0].digest, plan.lane_id)
        return replace(planned, lane=str(plan.lane_id))
