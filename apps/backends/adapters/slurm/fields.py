"""The options of a Slurm cluster, and of its jobs, as forms ask for them, in the words of docs/SLURM.md."""

from __future__ import annotations

from apps.backends.adapters.slurm.options import READ, Options
from apps.backends.adapters.slurm.workload import SIGNALS
from apps.backends.port import OptionField

REACH = "How it is reached"
ASK = "What is asked of it for each job"
TIMES = "How long it may take"


def _field(
    name: str, label: str, help: str = "", kind: str = "text", **more: object
) -> OptionField:
    standard = getattr(Options(), name)
    text = "" if isinstance(standard, dict) else str(standard)
    return OptionField(name, label, kind, help, text, **more)  # type: ignore[arg-type]  # as declared


OPTION_FIELDS = (
    _field(
        "way", "Way", kind="choice", group=REACH,
        choices=(("local", "Slurm's commands on this machine"), ("ssh", "over SSH, with a key"), ("rest", "slurmrestd, with a token")),
    ),
    _field("url", "slurmrestd", "Its address, as https://slurm.example.org:6820.", group=REACH),
    _field(
        "token", "Token", "For slurmrestd, as scontrol token prints it; kept sealed, never shown again.",
        group=REACH, secret=True,
    ),
    _field(
        "jwt_key", "Key of tokens", "Or the path of Slurm's jwt_key here: tokens are signed with it.",
        group=REACH,
    ),
    _field("ca", "CA", "Path of the certificate that slurmrestd's is signed by; empty: the system's.", group=REACH),
    _field("host", "Login node", "Its name, for SSH.", group=REACH),
    _field("user", "User", "The service user there; for slurmrestd the token's.", group=REACH),
    _field("port", "Port", kind="number", group=REACH),
    _field("key", "Key", "Path of the private key on this machine, never the key itself.", group=REACH),
    _field("known_hosts", "Known hosts", "Path of the file with the login node's host key.", group=REACH),
    _field("bin", "Folder of the commands", "Empty: they are in the PATH.", group=REACH),
    _field("conf", "slurm.conf", "Its path; empty: where Slurm looks itself.", group=REACH),
    _field("partition", "Partition", "Where jobs go; empty: Slurm's default one.", group=ASK),
    _field("account", "Account", "For all teams that have none of their own below.", group=ASK),
    _field(
        "accounts", "Accounts of teams", "A line each: vision/segmentation = cv", kind="map", group=ASK
    ),
    _field("qos", "QOS", "Of every job; empty: as Slurm chooses.", group=ASK),
    _field(
        "run_as", "Jobs run as", kind="choice", group=ASK,
        choices=(
            ("service", "the service user, with the team's account"),
            ("sudo", "who submitted them, by a sudoers rule for sbatch alone"),
            ("token", "who submitted them, by slurmrestd and a token of theirs"),
        ),
    ),
    _field("users", "Users' names there", "A line each, where it is not the same: alice = u1234", kind="map", group=ASK),
    _field("directory", "Folder of the jobs", "It exists and may be written to on every node.", group=ASK),
    _field("output", "Output file", "In that folder, or a whole path; %x is the job's name.", group=ASK),
    _field(
        "timeout_seconds", "Timeout, seconds", "A command that takes longer is given up.",
        kind="number", group=TIMES,
    ),
    _field(
        "start_seconds", "Start within, seconds", "A job that has not started by then is planned anew.",
        kind="number", group=TIMES,
    ),
    _field(
        "settle_seconds", "Settle, seconds", "Nothing is launched so long after slurmctld started.",
        kind="number", group=TIMES,
    ),
)  # fmt: skip

WORKLOAD_FIELDS = (
    OptionField(
        "script", "Script", "lines",
        "Run once, on the first node; srun in it runs a command once a member.",
    ),
    OptionField(
        "checkpoint_signal", "Checkpoint signal", "choice",
        "What the script traps to save its work and exit 75.",
        choices=(("", "none: it cannot save its work"), *((name, name) for name in SIGNALS)),
    ),
    OptionField("cpus_per_member", "CPUs per member", "number", default="1"),
    OptionField("memory_mib_per_member", "Memory per member, MiB", "number"),
    OptionField("directory", "Folder", help="Where it starts; empty: as the cluster is set up."),
)  # fmt: skip

assert {field.name for field in OPTION_FIELDS} == set(READ)  # noqa: S101  an option nobody could type
