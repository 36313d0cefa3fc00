"""The jobs of the model in a run with workspaces. A message names a job, and the job defines all calls and their
effects.

A job is a value, so the model makes the same calls after a crash. A second execution of an effect is visible: a line is
appended to a file, a line is inserted before the last one, or a file is created that must not exist.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from rookery.llm.scripted import CallTool, Say, Step, last_user_text, results_since_user
from rookery.llm.types import Call

MODEL = "jobs"
HOME = "/home/agent"
LOG = "log"
# In tenths of a second: some commands end before their worker is missed, and some continue under the next one.
LENGTHS = (2, 2, 8, 40)
COMMANDS = 3
# Long, so that a busy machine does not cut off a command.
PATIENCE = "10m"


@dataclass(frozen=True)
class Job:
    """A job. `name` is unique in a run. The first job of a chat creates its workspace, and the last one stops it."""

    name: str
    is_first: bool = False
    is_last: bool = False

    def __str__(self) -> str:
        return " ".join([self.name, *(["first"] if self.is_first else []), *(["last"] if self.is_last else [])])

    @classmethod
    def parse(cls, words: str) -> Job:
        name, *more = words.split()
        return cls(name, is_first="first" in more, is_last="last" in more)

    @property
    def sheet(self) -> str:
        """The name of the file that the job writes and edits."""
        return f"sheet-{self.name}"

    @property
    def ticks(self) -> list[int]:
        """The number of lines that each of its commands prints."""
        return Random(self.name).choices(LENGTHS, k=COMMANDS)

    def batches(self) -> list[tuple[CallTool, ...]]:
        """The calls in batches, one after the other.

        Quick calls are in a batch with a command. The results of a batch are committed together, so a kill happens
        between their effect and their result.
        """
        sheet = f"{HOME}/{self.sheet}"
        first, second, third = map(_execute, self.lines(), self.ticks)
        batches: list[tuple[CallTool, ...]] = [
            (first, CallTool("write_file", {"path": sheet, "content": "top\nend\n"})),
            (*(_edit(sheet, line) for line in self.lines()), second),
            (CallTool("attach_file", {"path": sheet}), third),
        ]
        if self.is_first:
            batches.insert(0, (CallTool("create_workspace", {"template_id": "blank"}),))
        if self.is_last:
            batches.append((CallTool("stop_workspace"),))
        return batches

    def lines(self) -> list[str]:
        """The lines that its commands append to the log and its edits to the sheet, each once."""
        return [f"{self.name}-{number}" for number in range(COMMANDS)]

    def outputs(self) -> list[str]:
        """The expected outputs of its commands."""
        return [said(ticks) for ticks in self.ticks]


def said(ticks: int) -> str:
    return "".join(f"{number}\n" for number in range(1, ticks + 1)) + "done\n"


def _execute(line: str, ticks: int) -> CallTool:
    loop = f"i=0; while [ $i -lt {ticks} ]; do i=$((i+1)); echo $i; sleep 0.1; done; echo done"
    return CallTool("execute", {"command": f"echo {line} >> {HOME}/{LOG}; {loop}", "timeout": PATIENCE})


def _edit(path: str, line: str) -> CallTool:
    edits = [{"old_text": "end\n", "new_text": f"{line}\nend\n"}]
    return CallTool("edit_files", {"files": [{"path": path, "edits": edits}]})


def script(call: Call) -> Sequence[Step]:
    """Return the first batch without results."""
    answered = len(results_since_user(call.prompt))
    for batch in Job.parse(last_user_text(call.prompt)).batches():
        if answered < len(batch):
            return batch
        answered -= len(batch)
    return (Say("Done."),)
