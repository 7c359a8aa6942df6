"""`octavo models`: the catalogue, and the architectures that have a definition here."""

import argparse
import json

from octavo.cli.command import Command
from octavo.loader.catalogue import list_models
from octavo.models.registry import MODELS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """How to print it."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Print both lists."""
    listings = list_models()
    if args.json:
        print(json.dumps({"catalogue": [m._asdict() for m in listings], "architectures": sorted(MODELS)}))
        return 0
    print("Catalogue (use the name as a model reference; `octavo pull NAME` fetches it now):")
    for m in listings:
        state = f"here: {m.path}" if m.is_here else "not fetched"
        print(f"  {m.name:24} {m.num_bytes / 1e6:6.0f} MB  {m.description} [{m.license}] ({state})")
    print("Architectures (folders, .gguf files and hub models of these run):")
    for name in sorted(MODELS):
        print(f"  {name}")
    return 0


COMMAND = Command(add_arguments, run)
