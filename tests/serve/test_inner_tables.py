"""Every row of a plan has one table in one table batch: the memory the plan gave it."""

from grace_torchrec.serve.inner_tables import InnerTables


def tables_of(model, plan, row_type, *, types_apart):
    """List the inner tables of a model's collection."""
    plans = [plan.tables[f"sparse.{name}"] for name in ("t_item", "t_seen", "t_shop")]
    configs = model.sparse.embedding_bag_configs()
    names = [feature for config in configs for feature in config.feature_names]
    return plans, InnerTables.of(configs, plans, [row_type] * 3, names, types_apart=types_apart)


def test_rows_lie_where_the_plan_says(model_of, plan_for):
    model = model_of()
    plans, inner = tables_of(model, plan_for(model), "int8", types_apart=False)
    assert set(inner.groups) == {"hbm", "host"}
    held = {t.name: (tier, t.num_embeddings) for tier, ts in inner.groups.items() for t in ts}
    for plan in plans:
        assert held[plan.spec.name] == (plan.placement.originals, plan.spec.num_rows)
        in_hbm = plan.placement.num_hbm_sums + plan.placement.hot_items.size
        rest = (plan.sums.num_sums if plan.sums is not None else 0) - plan.placement.num_hbm_sums
        for tier, num_rows in (("hbm", in_hbm), ("host", rest)):
            name = f"{plan.spec.name}__{tier}_rows"
            assert held.get(name) == ((tier, num_rows) if num_rows else None)


def test_types_lie_apart_only_if_asked(model_of, plan_for):
    model = model_of()
    _, inner = tables_of(model, plan_for(model), "int8", types_apart=True)
    assert set(inner.groups) == {"hbm_fp16", "host_fp16", "host_int8"}
    for name, tables in inner.groups.items():
        assert {inner.type_of[table.name] for table in tables} == {name.partition("_")[2]}


def test_the_parts_of_a_feature_begin_with_its_plain_rows(model_of, plan_for):
    model = model_of()
    _, inner = tables_of(model, plan_for(model), "fp32", types_apart=False)
    assert inner.parts("item") == [("host", "item"), ("hbm", "item__hbm"), ("host", "item__host")]
    assert inner.parts("shop") == [("host", "shop")]
