"""What an engine charges that nobody has measured yet: the one place for such numbers.

A message and a byte as fitted from probes of Spark's local mode on two cores (19 to 21 us, 15 to 17
ns); a level and a task from the same probes (docs/decisions/0016). `headgate calibrate` measures
them; until somebody has, they only have to do for the first epochs: from then on the flow's own
epochs say what an epoch without rows costs.
"""

MESSAGE_S = 20e-6  # n: a batch tuple, at its sender and its receiver together
BYTE_S = 16e-9  # s: a byte of it
LEVEL_S = 0.09  # a round of tasks
TASK_S = 0.1  # of a core, for each task
PARK_BYTES = 256  # of columns of a row that nobody reads on the way: from here on a file is cheaper
