"""A harness of thirty lines, for a demo on any system: a loop around two file tools.

    OPENAI_BASE_URL=... OPENAI_API_KEY=... python -m budwood.cli.demo.loop TASK

It stands in for a real harness and says so. Like many of them it writes tool arguments anew, in
its own spacing, before it sends them back, and streams its answers.
"""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import aiohttp

SYSTEM = "You are a loop of Budwood's demo, not a real harness. Use the tools, then say it is done."
MAX_TURNS = 8


def _tool(name: str, *parameters: str) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {parameter: {"type": "string"} for parameter in parameters},
        "required": list(parameters),
    }
    return {"type": "function", "function": {"name": name, "parameters": schema}}


TOOLS = [_tool("read_file", "path"), _tool("write_file", "path", "text")]


def use(name: str, arguments: dict[str, str]) -> str:
    """Do what a tool does, in the current folder only; return what the model reads."""
    path = Path(arguments["path"]).name
    if name == "write_file":
        Path(path).write_text(arguments["text"], encoding="utf-8", newline="\n")
        return f"wrote {path}"
    return Path(path).read_text(encoding="utf-8")


async def ask(session: aiohttp.ClientSession, messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the assistant's message, put together from a stream."""
    body = {"model": "demo", "messages": messages, "tools": TOOLS, "stream": True}
    message: dict[str, Any] = {"role": "assistant", "content": "", "reasoning_content": ""}
    calls: dict[int, dict[str, Any]] = {}
    async with session.post(f"{os.environ['OPENAI_BASE_URL']}/chat/completions", json=body) as got:
        got.raise_for_status()
        async for line in got.content:
            data = line.removeprefix(b"data:").strip()
            if not line.startswith(b"data:") or data == b"[DONE]":
                continue
            for choice in json.loads(data)["choices"]:
                delta = choice["delta"]
                message["content"] += delta.get("content") or ""
                message["reasoning_content"] += delta.get("reasoning_content") or ""
                for part in delta.get("tool_calls") or ():
                    call = calls.setdefault(part["index"], {"arguments": ""})
                    call["id"] = part.get("id") or call["id"]
                    call["name"] = part["function"].get("name") or call["name"]
                    call["arguments"] += part["function"].get("arguments") or ""
    if calls:
        message["tool_calls"] = [_again(call) for call in calls.values()]
    return message


def _again(call: dict[str, Any]) -> dict[str, Any]:
    arguments = json.dumps(json.loads(call["arguments"]), separators=(",", ":"))
    function = {"name": call["name"], "arguments": arguments}
    return {"id": call["id"], "type": "function", "function": function}


async def run(task: str) -> int:
    """Work on a task; return an exit status."""
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": task},
    ]
    headers = {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"}
    async with aiohttp.ClientSession(headers=headers) as session:
        for _ in range(MAX_TURNS):
            message = await ask(session, messages)
            messages.append(message)
            if not message.get("tool_calls"):
                print(message["content"].strip())
                return 0
            for call in message["tool_calls"]:
                result = use(call["function"]["name"], json.loads(call["function"]["arguments"]))
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
    return 1


if __name__ == "__main__":
    sys.exit(asyncio.run(run(sys.argv[1])))
