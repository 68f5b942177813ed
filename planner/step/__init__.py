"""step: priced blocks -> the durations of every node of a step, with its traffic and its interval."""
