"""What is wrong with a task that was asked for."""


class TaskError(ValueError):
    """The task cannot be made; the message names the task or the file and line, what was expected and what came."""
