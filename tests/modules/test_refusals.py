"""Which modules are swapped where: refused kinds with their reason, and shared modules everywhere."""

import copy
import re

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingCollection, EmbeddingConfig
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.inference.modules import quantize_inference_model
from torchrec.modules.embedding_modules import EmbeddingBagCollectionInterface
from torchrec.modules.feature_processor_ import PositionWeightedModuleCollection
from torchrec.modules.fp_embedding_modules import FeatureProcessedEmbeddingBagCollection
from torchrec.modules.mc_embedding_modules import (
    ManagedCollisionEmbeddingBagCollection,
    ManagedCollisionEmbeddingCollection,
)
from torchrec.modules.mc_modules import (
    DistanceLFU_EvictionPolicy,
    ManagedCollisionCollection,
    MCHManagedCollisionModule,
)

from grace_torchrec.errors import NotSupported
from grace_torchrec.modules.embedding_bag_collection import GraceEmbeddingBagCollection
from grace_torchrec.modules.refusals import all_places, refused_modules
from grace_torchrec.modules.swap import accelerate_, restore_


class OwnMeaning(EmbeddingBagCollection):
    """A subclass that adds something of its own."""

    def forward(self, features):
        return super().forward(features)


class Twin(EmbeddingBagCollectionInterface):
    """Another implementation of the interface, over a stock collection."""

    def __init__(self, inside: EmbeddingBagCollection) -> None:
        super().__init__()
        self.inside = inside

    def forward(self, features):
        return self.inside(features)

    def embedding_bag_configs(self):
        return self.inside.embedding_bag_configs()

    def is_weighted(self):
        return self.inside.is_weighted()


def managed_collisions(config):
    module = MCHManagedCollisionModule(
        zch_size=20, device=torch.device("cpu"), input_hash_size=100, eviction_interval=1,
        eviction_policy=DistanceLFU_EvictionPolicy(),
    )  # fmt: skip
    return ManagedCollisionCollection({config.name: module}, [config])


def sequence_config():
    return EmbeddingConfig(
        name="t_other", embedding_dim=4, num_embeddings=20, feature_names=["other"]
    )


@pytest.fixture(scope="module")
def one_process():
    """A process group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def config(table_of):
    return table_of("t_other", features=("other",))


@pytest.fixture
def make(config, collection_of, swap_of, request):
    """Return a function from a kind to a module of it."""

    def weighted():
        return EmbeddingBagCollection(tables=[config], is_weighted=True)

    def sharded():
        request.getfixturevalue("one_process")
        return DistributedModelParallel(
            nn.Sequential(collection_of([config])), device=torch.device("cpu")
        )

    kinds = {
        "sequence": lambda: EmbeddingCollection(tables=[sequence_config()]),
        "feature-processed": lambda: FeatureProcessedEmbeddingBagCollection(
            weighted(), PositionWeightedModuleCollection({"other": 10})
        ),
        "managed-collision": lambda: ManagedCollisionEmbeddingBagCollection(
            collection_of([config]), managed_collisions(config)
        ),
        "managed-collision-sequence": lambda: (
            lambda c: ManagedCollisionEmbeddingCollection(
                EmbeddingCollection(tables=[c]), managed_collisions(c)
            )
        )(sequence_config()),
        "subclass": lambda: OwnMeaning(tables=[config]),
        "twin": lambda: Twin(collection_of([config])),
        "quantised": lambda: quantize_inference_model(nn.Sequential(collection_of([config])))[0],
        "swapped": lambda: swap_of(collection_of([config])),
        "sharded": sharded,
    }
    return lambda kind: kinds[kind]().eval()


REASONS = {
    "sequence": "returns a row for each id",
    "feature-processed": "learned weight",
    "managed-collision": "remaps ids",
    "managed-collision-sequence": "remaps ids",
    "subclass": "OwnMeaning .* meaning of its own",
    "twin": "Twin .* meaning of its own",
    "quantised": "already quantised",
    "swapped": "already swapped",
    "sharded": "before DistributedModelParallel",
}


def tensors(module):
    return [id(t) for t in (*module.parameters(), *module.buffers())]


@pytest.mark.parametrize("kind", REASONS)
def test_a_kind_that_is_not_swapped_is_told_and_left_alone(
    make, kind, table_of, collection_of, model_plan, batch_of
) -> None:
    odd = make(kind)
    good = collection_of([table_of("t_item", features=("item",))])
    model = nn.ModuleDict({"odd": odd, "good": good}).eval()
    inside, held = list(odd.modules()), tensors(odd)
    swapped = accelerate_(model, model_plan(model))
    assert swapped.modules == {"good": ("t_item",)}
    (path,) = swapped.refused
    assert path == ("odd._dmp_wrapped_module.0" if kind == "sharded" else "odd")
    assert re.search(REASONS[kind], swapped.refused[path])
    assert model["odd"] is odd
    assert all(a is b for a, b in zip(inside, odd.modules(), strict=True))
    assert tensors(odd) == held
    assert model["good"](batch_of({"item": [[1, 2]]})).values().shape == (1, 4)


@pytest.mark.parametrize("kind", REASONS)
def test_a_model_of_nothing_else_is_refused_with_the_reason(make, kind, model_plan) -> None:
    model = nn.ModuleDict({"odd": make(kind)}).eval()
    assert list(all_places(model)) == []
    with pytest.raises(NotSupported, match=REASONS[kind]):
        accelerate_(model, model_plan(model))


def test_the_modules_inside_a_refused_one_are_not_told_again(make) -> None:
    model = nn.ModuleDict({"outer": nn.Sequential(make("feature-processed"))})
    assert list(refused_modules(model)) == ["outer.0"]
    assert list(refused_modules(make("managed-collision"))) == [""]


def test_a_stock_collection_is_refused_nowhere(table_of, collection_of) -> None:
    stock = collection_of([table_of()])
    assert refused_modules(stock) == {}
    assert list(all_places(stock)) == [("", stock)]


def test_a_collection_inside_a_refused_module_stays_stock_where_it_is_shared(
    config, collection_of, model_plan, batch_of
) -> None:
    stock = collection_of([config])
    model = nn.ModuleDict({"twin": Twin(stock), "own": stock}).eval()
    batch = batch_of({"other": [[1, 2, 3, 4, 9]]})
    before = copy.deepcopy(stock)(batch).values()
    swapped = accelerate_(model, model_plan(model))
    assert swapped.modules == {"own": ("t_other",)}
    assert model["twin"].inside is stock
    assert type(model["own"]) is GraceEmbeddingBagCollection
    for module in model.values():
        assert torch.equal(module(batch).values(), before)


# One module at several places


@pytest.fixture
def shared(table_of, collection_of):
    """The same collection in a list, as an attribute and inside a tower that is used twice."""
    collection = collection_of([table_of("t_item", features=("item",))])
    tower = nn.Sequential(collection)
    return nn.ModuleDict(
        {"a": collection, "list": nn.ModuleList([collection]), "left": tower, "right": tower}
    ).eval()


def test_a_shared_collection_stays_one_module_everywhere(shared, model_plan, batch_of) -> None:
    batch = batch_of({"item": [[3, 4, 5, 7, 1, 2], [9, 3, 4], []]})
    stock, keys = shared["a"], list(shared.state_dict())
    before = stock(batch).values()
    swapped = accelerate_(shared, model_plan(shared))
    assert swapped.modules == dict.fromkeys(("a", "list.0", "left.0", "right.0"), ("t_item",))
    assert type(shared["a"]) is GraceEmbeddingBagCollection
    for other in (shared["list"][0], shared["left"][0], shared["right"][0]):
        assert other is shared["a"]
    assert torch.equal(shared["right"](batch).values(), before)
    assert list(shared.state_dict()) == keys
    shared.load_state_dict({k: v + 1 for k, v in shared.state_dict().items()}, assign=True)
    assert (shared["left"](batch).values() != before).any()
    restore_(shared, swapped)
    for place in (shared["a"], shared["list"][0], shared["left"][0], shared["right"][0]):
        assert place is stock
