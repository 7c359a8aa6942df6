"""The tools of a chat request: what may be called, and whether something must be."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from octavo.errors import ClientError
from octavo.parsers.calls import Tool


class ToolUse(NamedTuple):
    """What a request says about tools.

    Attributes:
        functions: that may be called.
        mode: "none": no call; "auto": as the model likes; "required": at least one.
        parallel: several calls in one answer.
    """

    functions: tuple[Tool, ...] = ()
    mode: Literal["none", "auto", "required"] = "none"
    parallel: bool = True


class Allowed(NamedTuple):
    """The fields `tools` and `tool_choice`."""

    tools: list[dict[str, Any]] | None
    choice: Any


def allowed_tools(tools: list[dict[str, Any]] | None, choice: Any) -> Allowed:
    """What a `tool_choice` that names the tools allowed leaves of them: the model is told of no others.

    Raises:
        ClientError: it is malformed, or names what is not in `tools`.
    """
    if not isinstance(choice, dict) or choice.get("type") != "allowed_tools":
        return Allowed(tools, choice)
    said = choice.get("allowed_tools")
    mode, listed = (said.get("mode"), said.get("tools")) if isinstance(said, dict) else (None, None)
    if mode not in ("auto", "required") or not isinstance(listed, list) or not listed:
        raise ClientError(
            'tool_choice of type allowed_tools needs a mode, "auto" or "required", and tools, a list of functions',
            param="tool_choice",
        )
    names = {_function(place, tool, "tool_choice").name for place, tool in enumerate(listed)}
    kept = [tool for place, tool in enumerate(tools or ()) if _function(place, tool).name in names]
    unknown = names - {tool["function"]["name"] for tool in kept}
    if unknown:
        raise ClientError(f"tool_choice allows {min(unknown)[:80]!r}, which is not in tools", param="tool_choice")
    return Allowed(kept, mode)


def tool_use(tools: Sequence[dict[str, Any]] | None, choice: Any, parallel: bool = True) -> ToolUse:
    """Tools and `tool_choice` in the form of OpenAI's chat API. A named function is the only one, and required.

    Raises:
        ClientError: not such a thing; `param` names the field.
    """
    if tools is not None and not tools:
        raise ClientError("tools is empty; leave it out", param="tools")
    functions = tuple(_function(place, tool) for place, tool in enumerate(tools or ()))
    if choice == "none" or (choice is None and not functions):
        return ToolUse(functions, "none", parallel)
    if not functions:
        raise ClientError("tool_choice needs tools", param="tool_choice")
    if choice in (None, "auto"):
        return ToolUse(functions, "auto", parallel)
    if choice == "required":
        return ToolUse(functions, "required", parallel)
    function = choice.get("function") if isinstance(choice, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise ClientError(
            'tool_choice must be "none", "auto", "required", {"type": "function", "function": {"name": ...}} or '
            '{"type": "allowed_tools", "allowed_tools": {"mode": ..., "tools": [...]}}',
            param="tool_choice",
        )
    named = tuple(function for function in functions if function.name == name)
    if not named:
        raise ClientError(f"tool_choice names {name[:80]!r}, which is not in tools", param="tool_choice")
    return ToolUse(named[:1], "required", parallel=False)


def _function(place: int, tool: Any, param: str = "tools") -> Tool:
    tool = tool if isinstance(tool, dict) else {}
    function = tool.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(function, dict) or tool.get("type") != "function" or not isinstance(name, str) or not name:
        raise ClientError('a tool must be {"type": "function", "function": {"name": ...}}', param=param)
    parameters = function.get("parameters")
    if parameters is not None and not isinstance(parameters, dict):
        raise ClientError(
            f"tools[{place}].function.parameters is {type(parameters).__name__}; a JSON schema is an object",
            param="tools",
        )
    return Tool(name, parameters or {}, function.get("strict") is True)
