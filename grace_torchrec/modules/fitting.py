"""Fitting: the plan of each table of a collection, refused where it was made for another table.

Flow: stock collection + plans -> *plan_of_each* -> GraceEmbeddingBagCollection.
"""

from collections.abc import Mapping
from dataclasses import replace

from torchrec.modules.embedding_modules import EmbeddingBagCollection

from grace_torchrec.errors import PlanMismatch
from grace_torchrec.plans.plan import TablePlan
from grace_torchrec.plans.table_spec import table_specs


def plan_of_each(
    collection: EmbeddingBagCollection, plans: Mapping[str, TablePlan]
) -> list[TablePlan]:
    """Return the plans of the tables in order; kernels trust them, so they must fit.

    Args:
        collection: The stock collection.
        plans: Table name -> plan; plans of other tables are left out.

    Raises:
        PlanMismatch: a table has no plan, or one that was made for another table.
    """
    for spec in table_specs(collection):
        if spec.name not in plans:
            raise PlanMismatch(
                f"table {spec.name!r} has no plan; plans are given for {sorted(plans)}"
            )
        planned = plans[spec.name].spec
        if replace(planned, module=spec.module) != spec:
            raise PlanMismatch(
                f"table {spec.name!r} is {spec}, its plan was made for {planned}; plan it again"
            )
    return [plans[config.name] for config in collection.embedding_bag_configs()]
