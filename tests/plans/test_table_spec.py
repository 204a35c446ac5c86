"""Table specs: every stock collection is found, and nothing else is touched."""

import pytest
import torch
from torch import nn
from torchrec.modules.embedding_configs import DataType, EmbeddingBagConfig, PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from grace_torchrec.errors import GraceError, NotSupported
from grace_torchrec.plans.table_spec import table_specs


def collection(*names, device="meta", is_weighted=False, **changes):
    tables = [
        EmbeddingBagConfig(
            **{
                "name": name,
                "num_embeddings": 10,
                "embedding_dim": 8,
                "feature_names": [f"f_{name}"],
                **changes,
            }
        )
        for name in names
    ]
    return EmbeddingBagCollection(tables, is_weighted=is_weighted, device=torch.device(device))


def test_all_fields_are_read_from_the_model():
    ebc = collection(
        "t", pooling=PoolingType.MEAN, feature_names=["a", "b"], data_type=DataType.FP16
    )
    (spec,) = table_specs(nn.ModuleDict({"sparse": nn.ModuleDict({"ebc": ebc})}))
    assert (spec.module, spec.name, spec.key) == ("sparse.ebc", "t", "sparse.ebc.t")
    assert (spec.num_rows, spec.dim, spec.dtype, spec.row_bytes) == (10, 8, "fp16", 16)
    assert (spec.pooling, spec.features, spec.is_weighted) == ("mean", ("a", "b"), False)


def test_a_collection_that_is_the_model_itself_has_no_module_path():
    specs = table_specs(collection("t", "u", is_weighted=True))
    assert [spec.key for spec in specs] == ["t", "u"]
    assert all(spec.is_weighted for spec in specs)


def test_tables_of_several_collections_come_in_order_and_a_shared_one_once():
    shared = collection("c")
    model = nn.ModuleDict({"x": collection("a", "b"), "y": shared, "z": shared})
    assert [spec.key for spec in table_specs(model)] == ["x.a", "x.b", "y.c"]


def test_a_table_name_in_two_collections_is_refused_with_both():
    model = nn.ModuleDict({"left": collection("t"), "right": collection("t")})
    with pytest.raises(NotSupported, match=r"'t'.*'left'.*'right'"):
        table_specs(model)


def test_subclasses_quantised_and_processed_collections_are_left_alone():
    from torchrec.modules.feature_processor_ import PositionWeightedModuleCollection
    from torchrec.modules.fp_embedding_modules import FeatureProcessedEmbeddingBagCollection
    from torchrec.modules.mc_embedding_modules import ManagedCollisionEmbeddingBagCollection
    from torchrec.modules.mc_modules import (
        DistanceLFU_EvictionPolicy,
        ManagedCollisionCollection,
        MCHManagedCollisionModule,
    )
    from torchrec.quant.embedding_modules import EmbeddingBagCollection as QuantisedCollection

    class Mine(EmbeddingBagCollection):
        pass

    mine = Mine(
        [EmbeddingBagConfig(name="m", num_embeddings=4, embedding_dim=8, feature_names=["m"])]
    )
    processed = FeatureProcessedEmbeddingBagCollection(
        collection("p", device="cpu", is_weighted=True),
        PositionWeightedModuleCollection({"f_p": 4}),
    )
    float_ebc = collection("q", device="cpu")
    float_ebc.qconfig = torch.ao.quantization.QConfig(
        activation=torch.ao.quantization.PlaceholderObserver,
        weight=torch.ao.quantization.PlaceholderObserver.with_args(dtype=torch.qint8),
    )
    quantised = QuantisedCollection.from_float(float_ebc)
    collided = collection("c", device="cpu")
    mapper = MCHManagedCollisionModule(
        zch_size=10,
        device=torch.device("cpu"),
        eviction_interval=2,
        eviction_policy=DistanceLFU_EvictionPolicy(),
    )
    managed = ManagedCollisionEmbeddingBagCollection(
        collided, ManagedCollisionCollection({"c": mapper}, collided.embedding_bag_configs())
    )
    model = nn.ModuleDict(
        {"m": mine, "p": processed, "q": quantised, "c": managed, "s": collection("s")}
    )
    assert [spec.key for spec in table_specs(model)] == ["s.s"]


def test_a_type_that_stored_rows_cannot_have_is_refused_by_name():
    with pytest.raises(NotSupported, match="'t' in 'the model' has type bfloat16"):
        table_specs(collection("t").to(torch.bfloat16))


@pytest.mark.parametrize(
    "change",
    [
        {"name": ""},
        {"name": 3},
        {"module": None},
        {"num_rows": 0},
        {"num_rows": True},
        {"num_rows": 2**60},
        {"dim": 1.5},
        {"dtype": "int8"},
        {"dtype": ["fp32"]},
        {"pooling": "max"},
        {"features": ()},
        {"features": ["a"]},
        {"features": (1,)},
        {"is_weighted": 1},
    ],
)
def test_a_spec_that_makes_no_sense_is_refused(spec_of, change):
    with pytest.raises(GraceError, match="table"):
        spec_of(**change)


def test_a_fingerprint_tells_specs_apart(spec_of):
    assert spec_of().fingerprint() == spec_of().fingerprint()
    assert spec_of().fingerprint() != spec_of(dim=32).fingerprint()
