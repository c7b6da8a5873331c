"""Cost of an operation at three sizes, with the law that follows from them.

    python -m benchmarks.growth OPERATION [sizes ...]

Each OPERATION is a file of this folder, which describes its data and counts.
"""

import sys
from importlib import import_module
from pathlib import Path

OPERATIONS = sorted(
    file.stem.replace("_", "-")
    for file in Path(__file__).parent.glob("[!_]*.py")
    if file.stem != "law"
)


def main(arguments: list[str]) -> None:
    if not arguments or arguments[0] not in OPERATIONS:
        sys.exit(f"{__doc__}\nAvailable: {', '.join(OPERATIONS)}")
    import_module(f"benchmarks.growth.{arguments[0].replace('-', '_')}").main(
        [int(size) for size in arguments[1:]]
    )


if __name__ == "__main__":
    main(sys.argv[1:])
