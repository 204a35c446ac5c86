"""Our lookup over the memory of table batches, whatever batches bring along."""

import torch
from torchrec import KeyedJaggedTensor

KEYS = ("item", "seen", "shop")


def with_foreign(bags: KeyedJaggedTensor, number: int) -> KeyedJaggedTensor:
    """The bags, and a feature that nobody reads in their midst."""
    place = number % 4
    keys, lengths = list(bags.keys()), list(bags.lengths().reshape(len(KEYS), -1))
    keys.insert(place, f"foreign {number}")
    lengths.insert(place, torch.zeros_like(lengths[0]))
    return KeyedJaggedTensor(keys, bags.values(), lengths=torch.cat(lengths))


def test_features_that_nobody_reads_fill_no_memory(model_of, served_of, batch) -> None:
    served = served_of(model_of(), streams=1)
    dense, bags = batch
    wanted, collection = served(dense, bags), served.collections["sparse"]
    for number in range(200):
        assert torch.equal(served(dense, with_foreign(bags, number)), wanted)
    assert collection.is_direct
    direct = collection._direct
    assert len(direct._by_keys) < 100
    assert len(direct._by_position) < 10
