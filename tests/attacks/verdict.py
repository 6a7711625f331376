"""The measurements of one attack, and whether they are within what is wanted."""


def number(value):
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"


class Verdict:
    def __init__(self):
        self.holds = True
        self._measured, self._wanted = [], []

    def note(self, text):
        self._measured.append(text)

    def check(self, ok, text, want):
        self.holds = self.holds and bool(ok)
        self.note(text if ok else f"**{text}**")
        if want not in self._wanted:
            self._wanted.append(want)

    def at_most(self, value, bound, text):
        """`text` contains one %s: the place of the number."""
        self.check(value <= bound, text % number(value), text % f"<= {number(bound)}")

    def __str__(self):
        wanted = ", ".join(self._wanted) or "only latency, which --measure judges"
        outcome = "holds" if self.holds else "falls short"
        return f"{outcome}: {'; '.join(self._measured)} (want {wanted})"
