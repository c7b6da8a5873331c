"""Cost of an operation at three sizes, with the law that follows from them.

    python -m benchmarks.growth WHAT [sizes ...]

Each WHAT is a file of this folder, which describes its data and counts.
"""

import sys
from importlib import import_module
from pathlib import Path

WHATS = sorted(
    file.stem.replace("_", "-")
    for file in Path(__file__).parent.glob("[!_]*.py")
    if file.stem != "law"
)


def main(arguments: list[str]) -> None:
    if not arguments or arguments[0] not in WHATS:
        sys.exit(f"{__doc__}\nAvailable: {', '.join(WHATS)}")
    import_module(f"benchmarks.growth.{arguments[0].replace('-', '_')}").main(
        [int(size) for size in arguments[1:]]
    )


if __name__ == "__main__":
    main(sys.argv[1:])
