"""Which candidate to take, why, and where the usual rules of thumb would have misled. No clock in here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from specli.core.acceptance import break_even, mean_length
from specli.costs import WidthCosts
from specli.keys import Value
from specli.profiles import Profile
from specli.pruned import METHOD
from specli.tune.candidates import AUTO, LONGEST, OFF, Candidate, off
from specli.tune.halving import Standing
from specli.tuned import FORMAT, WITH_FILE, Key

AS_GOOD = 0.98
"""`auto` is taken in place of a winner that it comes this near to: it adapts to other text, a setting cannot."""
NO_LOSS = 0.97
"""`auto` stays, too, where nothing is clearly faster than plain, unless it was slower than this: it is what specli
does untuned, it drafts nothing where nothing pays, and other text may repeat itself more."""
_LOSS, _GAIN = 0.97, 1.03  # clearly slower, clearly faster than plain, where an interval is not at hand


@dataclass(frozen=True, slots=True)
class Scouted:
    """What a few full-length drafts of a neural drafter showed. `rates`: acceptance by position, the ones
    before being accepted; `step_s`: seconds of a draft token."""

    method: str
    rates: tuple[float, ...]
    step_s: float

    def speedup(self, length: int, costs: WidthCosts) -> float:
        """Expected over plain decoding with drafts of `length`, always."""
        emitted = mean_length(self.rates[:length])
        return emitted * costs.at(1) / (costs.at(length + 1) + length * self.step_s)

    def lengths(self, costs: WidthCosts, most: int = LONGEST) -> list[int]:
        """All lengths, the most promising first."""
        return sorted(range(1, min(most, len(self.rates)) + 1), key=lambda k: -self.speedup(k, costs))

    def break_even(self, length: int, costs: WidthCosts) -> float | None:
        """Acceptance, the same at every position, from which drafts of `length` pay; None if never."""
        return break_even(lambda rate: replace(self, rates=(rate,) * length).speedup(length, costs) > 1.0)


@dataclass(frozen=True, slots=True)
class Choice:
    """What to use: a candidate and its standing, None where that is off. `why`: a sentence. `settled`: false
    where the budget was too short to tell, so that nothing should be made of it."""

    candidate: Candidate
    standing: Standing | None
    why: str
    settled: bool = True

    @property
    def speedup(self) -> float:
        """Over plain decoding; 1 for off."""
        return self.standing.value if self.standing is not None else 1.0


def choose(standings: Sequence[Standing]) -> Choice:
    """The fastest candidate whose interval clears plain decoding, or `auto` where that is as good; without one
    `auto` where it lost nothing, else off."""
    clear = [s for s in standings if _gains(s) and (r := s.ratio) is not None and r.clears_plain]
    adaptive = next((s for s in standings if s.candidate.name == AUTO and _gains(s)), None)
    if not clear:
        return _lossless(adaptive) or _off(standings)
    last = max(s.round for s in clear)  # those left out before ran on fewer prompts
    best = max((s for s in clear if s.round == last), key=lambda s: (s.value, s.candidate.name))
    if adaptive in clear and adaptive is not best and adaptive.value >= AS_GOOD * best.value:
        why = f"within {1 - AS_GOOD:.0%} of the fastest, {best.candidate.name}, and it adapts to other text"
        return Choice(adaptive.candidate, adaptive, why)
    why = "the fastest of those whose interval lies above plain"
    if adaptive is not None and adaptive is not best and adaptive.has_interval:
        why += f"; auto, what specli does untuned, ran at {adaptive.value:.2f} times plain"
    return Choice(best.candidate, best, why)


def _lossless(adaptive: Standing | None) -> Choice | None:
    found = adaptive.ratio if adaptive is not None else None
    if adaptive is None or found is None or found.low is None or found.value < NO_LOSS:
        return None
    why = (
        f"{found.value:.2f} times plain ({found.low:.2f} to {found.high:.2f}); nothing is clearly faster than plain on "
        "these prompts, but it drafts only where that pays, and other text may repeat itself more"
    )
    return Choice(adaptive.candidate, adaptive, why)


def _gains(standing: Standing) -> bool:
    """Whether a draft token was accepted at all. Without one it cannot be faster, whatever the clock says."""
    length = standing.mean_accepted_length
    return length is not None and length > 1.0


def _off(standings: Sequence[Standing]) -> Choice:
    if not any(s.n_pairs for s in standings):
        return Choice(off(), None, "the budget was too short to measure any", False)
    measured = [s for s in standings if s.n_pairs and _gains(s)]
    if not measured:
        return Choice(
            off(), None, "no draft token was accepted, so nothing can be faster than plain decoding"
        )
    best = max(measured, key=lambda s: s.value)
    found = best.ratio
    if found is None or found.low is None:
        return Choice(off(), None, "the budget was too short for a sure answer", False)
    why = (
        f"the best, {best.candidate.name}, ran at {found.value:.2f} times plain ({found.low:.2f} to "
        f"{found.high:.2f}), an interval that does not lie above plain"
    )
    return Choice(off(), None, why)


def on_layers(choice: Choice, standings: Sequence[Standing]) -> str | None:
    """How drafting without some layers came out, in a sentence; None if it was not tried, or was chosen."""
    tried = [s for s in standings if s.candidate.types == (METHOD,) and s.n_pairs]
    if not tried or choice.candidate.types == (METHOD,):
        return None
    best = max(tried, key=lambda s: s.value)
    free = "`specli layers --forget MODEL` frees the copy on the disk"
    if not any(s.drafted for s in tried):
        return f"Leaving layers out cannot pay here: a token of it costs too much, so nothing was drafted. {free}"
    if best.value < 1.0:
        return f"Leaving layers out loses here: {best.candidate.name} ran at {best.value:.2f} times plain. {free}"
    return f"Leaving layers out is not the fastest here: {best.candidate.name} ran at {best.value:.2f} times plain"


# -- rules of thumb --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule of thumb held against what was measured. `holds`: None where nothing speaks to it."""

    rule: str
    holds: bool | None
    said: str


def rules_of_thumb(
    standings: Sequence[Standing], scouted: Sequence[Scouted], costs: WidthCosts
) -> list[Rule]:
    """The three most repeated ones, each with the measurement that speaks most clearly against it."""
    return [
        _by_acceptance(standings),
        _by_product(standings),
        _by_length(scouted, costs),
    ]


def _by_acceptance(standings: Sequence[Standing]) -> Rule:
    cases = [
        _Case(s, s.acceptance > 0.5, f"{s.acceptance:.0%} accepted")
        for s in standings
        if s.acceptance is not None and s.candidate.name != AUTO
    ]
    return _held("speculation pays from 50% acceptance on", cases)


def _by_product(standings: Sequence[Standing]) -> Rule:
    cases = []
    for s in standings:
        alpha, length = s.acceptance, s.draft_length
        if alpha is not None and length is not None and s.candidate.name != AUTO:
            product = alpha * length
            cases.append(
                _Case(s, product > 1, f"acceptance {alpha:.2f} times length {length:.1f} = {product:.1f}")
            )
    return _held("speculation pays when acceptance times draft length is above 1", cases)


@dataclass(frozen=True, slots=True)
class _Case:
    """A standing, what the rule says of it, and the figure it goes by."""

    standing: Standing
    promised: bool
    figure: str

    @property
    def against(self) -> bool:
        """Whether it clearly came out otherwise."""
        value = self.standing.value
        return value > 0 and (value < _LOSS if self.promised else value > _GAIN)

    def __str__(self) -> str:
        return f"{self.standing.candidate.name} had {self.figure} and ran at {self.standing.value:.2f} times plain"


def _held(rule: str, cases: Sequence[_Case]) -> Rule:
    cases = [case for case in cases if case.standing.has_interval]
    if not cases:
        return Rule(rule, None, "no setting but auto, whose drafts vary, was measured often enough")
    against = [case for case in cases if case.against]
    if not against:
        return Rule(rule, True, f"nothing speaks against it ({_settings(len(cases))} measured)")
    worst = max(against, key=lambda case: abs(case.standing.value - 1))
    return Rule(rule, False, str(worst))


def _settings(n: int) -> str:
    return "one setting other than auto was" if n == 1 else f"{n} settings other than auto were"


def _by_length(scouted: Sequence[Scouted], costs: WidthCosts) -> Rule:
    rule = "draft 3 to 5 tokens at a time"
    if not scouted:
        return Rule(rule, None, "it is about draft models and heads, and there was none")
    for each in scouted:
        best = each.lengths(costs)[0]
        value = each.speedup(best, costs)
        usual = max(
            (k for k in each.lengths(costs) if 3 <= k <= 5), key=lambda k: each.speedup(k, costs), default=3
        )
        if value <= 1.0:
            needed = each.break_even(usual, costs)
            needs = f"needs {needed:.0%} accepted" if needed is not None else "cannot pay"
            said = (
                f"{each.method} with {usual} makes {each.speedup(usual, costs):.2f} times plain by the measured "
                f"costs, and {needs}; no length pays always"
            )
            return Rule(rule, False, said)
        if not 3 <= best <= 5:
            said = (
                f"{each.method} is best with {best} ({value:.2f} times plain by the measured costs; with {usual} "
                f"{each.speedup(usual, costs):.2f})"
            )
            return Rule(rule, False, said)
    return Rule(rule, True, ", ".join(f"{s.method} is best with {s.lengths(costs)[0]}" for s in scouted))


# -- the profile -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Measured:
    """What the choice rests on. `workload`: whose prompts; `date`: ISO; `busy`: whether the machine had other
    things to do."""

    key: Key
    costs: WidthCosts
    standings: Sequence[Standing]
    scouted: Sequence[Scouted]
    temp: float
    workload: str
    date: str
    busy: bool = False


def to_profile(
    name: str,
    source: str,
    choice: Choice,
    measured: Measured,
    draft: str | None,
    along: Mapping[str, Value] = MappingProxyType({}),
) -> Profile:
    """The profile to write. `draft`: as the user names it, kept where the choice uses it. `along`: settings that it
    was measured with and only holds for."""
    given: dict[str, Value] = {"description": _description(choice), **choice.candidate.spec, **along}
    if draft is not None and set(choice.candidate.types) & WITH_FILE:
        given["draft-model"] = draft
    return Profile(name, source, MappingProxyType(given), MappingProxyType(dict(_measured(choice, measured))))


def _description(choice: Choice) -> str:
    if choice.candidate.name == OFF:
        return "Tuned on this machine: nothing is drafted, no method was clearly faster than plain"
    return f"Tuned on this machine: {choice.candidate.name}, {choice.speedup:.2f} times plain"


def _measured(choice: Choice, m: Measured) -> Iterator[tuple[str, object]]:
    yield "format", FORMAT
    yield "date", m.date
    yield "choice", choice.candidate.name
    yield "why", choice.why
    yield "speedup", round(choice.speedup, 4)
    standing = choice.standing
    if standing is not None:
        found = standing.ratio
        if found is not None and found.low is not None and found.high is not None:
            yield "interval", [round(found.low, 4), round(found.high, 4)]
        if standing.mean_accepted_length is not None:
            yield "mean-accepted-length", round(standing.mean_accepted_length, 3)
    yield "temp", m.temp
    yield "workload", m.workload
    if standing is not None:
        yield "answers", standing.n_pairs
    if m.busy:
        yield "busy", True
    yield "key", m.key.as_table()
    yield "width-costs", {str(w): round(c, 3) for w, c in m.costs.shape.items()}
    yield "token-s", round(m.costs.seconds[1], 6)
    yield "draft-step-costs", {s.method: round(s.step_s / m.costs.seconds[1], 3) for s in m.scouted}
    if standing is not None:
        by_method = standing.by_method.items()
        yield "acceptance", {n: round(s.accepted / s.tested, 4) for n, s in by_method if s.tested}
    yield (
        "candidates",
        [
            {"name": s.candidate.name, "speedup": round(s.value, 4), "pairs": s.n_pairs}
            for s in m.standings
            if s.n_pairs
        ],
    )
