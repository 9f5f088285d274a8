"""What was sent, how it was answered, and what must not have happened; and the lines that say so."""

from __future__ import annotations

import base64
import json
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from tests.fuzz.cases import Case
from tests.fuzz.sender import Answer

SAID = 10  # findings that are told in full
LONGEST = 3000  # characters of a case on a command line


@dataclass(slots=True)
class Findings:
    seed: int
    options: str = ""  # of the command, besides the seed
    answers: Counter[tuple[str, str]] = field(default_factory=Counter)  # kind, answer
    paths: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    findings: list[str] = field(default_factory=list)
    say: Callable[[str], object] = lambda finding: None  # who wants to know at once
    different: Counter[str] = field(default_factory=Counter)  # findings by what they say

    def add(self, case: Case, answer: Answer) -> None:
        self.answers[case.kind, answer.word] += 1
        if case.way == "rpc" and case.kind != "odd":
            self.paths[case.path][answer.word] += 1
        if answer.wrong:
            self.wrong(f"{case.path or case.way}: {answer.wrong}", case)

    def wrong(self, what: str, case: Case | None = None) -> None:
        """Of findings that say the same one is told."""
        self.different[what] += 1
        if self.different[what] > 1 or len(self.findings) >= SAID:
            return
        again = f"python -m tests.fuzz --seed {self.seed}{self.options}"
        lines = [what]
        if case is None:
            lines.append(f"  repeat: {again} --messages {self.messages}")
        else:
            lines.append(f"  message {case.number} ({case.kind}); repeat: {again} --only {case.number}")
            if len(text := written(case)) <= LONGEST:
                lines.append(f"  or byte by byte: python -m tests.fuzz{self.options} --case {text}")
        self.findings.append("\n".join(lines))
        self.say(f"FINDING: {self.findings[-1]}")

    @property
    def messages(self) -> int:
        return self.answers.total()

    def lines(self) -> list[str]:
        """By kind, then by call."""
        rows = defaultdict[str, Counter[str]](Counter)
        for (kind, word), n in self.answers.items():
            rows[kind][word] += n
        return ["by kind:", *_table(rows), "by call:", *_table(self.paths)]


def _table(rows: dict[str, Counter[str]]) -> list[str]:
    wide = max((len(name) for name in rows), default=0)
    return [
        f"  {name:{wide}} {counts.total():7,}  " + ", ".join(f"{word} {n:,}" for word, n in counts.most_common())
        for name, counts in sorted(rows.items())
    ]


def written(case: Case) -> str:
    """A case as one word, for a command line."""
    plain: dict[str, Any] = asdict(case)
    plain["messages"] = [base64.b64encode(m).decode() for m in case.messages]
    plain["metadata"] = [[k, v.decode("latin-1") if isinstance(v, bytes) else v] for k, v in case.metadata]
    return base64.urlsafe_b64encode(zlib.compress(json.dumps(plain).encode(), 9)).decode()


def read(text: str) -> Case:
    plain = json.loads(zlib.decompress(base64.urlsafe_b64decode(text)))
    plain["messages"] = tuple(base64.b64decode(m) for m in plain["messages"])
    pairs = ((k, v.encode("latin-1") if k.endswith("-bin") else v) for k, v in plain["metadata"])
    return Case(**{**plain, "metadata": tuple(pairs)})
