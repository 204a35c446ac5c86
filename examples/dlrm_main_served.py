"""A TorchRec DLRM with the flags of the reference training script: trained, planned and served.

Run it: ``python examples/dlrm_main_served.py``.  It is ``dlrm_main.py`` and three lines: the import,
the plan, the conversion.
"""

import argparse
import signal
from collections.abc import Iterator

import torch
from torchmetrics.functional.classification import binary_auroc
from torchrec.datasets.utils import Batch
from torchrec.models.dlrm import DLRM, DLRMTrain
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

import grace_torchrec as grace


def parse() -> argparse.Namespace:
    """Flags of the reference script."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch_size", type=int, default=256)
    parser.add_argument("--limit_train_batches", type=int, default=40)
    parser.add_argument("--num_embeddings_per_feature", type=str, default="4000,100,50")
    parser.add_argument("--embedding_dim", type=int, default=64)
    parser.add_argument("--dense_arch_layer_sizes", type=str, default="128,64")
    parser.add_argument("--over_arch_layer_sizes", type=str, default="128,1")
    parser.add_argument("--learning_rate", type=float, default=0.5)
    return parser.parse_args()


def batches(args: argparse.Namespace, sizes: list[int], count: int) -> Iterator[tuple]:
    """Yield a history of 30 items from the three tastes of each user, and ids of the context."""
    items, users = 20, args.batch_size  # of a taste
    popular = torch.arange(items).add(1.0).reciprocal().expand(users * 3, -1)
    for _ in range(count):
        tastes = torch.randint(sizes[0] // items, (users, 3)) ** 2 // (sizes[0] // items)
        history = tastes.view(-1, 1) * items + torch.multinomial(popular, 10)
        bags = KeyedJaggedTensor(
            keys=[f"cat_{i}" for i in range(len(sizes))],
            values=torch.cat([history.flatten(), *(torch.randint(n, (users,)) for n in sizes[1:])]),
            lengths=torch.tensor([30] + [1] * (len(sizes) - 1)).repeat_interleave(users),
        )
        clicks = (tastes.min(1).values < 6) ^ (torch.rand(users) < 0.2)
        yield torch.rand(users, 13), bags, clicks.long()


def main() -> None:
    """Train for some batches, then evaluate."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it without a traceback
    args = parse()
    torch.manual_seed(0)
    texts = args.num_embeddings_per_feature, args.dense_arch_layer_sizes, args.over_arch_layer_sizes
    sizes, dense, over = ([int(size) for size in text.split(",")] for text in texts)
    tables = [
        EmbeddingBagConfig(size, args.embedding_dim, f"t_cat_{i}", feature_names=[f"cat_{i}"])
        for i, size in enumerate(sizes)
    ]
    model = DLRM(EmbeddingBagCollection(tables=tables), 13, dense, over)
    train_model, seen = DLRMTrain(model), list(batches(args, sizes, args.limit_train_batches))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.learning_rate)
    for batch in seen:
        optimizer.zero_grad()
        train_model(Batch(*batch))[0].backward()
        optimizer.step()
    plan = grace.plan(model, grace.profile(seen, model), grace.MemoryModel.named("a40"))
    model = grace.convert(model, plan, example=seen[0][:2])
    test = list(batches(args, sizes, args.limit_train_batches // 5))
    with torch.no_grad():
        logits = torch.cat([model(dense, bags) for dense, bags, _ in test])
    auroc = binary_auroc(logits.flatten(), torch.cat([labels for _, _, labels in test]))
    print(f"AUROC over test set: {auroc:.6f}")


if __name__ == "__main__":
    main()
