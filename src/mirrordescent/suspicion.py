"""How likely each label is wrong, judged by what a network predicted in training, or by z. No true label is needed.

Legend: p (n, classes) predicted probabilities, y (n,) given labels.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

RARE = 5  # samples; of a class with fewer nothing can be known
GIVEN_UP = 1 / 8  # samples predicted to be of a class, per label that names it; below that it was not learnt
LEAST = 1e-6  # smaller probabilities count as this
CONCENTRATIONS = 20  # doublings of the prior's worth, up to what is as good as chance alone
FEW = 20  # members; a class with fewer has no mixture of its own
STARTS = (0.95, 0.99)  # quantiles of z at which a hill of wrong labels is looked for; the second where they are few
TIE = 0.01  # what z's place in its class adds to the log-odds at most, to rank labels whose odds are equal
MANY = 4_000_000  # numbers in a chunk; as many are also enough to estimate a share
SPREAD = 0.5  # deviation of a temperature's logarithm, for all that is known before
TEMPERATURES = (0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0, 5.6, 8.0)


def given_up(p: Tensor, y: Tensor) -> Tensor:
    """Which classes the network predicts for hardly any sample, though enough labels name them, (classes,) bool.

    It has not learnt what they look like, so its predictions are no evidence against their labels. (Among many wrong
    labels a rare class is named more often than it occurs, but not by that much.)
    """
    classes = p.shape[1]
    visited = p.amax(1) > 0
    named, taken = (torch.bincount(labels[visited], minlength=classes) for labels in (y, p.argmax(1)))
    return (named >= RARE) & (taken < GIVEN_UP * named)


def share_counted(p: Tensor, y: Tensor) -> float:
    """The share of wrong labels: each given class's share that `confident` takes for another, averaged over samples."""
    counts = confident(p, y)
    seen = counts.sum(0)
    rates = torch.where(seen > 0, 1 - counts.diagonal() / seen.clamp_min(1), 0.0)
    visited = p.amax(1) > 0
    return float(rates[y[visited]].mean()) if bool(visited.any()) else 0.0


def confident(p: Tensor, y: Tensor) -> Tensor:
    """How many samples were taken for class c and given class y, counts[c, y] (Northcutt et al. 2021).

    A class qualifies if the sample is at least as probable in it as those that are given it are on average. A sample is
    taken for the most probable class that qualifies, or for the given one if that is more probable (a class that was
    not learnt has a low average, which says nothing). Not counted are samples for which no class qualifies, and those
    never visited.
    """
    classes = p.shape[1]
    own = p.gather(1, y[:, None])[:, 0]
    visited = p.amax(1) > 0
    sure = p >= averages(p, y)
    best, taken = torch.where(sure, p, -1.0).max(1)
    taken = torch.where(best < own, y, taken)
    counted = sure.any(1) & visited
    pairs = torch.bincount(taken[counted] * classes + y[counted], minlength=classes**2)
    return pairs.reshape(classes, classes).to(p.dtype)


def averages(p: Tensor, y: Tensor) -> Tensor:
    """The mean probability of each class among the samples that are given it, (classes,); ∞ where none was visited."""
    classes = p.shape[1]
    own = p.gather(1, y[:, None])[:, 0]
    members = torch.bincount(y[p.amax(1) > 0], minlength=classes)
    average = torch.zeros_like(p[0]).index_add_(0, y, own) / members.clamp_min(1)
    return average.masked_fill(members == 0, torch.inf)


def share_wrong(p: Tensor, y: Tensor) -> float:
    """The share of wrong labels among samples that the network was not trained on; p is what it predicts for them.

    The model: a sample's true class has the network's probabilities, at a temperature for each predicted class that
    makes up for overconfidence, and the given label is drawn for the true class from a table. Temperatures and table
    are the likeliest ones (expectation maximisation, as Dawid and Skene 1979), so that contradictions of which the
    network was hardly sure count as its mistakes, and others as wrong labels. Where it is as sure of all samples, the
    labels do not tell the temperature: a weak prior takes it to be near 1.
    """
    some = torch.randperm(len(y), generator=torch.Generator().manual_seed(0), device="cpu")
    some = some[: max(MANY // p.shape[1], 1000)]
    odds, y = p[some].clamp_min(LEAST).log(), y[some]
    table, found = _table(0.1, p.shape[1], odds), []
    for heat in TEMPERATURES:  # one for all classes; each fit starts from the table of the one before
        truth = torch.softmax(odds / heat, 1)
        for _ in range(30):
            likelihood, posterior = _explained(truth, y, table)
            share, table = _counted(posterior, y)
        found.append((likelihood, heat, table))
    _, heat, table = max(found, key=lambda one: one[0] - (math.log(one[1]) / SPREAD) ** 2 / (2 * len(y)))
    top = odds.argmax(1)
    common = torch.full_like(table[0], 1 / heat)
    cold = common
    for _ in range(200):
        truth = torch.softmax(cold[top, None] * odds, 1)
        _, posterior = _explained(truth, y, table)
        share, table = _counted(posterior, y)
        cold = _fitted(cold, common, odds, top, truth, posterior)
    return share


def _explained(truth: Tensor, y: Tensor, table: Tensor) -> tuple[float, Tensor]:
    """The labels' mean log-likelihood, and the probabilities of the true class given the label too, (n, classes)."""
    joint = truth * table.T[y]
    total = joint.sum(1, keepdim=True)
    return float(total.log().mean()), joint / total


def _counted(posterior: Tensor, y: Tensor) -> tuple[float, Tensor]:
    """The share of wrong labels, and the table: for each true class (row), how often each label is given."""
    n, classes = posterior.shape
    few = 0.1 * classes  # pseudo-samples that every row of the table has beside its own
    both = posterior.new_zeros(classes, classes).index_add_(0, y, posterior).T  # true, given: how often
    share = 1 - float(both.diagonal().sum()) / n
    return share, (both + few * _table(share, classes, posterior)) / (both.sum(1, keepdim=True) + few)


def _fitted(cold: Tensor, common: Tensor, odds: Tensor, top: Tensor, truth: Tensor, posterior: Tensor) -> Tensor:
    """One Newton step for each predicted class's 1/temperature; a prior worth one sample pulls it to the common one."""
    mean = (truth * odds).sum(1)
    variance = (truth * odds.square()).sum(1) - mean.square()
    one = variance.mean()
    slope = torch.zeros_like(cold).index_add_(0, top, (posterior * odds).sum(1) - mean) - one * (cold - common)
    bend = torch.zeros_like(cold).index_add_(0, top, variance) + one
    moved = cold + slope / bend.clamp_min(LEAST)
    return moved.clamp(cold / 1.5, cold * 1.5).clamp(1 / TEMPERATURES[-1], 1 / TEMPERATURES[0])


def _table(share: float, classes: int, like: Tensor) -> Tensor:
    """The table of labels that are wrong with probability `share`, and then any other class equally often."""
    table = torch.full((classes, classes), share / max(1, classes - 1), dtype=like.dtype, device=like.device)
    return table.fill_diagonal_(1 - share)


def with_share(score: Tensor, share: float) -> Tensor:
    """Log-odds shifted by one number, such that the mean of the probabilities is `share`; by bisection."""
    share = min(max(share, LEAST), 1 - LEAST)
    middle = math.log(share / (1 - share))
    low, high = middle - float(score.max()), middle - float(score.min())
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if float(torch.sigmoid(score + middle).mean()) < share else (low, middle)
    return score + middle


def log_odds(p: Tensor, y: Tensor) -> Tensor:
    """Log-odds that each label is wrong, (n,): those of `evidence`, corrected for the share of wrong labels.

    One factor on the odds makes the mean probability `share_counted`. A sample that was never visited has the log-odds
    of that share.
    """
    visited = p.amax(1) > 0
    share = min(max(share_counted(p, y), LEAST), 1 - LEAST)
    found = torch.full_like(y, math.log(share / (1 - share)), dtype=torch.float64)
    if bool(visited.any()):
        found[visited] = with_share(evidence(p, y).odds[visited], share)
    return found


class Evidence(NamedTuple):
    """What speaks against each label, (n,) each. odds: the log-odds of all other classes against the given one.

    other: the likeliest of the other classes; part: its part of their probability. taken: the class that the network
    predicts; taken_part: its part of the same, 0 if it is the given class.
    """

    odds: Tensor
    other: Tensor
    part: Tensor
    taken: Tensor
    taken_part: Tensor


def evidence(p: Tensor, y: Tensor) -> Evidence:
    """How much the other classes speak against each label.

    A class weighs as much as the sample is probable in it, relative to the average of those that are given that class
    (a rare class is learnt late, if at all), times how often it is mistaken for the given one (see `mistaken`).
    """
    classes = p.shape[1]
    average = averages(p.double(), y).clamp(1 / classes, 1)  # an average below chance (not learnt) says nothing
    lift = mistaken(confident(p.double(), y))
    step = max(1, MANY // classes)
    parts = [_evidence(p[k : k + step].double(), y[k : k + step], average, lift) for k in range(0, len(y), step)]
    return Evidence(*(torch.cat(part) for part in zip(*parts, strict=True)))


def _evidence(p: Tensor, y: Tensor, average: Tensor, lift: Tensor) -> Evidence:
    own, taken = y[:, None], p.argmax(1)
    weight = p.clamp_min(LEAST) / average
    others = (weight * lift.T[y]).scatter_(1, own, 0.0)
    total = others.sum(1).clamp_min(LEAST**2)
    most, other = others.max(1)
    odds = (total / weight.gather(1, own)[:, 0]).log()
    return Evidence(odds, other, most / total, taken, others.gather(1, taken[:, None])[:, 0] / total)


def mistaken(counts: Tensor) -> Tensor:
    """How often class c is given label y by mistake, relative to chance, found[c, y], from the counts of `confident`.

    If sevens are often labelled one and fours never are, a "one" that looks like a four is less suspicious than one
    that looks like a seven. Counts that chance explains are no evidence of that: the classes that a label's mistakes
    come from are taken to be drawn from a Dirichlet distribution around the classes' sizes, with one concentration for
    all labels, the likeliest, but worth at least as many samples as there are other classes. A few counts of a rare
    class could be many times what chance gives: the result is at most the number of classes.
    """
    off = 1 - torch.eye(len(counts), dtype=counts.dtype, device=counts.device)
    size = off * (counts.sum(1, keepdim=True) + 1)
    chance = size / size.sum(0)
    counts = off * counts
    worth = _concentration(counts, chance)
    found = (counts + worth * chance) / (counts.sum(0) + worth) / chance
    return torch.where(off > 0, found.clamp(max=len(counts)), 1.0)


def _concentration(counts: Tensor, chance: Tensor) -> float:
    """How many samples the prior is worth: the likeliest concentration of Dirichlet distributions around `chance`."""
    total, some = counts.sum(0), counts > 0  # a term without counts is 0
    best = -math.inf, 0.0
    for doubling in range(CONCENTRATIONS, -1, -1):
        worth = max(1, len(counts) - 1) * 2.0**doubling
        prior = worth * chance[some]
        drawn = (torch.lgamma(counts[some] + prior) - torch.lgamma(prior)).sum()
        likelihood = float(drawn - (torch.lgamma(total + worth) - math.lgamma(worth)).sum())
        best = max(best, (likelihood, worth))
    return best[1]


def mixture_log_odds(z: Tensor, y: Tensor) -> Tensor:
    """Log-odds that each label is wrong, (n,), from z alone: two normal distributions mixed within each given class.

    A class with fewer than 20 members uses the mixture of all samples. Where one distribution describes z as well as
    two do, no label counts as wrong: the log-odds are below −log(n). Within a class they always rise with z, so that
    they rank its labels. This is rougher than `log_odds`, which knows the network's predictions.
    """
    z = z.double()
    classes = [here for here in y.argsort().split(torch.bincount(y).tolist()) if len(here)]
    above, middle = torch.empty_like(z), z.median()
    for here in classes:
        above[here] = z[here] - (z[here].median() if len(here) >= FEW else middle)
    ahead, none = _outlying(above), -math.log(max(len(z), 2))
    pooled = _two_normals(z) if any(len(here) < FEW for here in classes) else None
    found = torch.empty_like(z)
    for here in classes:
        odds = _two_normals(z[here]) if len(here) >= FEW else None if pooled is None else pooled[here]
        found[here] = none - 1 + ahead[here] if odds is None else odds + TIE * ahead[here]
    return found


def _outlying(above: Tensor) -> Tensor:
    """How far above the others each is, in (−1, 1), in units of their median distance from 0: rises with `above`."""
    usual, mean = above.abs().median(), above.abs().mean()
    off = above / torch.where(usual > 1e-9 * mean, usual, mean).clamp_min(LEAST**10)
    return off / (1 + off.abs())


def _two_normals(fitted: Tensor) -> Tensor | None:
    """Log-odds that each is of the upper of two normal distributions (expectation maximisation); None if one will do.

    They never fall where z rises, but are level far out on both sides.
    """
    spread = float(fitted.std()) if len(fitted) > 1 else 0.0
    if len(fitted) < FEW or not spread > 0:
        return None
    single = -0.5 * len(fitted) * (1 + 2 * math.log(spread))
    mixtures = (_climbed(fitted, spread, start) for start in STARTS)
    # Three more parameters must be worth it (Schwarz), and the upper one must be a peak of its own, not a long tail.
    worth = single + 1.5 * math.log(len(fitted))
    hills = (one for one in mixtures if one.likelihood >= worth and one.dip < 0.7 and one.mean[1] > one.mean[0])
    found = next(hills, None)
    if found is None:
        return None
    mean, deviation = found.mean, found.deviation
    far = fitted.clamp(min=float(mean[0]))  # below the lower mean suspicion must not rise again
    near, wide = 1 / deviation[1] ** 2, 1 / deviation[0] ** 2
    if near > wide:  # nor fall again above the point where the odds are highest
        far = far.clamp(max=float((mean[1] * near - mean[0] * wide) / (near - wide)))
    return _odds(far, mean, deviation, found.share)


class _Mixture(NamedTuple):
    """Two normal distributions; the first began as the lower one.

    share: of the second one. likelihood: its logarithm. dip: the lowest density between the means, as a part of the
    lower of the densities there.
    """

    mean: Tensor
    deviation: Tensor
    share: float
    likelihood: float
    dip: float


def _climbed(z: Tensor, spread: float, start: float) -> _Mixture:
    """The mixture that expectation maximisation reaches with the upper mean begun at a quantile of z."""
    some = z[:: 1 + len(z) // MANY]  # torch's quantile has a limit
    mean = some.quantile(z.new_tensor([0.25, start]))
    deviation, share = z.new_full((2,), spread), 0.2
    for _ in range(200):
        upper = torch.sigmoid(_odds(z, mean, deviation, share))
        parts = torch.stack([1 - upper, upper])
        weight = parts.sum(1).clamp_min(1e-9)
        mean = (parts @ z) / weight
        deviation = ((parts * (z - mean[:, None]) ** 2).sum(1) / weight).sqrt().clamp_min(0.05 * spread)
        share = min(max(float(upper.mean()), LEAST), 1 - LEAST)
    between = torch.linspace(float(mean[0]), float(mean[1]), 50, dtype=z.dtype, device=z.device)
    density = torch.logaddexp(*_parts(between, mean, deviation, share)).exp()
    likelihood = float(torch.logaddexp(*_parts(z, mean, deviation, share)).sum())
    return _Mixture(mean, deviation, share, likelihood, float(density.min() / min(density[0], density[-1])))


def _parts(z: Tensor, mean: Tensor, deviation: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """Log densities of the two components, each weighted by its share, without the constant they have in common."""
    log = [-0.5 * ((z - mean[k]) / deviation[k]) ** 2 - deviation[k].log() for k in (0, 1)]
    return log[0] + math.log(1 - share), log[1] + math.log(share)


def _odds(z: Tensor, mean: Tensor, deviation: Tensor, share: float) -> Tensor:
    lower, upper = _parts(z, mean, deviation, share)
    return upper - lower
