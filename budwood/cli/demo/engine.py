"""The demo's vLLM, with its log in the demo's folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from .screen import DemoFailed, Place

if TYPE_CHECKING:
    from budwood.proxy.engine.launch import RunningEngine


@contextmanager
def engine_of(
    place: Place,
    model: Path,
    *,
    name: str,
    max_model_len: int,
    dev_routes: bool = False,
    extra: tuple[str, ...] = (),
) -> Iterator[RunningEngine]:
    """Serve a model in float32 as long as the context is open; raises DemoFailed."""
    from budwood.proxy.engine.environment import has_vllm
    from budwood.proxy.engine.launch import Launch, engine_running
    from budwood.proxy.engine.launch_errors import LaunchError

    is_cpu = not has_vllm(cpu=False) or has_vllm(cpu=True)
    place.clock.say(f"$ budwood engine {name}{' --cpu' if is_cpu else ''} -- --dtype float32")
    launch = Launch(
        model=str(model),
        cpu=is_cpu,
        port=0,
        served_name=name,
        max_model_len=max_model_len,
        dtype="float32",
        dev_routes=dev_routes,
        extra=extra,
    )
    with ExitStack() as stack:
        log = stack.enter_context((place.logs / f"engine-{name}.txt").open("w"))

        def keep(line: str) -> None:
            log.write(f"{line}\n")

        try:
            running = stack.enter_context(
                engine_running(launch, say=place.clock.more, on_line=keep)
            )
        except LaunchError as error:
            raise DemoFailed(str(error)) from error
        yield running
