"""The chart of several runs in one figure."""

import subprocess
from pathlib import Path

import matplotlib.pyplot as plt
import pandas

from docs.pictures.screenshots import HERE, HOOKYARD, compress
from orchestrator import open_run


def draw_curves(folder: Path) -> None:
    """Train the starter with three learning rates, and draw their validation losses."""
    subprocess.run([*HOOKYARD, "init", "spirals"], cwd=folder, check=True)
    reports = []
    for rate in ("0.003", "0.01", "0.03"):
        name = f"lr-{rate}"
        command = [*HOOKYARD, "run", "spirals.yaml", "--local", "--name", name]
        subprocess.run([*command, f"optimizer.lr={rate}"], cwd=folder, check=True)
        reports.append(open_run(folder / "runs" / name).metrics.assign(run=name))

    curves = pandas.concat(reports).pivot(index="epoch", columns="run", values="val/loss")
    curves.plot(ylabel="val/loss", figsize=(7, 3.5))
    plt.savefig(HERE / "curves.png", dpi=140, bbox_inches="tight")
    compress(HERE / "curves.png")
