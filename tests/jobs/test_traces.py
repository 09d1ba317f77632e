"""Reading traces: odd rows, odd files, and a whole real one."""

from __future__ import annotations

import gzip
import io
import json
import tracemalloc
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from hypothesis import given
from hypothesis import strategies as st

from apps.backends.kinds import backend_of
from apps.backends.models import Cluster
from apps.backends.services import add_cluster
from apps.common.errors import Conflict, Invalid
from apps.jobs.models import Arrival
from apps.jobs.trace_import import LIMITS, import_trace, limit_for, members_of
from apps.jobs.traces import FORMATS, Report, open_trace, read_jobs
from apps.tenants.models import Tenant
from tests.factories import NOW

HEADER = "timestamp,duration,num_gpus,gpu_time,cluster"
GOOD = "2017-10-09 07:01:55,66.0,1,66.0,11cb48"


def write(path: Path, *rows: str, header: str = HEADER, end: str = "\n") -> Path:
    path.write_bytes(end.join([header, *rows, ""]).encode("utf-8", "surrogateescape"))
    return path


def read(path: Path) -> tuple[list, Report]:
    report = Report()
    with open_trace(path) as source:
        return list(read_jobs(source, FORMATS["philly"], report)), report


@pytest.fixture
def trace(tmp_path):
    return tmp_path / "trace.csv"


# Rows -----------------------------------------------------------------------------------------------


def test_a_row_is_a_job(trace):
    (job,), report = read(write(trace, GOOD))

    assert (job.line, job.seconds, job.gpus, job.group) == (2, 66.0, 1, "11cb48")
    assert job.at.isoformat() == "2017-10-09T07:01:55+00:00"
    assert report.gpu_hours == pytest.approx(66 / 3600)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("2017-10-09 07:01:55,-1,1,1,vc", "duration is negative: it ends before it starts"),
        ("2017-10-09 07:01:55,nan,1,1,vc", "duration is NaN"),
        ("2017-10-09 07:01:55,inf,1,1,vc", "duration is infinite"),
        ("2017-10-09 07:01:55,-inf,1,1,vc", "duration is infinite"),
        ("2017-10-09 07:01:55,,1,1,vc", "duration is empty"),
        ("2017-10-09 07:01:55,soon,1,1,vc", "duration is no number"),
        ("2017-10-09 07:01:55,1e12,1,1,vc", "duration is above four years"),
        ("2017-10-09 07:01:55,60,0,0,vc", "num_gpus is zero"),
        ("2017-10-09 07:01:55,60,-8,60,vc", "num_gpus is negative"),
        ("2017-10-09 07:01:55,60,1.5,60,vc", "num_gpus is no whole number"),
        ("2017-10-09 07:01:55,60,nan,60,vc", "num_gpus is NaN"),
        ("2017-10-09 07:01:55,60,1e9,60,vc", "num_gpus is above 1,000,000"),
        ("2017-10-09 07:01:55,60,1,nan,vc", "gpu_time is NaN"),
        ("2017-10-09 07:01:55,60,1,-60,vc", "gpu_time is negative"),
        ("-5,60,1,60,vc", "timestamp is negative"),
        ("nan,60,1,60,vc", "timestamp is NaN"),
        ("1e300,60,1,60,vc", "timestamp is after 2100"),
        ("yesterday,60,1,60,vc", "timestamp is no number"),
        (",60,1,60,vc", "timestamp is empty"),
        ("1969-12-31 23:59:59,60,1,60,vc", "timestamp is before 1970"),
        ("2017-13-09 07:01:55,60,1,60,vc", "timestamp is no number"),
        ("9999-12-31 00:00:00,60,1,60,vc", "timestamp is after 2100"),
        ("2017-10-09 07:01:55,60,1,60,", "cluster is empty"),
        ("2017-10-09 07:01:55,60,1,60,a/b", "cluster is no name"),
        ("2017-10-09 07:01:55,60,1,60," + "x" * 81, "cluster is no name"),
        ("2017-10-09 07:01:55,60,1,60,\x00", "cluster is no name"),
        ("2017-10-09 07:01:55,60,1,60,\udcff", "cluster is no name"),
        ("2017-10-09 07:01:55,60,1", "the row has 3 fields, not 5"),
        ("2017-10-09 07:01:55,60,1,60,vc,more", "the row has 6 fields, not 5"),
        ('2017-10-09 07:01:55,60,1,60,"vc', "the line is no CSV"),
        ("x" * 200_000, "the line is far too long"),
    ],
)
def test_a_row_that_is_no_sensible_job_is_refused_by_its_line(trace, row, reason):
    jobs, report = read(write(trace, GOOD, row, GOOD))

    assert [job.line for job in jobs] == [2, 4]
    assert (report.rows, report.used) == (3, 2)
    assert {why: told.lines for why, told in report.refused.items()} == {reason: [3]}


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ("1507532515,60,1,60,vc", "2017-10-09T07:01:55+00:00"),
        ("1507532515.5,60,1,60,vc", "2017-10-09T07:01:55.500000+00:00"),
        ("2017-10-09T07:01:55Z,60,1,60,vc", "2017-10-09T07:01:55+00:00"),
        ("2017-10-09 07:01:55+02:00,60,1,60,vc", "2017-10-09T05:01:55+00:00"),
        ("2017-10-09,60,1.0,60,vc", "2017-10-09T00:00:00+00:00"),
        ('"2017-10-09 07:01:55",60,1,60,"vc"', "2017-10-09T07:01:55+00:00"),
        ("0,0,1,0,vc", "1970-01-01T00:00:00+00:00"),
    ],
)
def test_instants_may_be_written_in_several_ways(trace, row, expected):
    (job,), report = read(write(trace, row))

    assert job.at.isoformat() == expected
    assert not report.refused


def test_a_blank_line_is_left_out_and_counted(trace):
    jobs, report = read(write(trace, GOOD, "", "   ", GOOD, ""))

    assert len(jobs) == 2
    assert report.left_out["a blank line"].lines == [3, 4, 6]
    assert report.as_json()["rows"] == 5


def test_columns_are_found_by_name_in_any_order_with_others_between(trace):
    header = "\ufeffCluster, gpu_time ,user,NUM_GPUS,timestamp,duration"
    (job,), report = read(write(trace, "vc,120,ana,2,2017-10-09 07:01:55,60", header=header))

    assert (job.group, job.gpus, job.seconds) == ("vc", 2, 60.0)
    assert not report.refused


def test_windows_line_ends_and_a_missing_last_one_are_fine(trace):
    write(trace, GOOD, GOOD, end="\r\n")
    trace.write_bytes(trace.read_bytes().removesuffix(b"\r\n"))

    assert read(trace)[1].used == 2


@pytest.mark.parametrize("column", HEADER.split(","))
def test_a_missing_column_is_named(trace, column):
    header = ",".join(name for name in HEADER.split(",") if name != column)

    with pytest.raises(Invalid) as refusal:
        read(write(trace, GOOD, header=header))

    assert refusal.value.field == column
    assert f"no column {column}" in refusal.value.message


def test_a_doubled_column_is_named(trace):
    with pytest.raises(Invalid, match="duration twice"):
        read(write(trace, header=HEADER + ",duration"))


def test_only_the_first_lines_of_a_reason_are_kept(trace):
    _, report = read(write(trace, *["2017-10-09 07:01:55,60,0,0,vc"] * 500))

    told = report.refused["num_gpus is zero"]
    assert (told.rows, told.lines) == (500, list(range(2, 22)))


@given(text=st.text(max_size=300) | st.text(alphabet=',"\n\r 0123456789-.:nae+\x00', max_size=200))
def test_whatever_stands_in_a_file_every_row_is_counted_once(tmp_path, text):
    path = write(tmp_path / "any.csv", GOOD, text)

    jobs, report = read(path)

    counts = report.as_json()
    assert counts["rows"] == counts["used"] + counts["left_out"] + counts["refused"]
    assert counts["used"] == len(jobs) >= 1
    json.dumps(counts, allow_nan=False)


# Files ------------------------------------------------------------------------------------------------


def packed(path: Path) -> Path:
    target = path.with_suffix(".csv.gz")
    target.write_bytes(gzip.compress(path.read_bytes()))
    return target


def test_gzip_is_told_by_its_first_bytes_not_its_name(trace, tmp_path):
    source = packed(write(trace, GOOD))
    plain_name = tmp_path / "plain.csv"
    plain_name.write_bytes(source.read_bytes())

    assert read(plain_name)[1].used == 1


def test_a_truncated_gzip_is_said_so(trace):
    rows = [f"2017-10-09 07:01:55,{n},1,60,vc" for n in range(5_000)]
    whole = packed(write(trace, *rows))
    whole.write_bytes(whole.read_bytes()[:-400])

    with pytest.raises(Invalid, match="truncated gzip"):
        read(whole)


def test_a_damaged_gzip_is_said_so(trace):
    rows = [f"2017-10-09 07:01:55,{n},1,60,vc" for n in range(5_000)]
    whole = packed(write(trace, *rows))
    data = bytearray(whole.read_bytes())
    data[len(data) // 2] ^= 0xFF
    whole.write_bytes(data)

    with pytest.raises(Invalid, match="damaged gzip"):
        read(whole)


def test_an_empty_file_and_a_missing_one_are_said_so(tmp_path):
    empty = tmp_path / "empty.csv"
    empty.touch()

    with pytest.raises(Invalid, match="empty"):
        read(empty)
    with pytest.raises(Invalid, match="cannot be read"):
        read(tmp_path / "absent.csv")
    with pytest.raises(Invalid, match="cannot be read"):
        read(tmp_path)


def test_a_binary_file_lacks_its_columns(tmp_path):
    binary = tmp_path / "picture.csv"
    binary.write_bytes(bytes(range(256)) * 1_000)

    with pytest.raises(Invalid, match="no column timestamp"):
        read(binary)


def test_a_file_is_streamed(trace):
    write(trace, *[GOOD] * 20_000)
    tracemalloc.start()
    try:
        with open_trace(trace) as source:
            count = sum(1 for _ in read_jobs(source, FORMATS["philly"], Report()))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert count == 20_000
    assert peak < 400_000 < trace.stat().st_size


# Into the database ------------------------------------------------------------------------------------------


def run(path: Path, *more: str) -> dict:
    out = io.StringIO()
    call_command("import_trace", "philly", str(path), "--json", *more, stdout=out)
    return json.loads(out.getvalue())


def assert_nothing_written() -> None:
    assert not Cluster.objects.exists()
    assert not Tenant.objects.exists()
    assert not Arrival.objects.exists()


@pytest.mark.django_db
def test_the_report_counts_and_explains(trace):
    told = run(write(trace, GOOD, "", "2017-10-09 07:01:55,60,0,0,vc", GOOD))

    assert {key: told[key] for key in ("rows", "used", "left_out", "refused", "jobs")} == {
        "rows": 4,
        "used": 2,
        "left_out": 1,
        "refused": 1,
        "jobs": 2,
    }
    assert told["gpu_hours"] == pytest.approx(132 / 3600)
    assert told["reasons"]["refused"]["num_gpus is zero"] == {"rows": 1, "lines": [4]}


@pytest.mark.django_db
def test_arrivals_keep_what_the_trace_says(trace):
    run(write(trace, "2017-10-09 07:01:55,5000,16,80000,vc", GOOD, "2017-10-01,60,12,720,VC"))

    cluster = Cluster.objects.get(name="philly")
    first, second, _ = cluster.arrivals.order_by("at")
    assert first.tenant == second.tenant
    assert first.tenant.path == "philly/vc"
    assert (first.spec["size"], first.spec["gpus_per_member"]) == (12, 1)
    assert (second.spec["size"], second.spec["gpus_per_member"]) == (2, 8)
    assert second.spec["workload"] == {"kind": "simulated", "runtime": 5000.0}
    assert cluster.clock_now == first.at
    assert cluster.clock_until > second.at
    nodes = backend_of(cluster).observe("", now=cluster.clock_now).nodes
    assert (len(nodes), {node.gpus for node in nodes}) == (100, {8})


@pytest.mark.django_db
def test_a_second_import_of_the_same_file_adds_nothing_packed_or_not(trace):
    run(write(trace, GOOD))

    for path in (trace, packed(trace)):
        with pytest.raises(CommandError, match="already"):
            run(path)

    assert Arrival.objects.count() == 1


@pytest.mark.django_db
def test_another_file_and_another_cluster_are_welcome(trace, tmp_path):
    run(write(trace, GOOD))

    run(trace, "--cluster", "other")
    run(write(tmp_path / "more.csv", GOOD, "2017-10-10,60,1,60,vc"))

    assert Cluster.objects.get(name="philly").arrivals.count() == 3
    assert Cluster.objects.get(name="other").arrivals.count() == 1


@pytest.mark.django_db
def test_a_trace_from_before_a_clusters_present_is_refused(trace, tmp_path):
    run(write(trace, GOOD))

    with pytest.raises(CommandError, match="after the trace's first submission"):
        run(write(tmp_path / "older.csv", "2016-01-01,60,1,60,vc"))

    assert Arrival.objects.count() == 1


@pytest.mark.django_db
def test_a_file_that_breaks_off_leaves_nothing_behind(trace):
    whole = packed(write(trace, *[f"2017-10-09 07:01:55,{n},1,60,vc" for n in range(5_000)]))
    whole.write_bytes(whole.read_bytes()[:-400])

    with pytest.raises(CommandError, match=r"truncated gzip\. Nothing was imported"):
        run(whole)

    assert_nothing_written()


@pytest.mark.django_db
def test_a_file_without_a_job_leaves_nothing_behind(trace):
    told = run(write(trace, "2017-10-09 07:01:55,60,0,0,vc"))

    assert (told["rows"], told["used"], told["refused"], told["jobs"]) == (1, 0, 1, 0)
    assert_nothing_written()


@pytest.mark.django_db
@pytest.mark.parametrize("name", ["no spaces please", "x" * 61, "a/b"])
def test_a_bad_name_of_a_cluster_is_one_sentence(trace, name):
    with pytest.raises(CommandError):
        run(write(trace, GOOD), "--cluster", name)

    assert_nothing_written()


@pytest.mark.django_db
def test_a_cluster_of_several_pools_is_refused(trace, cluster):
    with pytest.raises(Invalid, match="exactly one pool"):
        import_trace("philly", write(trace, GOOD), now=NOW, cluster_name=cluster.name)


@pytest.mark.django_db
def test_an_archived_cluster_is_refused(trace):
    add_cluster("old", kind="simulator", now=NOW, archived_at=NOW)

    with pytest.raises(Conflict, match="archived"):
        import_trace("philly", write(trace, GOOD), now=NOW, cluster_name="old")


def test_the_progress_is_told_from_start_to_end(trace, db):
    seen: list[tuple[int, int]] = []
    write(trace, *[GOOD] * 10_000)

    import_trace("philly", trace, now=NOW, progress=lambda read, size: seen.append((read, size)))

    size = trace.stat().st_size
    assert {of for _, of in seen} == {size}
    assert [read for read, _ in seen] == sorted(read for read, _ in seen)
    assert seen[-1] == (size, size)


@pytest.mark.parametrize(
    ("gpus", "members"),
    [(1, (1, 1)), (8, (1, 8)), (9, (9, 1)), (12, (12, 1)), (16, (2, 8)), (128, (16, 8))],
)
def test_larger_jobs_are_gangs_of_whole_members(gpus, members):
    assert members_of(gpus) == members


@given(st.floats(0, 4 * 365 * 86_400))
def test_a_limit_is_at_least_twice_the_run_time_and_no_tighter_step_would_do(seconds):
    limit = limit_for(seconds)

    assert limit >= 2 * seconds
    assert limit < 3_652 * 86_400
    assert not any(2 * seconds <= step < limit for step in LIMITS)


@pytest.mark.django_db
def test_philly_is_read_whole(shared):
    path = shared / "traces" / "philly" / "philly.csv.gz"
    if not path.exists():
        pytest.skip("../shared/traces/philly is absent")

    told = run(path)

    # The 82,248th line after the header is blank: the file ends with an empty line.
    assert (told["rows"], told["used"], told["left_out"], told["refused"]) == (82_248, 82_247, 1, 0)
    assert told["reasons"]["left_out"]["a blank line"]["lines"] == [82_249]
    assert told["jobs"] == Arrival.objects.count() == 82_247
    assert round(told["gpu_hours"]) == 978_078
    assert Tenant.objects.filter(parent__name="philly").count() == 15
