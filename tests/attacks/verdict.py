"""The measurements of one attack, and whether they are within what is wanted."""


def number(value):
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"


class Verdict:
    """`accepted`: what is known to fall short, by what is wanted: the worst figure that is accepted
    for now, or True where there is no figure. See open_attacks.py."""

    def __init__(self, accepted=None):
        self.holds = True
        self.is_open = False  # something falls short as is known, and no worse
        self.unmet = set()  # what was wanted in vain
        self._accepted = accepted or {}
        self._measured, self._wanted = [], []

    def note(self, text):
        self._measured.append(text)

    def check(self, ok, text, want, figure=None):
        """`figure`: the measured number, smaller is better."""
        accepted = self._accepted.get(want)
        known = accepted is True or (None not in (accepted, figure) and figure <= accepted)
        if not ok and known:
            self.is_open = True
            worst = "" if accepted is True else f", at worst {number(accepted)}"
            self.note(f"**{text}** (open{worst})")
        else:
            self.note(text if ok else f"**{text}**")
            if not ok:
                self.holds = False
                self.unmet.add(want)
        if want not in self._wanted:
            self._wanted.append(want)

    def at_most(self, value, bound, text):
        """`text` contains one %s: the place of the number."""
        self.check(value <= bound, text % number(value), text % f"<= {number(bound)}", value)

    def __str__(self):
        wanted = ", ".join(self._wanted) or "only latency, which --measure judges"
        outcome = "falls short" if not self.holds else "open" if self.is_open else "holds"
        return f"{outcome}: {'; '.join(self._measured)} (want {wanted})"
