"""`python -m tests.schedules`: fuzz the cells (shape and dtype) of one tier, one JSON line each; exit 1 if one failed.

A process of its own, because the tier is chosen once, when the kernels are loaded; "torch" runs without them.
"""

import argparse
import json
import os
import sys
import tempfile
import traceback
import zlib
from pathlib import Path

TORCH_THREADS = 3
"""Without the native kernels: from four on, the BLAS behind torch may cut the sums of a ragged product in two."""


def main() -> int:
    """Run the cells asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.schedules", description=__doc__)
    parser.add_argument("--tier", default="", help="tier of the CPU kernels, or torch (default: the best there is)")
    parser.add_argument("--cells", nargs="*", help="such as llama/bfloat16 (default: all)")
    parser.add_argument("--schedules", type=int, default=18, help="per cell; wide shapes and float16 take a third")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shrink", action="store_true", help="look for the smallest failing schedule, for minutes")
    parser.add_argument("--folder", type=Path, help="where checkpoints are made, or lie from before")
    args = parser.parse_args()
    os.environ["OCTAVO_LOG_LEVEL"] = "ERROR"
    if args.tier == "torch":
        sys.modules["octavo.kernels.cpu._native"] = None  # type: ignore[assignment]  # as if it were not built
    elif args.tier:
        os.environ["OCTAVO_CPU_TIER"] = args.tier
    with tempfile.TemporaryDirectory() as made:
        return run_cells(args, args.folder or Path(made))


def run_cells(args: argparse.Namespace, root: Path) -> int:
    """Fuzz one cell after the other; a failure does not keep the others from running."""
    from tests.schedules.schedule import CROWD  # noqa: PLC0415 (after the tier is chosen)
    from tests.schedules.world import CELLS, World, checkpoint  # noqa: PLC0415

    failed = False
    for cell in args.cells or CELLS:
        shape, dtype = cell.split("/")
        world = World(checkpoint(root, shape), dtype, max_threads=TORCH_THREADS if args.tier == "torch" else 4)
        wide, beside = shape.startswith("wide"), dtype == "float16"
        error = None
        try:
            if wide:
                world.check(CROWD)
            count, start = args.schedules, zlib.crc32(f"{args.tier}/{cell}/{args.seed}".encode())
            world.fuzz(-(-count // 3) if wide or beside else count, start, args.shrink)
        except Exception as err:  # whatever it is, it is what the fuzzer was to find
            error = "".join(traceback.format_exception(err))
            repeat = f"--tier '{args.tier}' --cells {cell} --schedules {args.schedules} --seed {args.seed}"
            error += f"\nrepeat: python -m tests.schedules {repeat} --shrink"
            print(error, file=sys.stderr)
            failed = True
        finally:
            world.close()
        print(
            json.dumps(
                {"tier": args.tier, "cell": cell, **world.counts, "answers": f"{world.answers:08x}", "error": error}
            ),
            flush=True,
        )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
