"""Reservoir: a bounded sample of whole bags out of a stream that does not end.

Flow: recorder -> *Reservoir* -> Profile.
Source: weighted sampling without replacement by exponential keys (Efraimidis, Spirakis 2006), with
jumps over the bags that are not taken, as Vitter's algorithms (1985) do for equal weights.
Derived: the forms below, and the bound on ids beside the one on bags.

Bag ``i`` of weight ``w_i`` has the key ``K_i = E_i / w_i``, ``E_i`` exponential of mean 1; the sample
is all bags whose key is below a limit.  The limit starts at infinity.  Whenever there are more bags,
or more ids, than allowed, the bag of the largest key goes and its key becomes the limit.  Equal weights: every
bag seen has the same chance.  ``w_i = 2 ** (i / half_life)``: a bag ``half_life`` later counts twice.
A bag is below the limit ``t`` with hazard ``a = w_i * t``: the hazards of passed bags add up to an
exponential of mean 1 at the next one taken, so bags that are passed cost one subtraction, and
the key of the one taken is ``-log(1 - u * (1 - exp(-a))) / w_i``, ``u`` uniform in 0..1.
That exponential has no memory, so the tables of a model share one (*NextDraw*): a batch of many tables
from which nothing is taken costs one subtraction too.
A bag that stands for ``m`` bags, since ``m - 1`` like it passed unseen, weighs ``m`` times as much.
Where ids are what is bounded, a long bag is the one that goes a little more often: its chance is
smaller by about its share of ``max_ids``.  ``share``: a bag is taken with this probability at most, ``a <= -log(1 - share)``.
"""

import heapq
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

REBASE_AT = 64.0  # half-lives after which keys are scaled, long before a weight overflows
MOST_HALVINGS = 1000.0  # 2 ** 1000 is a float; what is that old is gone either way


class SampledBag(NamedTuple):
    """One whole bag.

    Attributes:
        ids: int32 or int64, a copy.
        weights: float32, or None.
        seen_s: When it came, seconds since the epoch; -inf if that is not known.
    """

    ids: npt.NDArray[np.int32] | npt.NDArray[np.int64]
    weights: npt.NDArray[np.float32] | None
    seen_s: float


class Entry(NamedTuple):
    """A bag in the heap, the largest key first.

    Attributes:
        minus_key: Its key, negative.
        number: Bags taken before it: keeps the order of arrival, and equal keys apart.
        bag: The bag.
    """

    minus_key: float
    number: int
    bag: SampledBag


class NextDraw:
    """Where the next bag that is taken is, counted in hazard.

    Args:
        random: Source of all draws.

    Attributes:
        random: The same.
        hazard_left: Of the bags to pass until then.
    """

    def __init__(self, random: random.Random) -> None:
        self.random = random
        self.again()

    def again(self) -> None:
        """Draw it."""
        self.hazard_left = self.random.expovariate(1.0)


@dataclass(eq=False)
class Reservoir:
    """The sample of one table; not safe from two threads at once.

    Attributes:
        max_bags: Most bags held.
        max_ids: Most ids held, of all bags together.
        share: Most probable that a bag is taken, above 0 and up to 1.
        draw: Where the next bag is taken; reservoirs may share it.
        entries: A heap.
        num_ids: Ids held.
        bags_seen: Bags that came by; counted by whoever offers them.
        limit: Keys below it are held.
        base: Where on the scale of weights ``w = 1`` is, in half-lives.
        taken: Bags that were ever held.
    """

    max_bags: int
    max_ids: int
    share: float
    draw: NextDraw
    entries: list[Entry] = field(default_factory=list, repr=False)
    num_ids: int = 0
    bags_seen: int = 0
    limit: float = math.inf
    base: float = 0.0
    taken: int = 0

    def __post_init__(self) -> None:
        """Turn the share into a hazard."""
        self._most_hazard = -math.log1p(-self.share) if self.share < 1 else math.inf

    def hazard(self, half_lives: float, times: int = 1) -> float:
        """Return the hazard of a bag that comes now; arguments as in :meth:`offer`."""
        return min(self._weight(half_lives) * times * self.limit, self._most_hazard)

    def offer(
        self,
        num_bags: int,
        half_lives: float,
        take: Callable[[int], SampledBag | None],
        times: int = 1,
    ) -> None:
        """Let bags of one weight pass, and hold those that the draws say.

        Args:
            num_bags: How many.
            half_lives: The weight of each is ``2 ** half_lives``, over all calls.
            take: Copies bag ``0 .. num_bags - 1``; None: it is not to be held, whatever was drawn.
            times: Bags that each of them stands for.
        """
        draw, weight = self.draw, self._weight(half_lives) * times
        place = 0
        while place < num_bags:
            hazard = min(weight * self.limit, self._most_hazard)
            left = num_bags - place
            if hazard * left < draw.hazard_left or hazard <= 0:
                draw.hazard_left -= hazard * left
                return
            place += max(1, min(left, math.ceil(draw.hazard_left / hazard)))
            key = -math.log1p(draw.random.random() * math.expm1(-hazard)) / weight
            draw.again()
            bag = take(place - 1)
            if bag is not None:
                self.add(key, bag)

    def add(self, key: float, bag: SampledBag) -> None:
        """Hold a bag by its key; bags of larger keys go where there are too many bags or ids."""
        heapq.heappush(self.entries, Entry(-key, self.taken, bag))
        self.taken += 1
        self.num_ids += bag.ids.size
        while len(self.entries) > self.max_bags or self.num_ids > self.max_ids:
            gone = heapq.heappop(self.entries)
            self.num_ids -= gone.bag.ids.size
            self.limit = -gone.minus_key

    def _weight(self, half_lives: float) -> float:
        """Return the weight of bags that come now, keys scaled so that it stays a small number."""
        if half_lives - self.base > REBASE_AT:
            factor = 2.0 ** min(half_lives - self.base, MOST_HALVINGS)
            self.entries = [
                Entry(e.minus_key * factor, e.number, e.bag) for e in self.entries
            ]  # a heap still: all keys grow alike
            self.limit, self.base = self.limit * factor, half_lives
        return float(2.0 ** max(half_lives - self.base, -MOST_HALVINGS))
