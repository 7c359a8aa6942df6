"""`octavo chat`: a conversation in the terminal. Ctrl-C stops an answer, not the program."""

import argparse
import sys
from collections.abc import Iterator

from octavo.cli.command import Command
from octavo.cli.talk import Answerer, Message, add_talk_flags, open_answerer, sampling_of
from octavo.errors import ClientError, EngineDeadError, EngineError

HELP = """\
  /help            this text
  /clear           forget the conversation (the system prompt stays)
  /system TEXT     set the system prompt and start afresh; without TEXT, show it
  /undo            take back the last question and its answer
  /retry           answer the last question again
  /exit            leave (so does Ctrl-D)
Ctrl-C stops an answer. A line that ends with \\ goes on in the next."""


class Conversation:
    """The messages so far, and what the commands do to them."""

    def __init__(self, system_prompt: str | None) -> None:
        self.system_prompt = system_prompt
        self.messages: list[Message] = []
        self.clear()

    def clear(self) -> None:
        """Forget everything but the system prompt."""
        system = [{"role": "system", "content": self.system_prompt}] if self.system_prompt else []
        self.messages = list(system)

    def undo(self) -> str | None:
        """Drop the last question and what came after it; returns the question, None if there is none."""
        while self.messages and self.messages[-1]["role"] != "system":
            message = self.messages.pop()
            if message["role"] == "user":
                return str(message["content"])
        return None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The model as a positional argument too, the system prompt, and the shared flags."""
    add_talk_flags(parser)
    parser.add_argument("model_ref", nargs="?", metavar="MODEL", help="the same as --model")
    parser.add_argument("--system-prompt", help="first message of the conversation")
    parser.add_argument("-q", "--quick", metavar="TEXT", help="ask one question, print the answer, leave")


def run(args: argparse.Namespace) -> int:
    """Ask once, or converse until the input ends."""
    if args.model_ref:
        args.model = args.model_ref
    with open_answerer(args) as answerer:
        conversation = Conversation(args.system_prompt)
        if args.quick is not None:
            return 0 if _ask(answerer, conversation, args.quick, sampling_of(args)) else 1
        if sys.stdin.isatty():
            print(f"Chatting with {answerer.model}. /help lists the commands, Ctrl-D leaves.")
        _converse(answerer, conversation, sampling_of(args))
    return 0


def _converse(answerer: Answerer, conversation: Conversation, sampling: dict[str, object]) -> None:
    for line in _lines():
        command, _, rest = line.partition(" ")
        if not line:
            continue
        if not line.startswith("/"):
            _ask(answerer, conversation, line, sampling)
        elif command == "/exit":
            return
        elif command == "/clear":
            conversation.clear()
        elif command == "/system":
            _system(conversation, rest.strip())
        elif command == "/undo":
            print("nothing to take back" if conversation.undo() is None else "taken back")
        elif command == "/retry":
            question = conversation.undo()
            if question is None:
                print("there is no question to answer again")
            else:
                _ask(answerer, conversation, question, sampling)
        else:
            print(HELP if command == "/help" else f"unknown command {command}; /help lists them")


def _system(conversation: Conversation, text: str) -> None:
    if text:
        conversation.system_prompt = text
        conversation.clear()
    else:
        print(conversation.system_prompt or "there is no system prompt")


def _lines() -> Iterator[str]:
    """What the user enters, until the end of the input; Ctrl-C at the prompt clears the line."""
    prompt = "> " if sys.stdin.isatty() else ""
    if prompt:
        import readline  # noqa: F401, PLC0415  gives input() editing and history
    parts: list[str] = []
    while True:
        try:
            line = input(prompt)
        except EOFError:
            return
        except KeyboardInterrupt:
            print()
            parts.clear()
            continue
        if line.endswith("\\"):
            parts.append(line[:-1])
            continue
        yield "\n".join([*parts, line]).strip()
        parts.clear()


def _ask(answerer: Answerer, conversation: Conversation, question: str, sampling: dict[str, object]) -> bool:
    """Stream the answer to the terminal and keep it; a failed question is taken back. True if there is an answer."""
    conversation.messages.append({"role": "user", "content": question})
    pieces: list[str] = []
    stream = answerer.chat(conversation.messages, sampling)
    try:
        for piece in stream:
            pieces.append(piece)
            print(piece, end="", flush=True)
    except KeyboardInterrupt:
        pieces.append("")  # stopped: what came so far is the answer
    except EngineDeadError:
        raise
    except (ClientError, EngineError) as err:
        print(f"{err}; /clear starts a new conversation", file=sys.stderr)
        conversation.undo()
        return False
    finally:
        stream.close()  # type: ignore[attr-defined]
    print()
    conversation.messages.append({"role": "assistant", "content": "".join(pieces)})
    return True


COMMAND = Command(add_arguments, run, takes_engine_options=True)
