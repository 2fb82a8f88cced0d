"""What RMD adds to a whole ResNet-18 training step: forward, backward and update, batch 128, against SGD.

    python benchmarks/overhead.py --out results/overhead.json

It is `rmd bench` with a record; that command takes other networks and potentials too.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from recording import record

from mirrordescent.lab.bench import Bench, measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--blocks", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to measure, about")
    parser.add_argument("--out", type=Path, help="where to write the record")
    arguments = parser.parse_args()
    bench = Bench(model="resnet18", batch_size=arguments.batch_size, blocks=arguments.blocks, seconds=arguments.seconds)
    costs = measured(bench)
    for row in costs.rows:
        for way, found in (("eager", row.eager), ("graph", row.graph)):
            if found is not None:
                print(f"{way}: {row.method} / SGD = {found.middle:.4f}   quartiles [{found.low:.4f}, {found.high:.4f}]")
    record("overhead", costs.to_dict(), arguments.out)


if __name__ == "__main__":
    main()
