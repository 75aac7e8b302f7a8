"""The decision table: limits of probabilities and amounts at which an answer changes.

It has alarm, certain health, second diagnoses, windows without steps, suspects, and the naming of a cause.
A training chooses further thresholds (``fault`` and its kinds, ``straggler``). They are
in the bundle, and docs/decisions/0025 has their budget. Limits of one measurement, such as the least score of
a crowded port or of a late rank, stay in the module that measures it.

Each limit has the figures that it comes from; docs/model-history.md has their data. A limit without figures
is a judgement.
"""

# --- Verdict: how much of a job has to be seen ------------------------------------------------------------

#: Least finished steps for a verdict. Fewer than 1 % of the healthy training windows are shorter, so the
#: rate of false alarms on shorter windows is unknown; of the few real ones one was called slow.
MIN_STEPS = 20
#: From so many steps on, a shorter window is slow from this probability of a fault on. On segments of 6 to
#: 18 steps, false alarms are 0.5 % of 1,111 healthy simulated ones and 1.3 % of 2,076 healthy ones of
#: external test sets; more than half of the slow ones raise the alarm.
MIN_STEPS_OF_ALARM, SHORT_ALARM = 6, 0.99
#: Loss per step, relative to a usual step, from which a missed fault is as bad as a false alarm. Of
#: undecided external windows above it nine were faulty and none healthy.
LARGE_LOSS = 0.05
#: Seconds without a row that a flush or the end of a job may take. A shorter gap alone is no stop.
MOMENT = 1.0
#: Steps and seconds without a row after which the job is over: no step or pause between steps takes longer.
LONG_STEPS, LONG_SECONDS = 10.0, 10.0
#: Probability from which the failure mode is decided, unless an alarm threshold holds it back.
DECIDE = 0.5
#: Probability that any verdict needs in a window unlike the training windows, where calibration does not
#: hold. A stop needs it too if nothing shows where it began. It is far above `DECIDE`.
OVERWHELMING_MODE = 0.95
#: Probability of a slow job and of its first straggler from which both are the answer although the cause is
#: open: of 35 such looked-at windows 34 are faulty and 32 have exactly these ranks.
CERTAIN_PLACE = 0.95

#: Probability of a fault from which a job is faulty at the latest, if broken hardware shows on some ranks. Of
#: 2,185 looked-at windows, 14 faulty ones and 1 healthy one are between it and the usual limit.
ALARM_WITH_FINDING = 0.8

# --- Limits of a certain healthy verdict ------------------------------------------------------------------

#: Largest share of the time between steps. What runs there is not timed. Of 565 healthy windows of captures
#: and external sets with a certain verdict, 17 have more: in 10 a row stands for several steps, the others
#: have evaluations or a restart between steps.
MAX_SHARE_BETWEEN_STEPS = 0.2
#: Largest pauses between steps, and untimed time in unusual steps, in usual steps. Of 178 healthy windows of
#: captures and external sets 6 pause more; none has more untimed time.
MAX_PAUSES, MAX_UNTIMED = 0.015, 0.02
#: Largest time in which all ranks wait for input together, in usual steps. Of 560 healthy looked-at windows 2
#: have more.
MAX_STALLS = 0.05
#: The same for time that comes in a fixed cycle of steps: saves and evaluations are planned.
MAX_PLANNED = 0.1
#: Largest ratio of the usual step to that of an earlier window, without more input. Usual steps of the two
#: halves of a window differ by more in 2 of 193 healthy real windows; one has a curriculum of sequences.
MUCH_SLOWER = 1.25

# --- Single events: a few long steps ----------------------------------------------------------------------

#: Largest share of the steps that may be single events; one step always may.
EVENT_SHARE = 0.02
#: A step is an outlier if it is longer, or its last rank later, by this share of the usual step.
OUTLYING = 0.25
#: ... and by this many robust deviations, because noisy jobs have many long steps.
OUTLYING_NOISE = 6.0
#: From this many adjacent outliers on it is a fault, however short.
LASTING_STEPS = 3

# --- Slowness before a stop, and an earlier window ---------------------------------------------------------

#: Least probability to add a slow cause to the answer about a stopped job.
SLOW_BEFORE_STOP = 0.5
#: Least ratio of the usual step to that of the earlier window, and probability from which the comparison
#: raises the alarm: higher than usual, as a second test. The whole comparison raises the failure modes of
#: scored external windows from .930 to .945, without an alarm.
SLOWER, BASELINE_ALARM = 1.05, 0.97
#: Least share of the window's steps in the joint slow segment, and largest share of the earlier window's. So
#: the slowdown began between the windows, and is no warm-up after a restart.
MAX_STEPS, STEPS_BEFORE = 0.5, 0.1
#: The comparison alone raises the alarm only if stragglers and shared faults explain this share of the
#: longer steps: otherwise all ranks may have more to compute.
MAJORITY_OF_STEPS = 0.5

# --- Windows without steps --------------------------------------------------------------------------------

#: Least probability of a stop after the exit of a process with an error, after a rank lost its peer within a
#: step, or if members of a group wait for a missing one. A running job may show the same for a moment, so it
#: is not 1.
STOPPED = 0.95
#: Probability that the process that ended first crashed by itself. No labelled set of such logs exists.
FIRST_EXIT = 0.8
#: ... of ranks that are missed, but have no exit: that they hang.
MISSED = 0.6
#: ... of ranks whose device failed for good, or that failed among others without an order.
FAILED = 0.5
#: Probability that the ranks that did not join are at fault. The rule is right on four of four public sets
#: of dumps, which Laplace's rule of succession makes 5 / 6.
RIGHT_RANKS = 5 / 6
#: Least probability of the first cause of a stopped collective for a verdict.
NAMED_OF_COLLECTIVE = 0.7
#: Least wait in a collective for a verdict, seconds. In a running job, ranks wait for each other for
#: moments, and dumps are not taken at once.
MIN_WAIT = 60.0
#: ... where as many ranks wait as are missing, such as one of two, seconds.
LONG_WAIT = 120.0
#: From this score on an outlier of the exporters is very loud, in units.
VERY_LOUD = 4.5
#: Probability that a rank ended whose process or device failed by the events, whose device is released, or
#: whose series end. It is not measured: no labelled window without steps shows it.
GONE = 0.5
#: Probability that a rank is slow which another tool found slow, without a duration. It is not measured.
FOUND_SLOW = 0.5
#: Probability that a job is healthy whose devices are all compared, in use and alike. A judgement: most jobs
#: are healthy at most times. Of simulated jobs 34 of 145 healthy and 38 of 212 faulty ones get this answer.
HEALTHY_MACHINES = 0.8
#: Probability of each fault if no machine stands out: machines alone do not show whether a job is healthy.
UNKNOWN_MODE = 0.33

# --- Suspects: which ranks, nodes or stages ---------------------------------------------------------------

#: A node is split into its ranks only where the type of each is at least this probable.
CERTAIN_TYPE = 0.6
#: Least probability of the ranks with which the stop began, by the events.
NAMED_BY_EVENTS = 0.9
#: From this probability on a job is a suspect as a whole, a rank of a stopped job although nothing shows
#: that it stopped first, and a cause of the catalogue has its price before `unknown`.
LIKELIER_THAN_NOT = 0.5
#: Least probability of ranks that were left behind in a step, where nothing came after it. Not measured.
LEFT_BEHIND = 0.8
#: Probability of the one rank that works on while all others wait in a stopped job.
WORKS_ALONE = 0.9
#: Probability of a component that machine evidence points to, without a late rank.
POINTED_TO = 0.5
#: Least straggler probability of a rank that stands out of a slow job, and the most of every other rank.
CERTAIN_STRAGGLER, NOT_SUSPECTED = 0.9, 0.1
#: Largest share of the ranks that can stand out.
MAX_OUTLIER_SHARE = 0.5
#: Probability from which a job-wide cause, except one that every job shows, keeps the job a suspect beside
#: them.
JOB_CAUSE_CERTAIN = 0.75

# --- Naming a cause ---------------------------------------------------------------------------------------

#: Least probability of a cause that is named, and of one that timing alone shows: of 14 looked-at windows
#: below it, timing was right in 2 of 9, and signals in 4 of 5.
NAME, NAME_BY_TIMING = 0.4, 0.6
#: Least share of its ranks' excess that a named cause explains.
MIN_COVERAGE = 0.5
#: Probability of the first cause from which it is named although it explains little of the loss, or some of
#: its signals are normal: of 24 looked-at windows 22 were right. Where timing alone shows it, seven of seven
#: that explain less than half of their ranks' delay were right, and three of six whose signals are normal.
SURE_DESPITE_DOUBT = 0.8
#: `unknown` becomes a cause if it is likelier than each catalogue cause, and if these leave at least this
#: share of the excess unexplained.
MAIN_SHARE_OF_EXCESS = 0.5
#: A cause with less than this share of the slowdown does not explain it while most of it is unexplained.
MIN_SHARE, MOSTLY_OPEN = 0.2, 0.5
#: Probability above which `unknown` is the answer, where it comes first and no known cause may be named:
#: likelier than not. Of 217 windows retold from incident reports 136 were right without it, and 148 are with
#: it. No other value was tried.
CERTAINLY_UNKNOWN = 0.5
#: Probability from which a cause is named in a window unlike the training windows.
OVERWHELMING_CAUSE = 0.7
#: A cause of fewer steps than a verdict needs is named from this belief on.
SHORT_CAUSE = 0.95
#: Probability from which the same cause of several suspects is one fault. Pooling less certain ones would
#: lower the probability of the others.
CERTAIN_SAME_CAUSE = 0.8
#: Causes that are less likely than this, and cost less than `TRIFLE`, are not shown.
MIN_PROBABILITY = 0.05
#: Costs below this share of the slowdown are not shown, and do not affect the order of causes.
TRIFLE = 0.05
#: Probability from which a cause has an action, named or not.
MIN_TO_ACT_ON = 0.3
