"""Threads by default, from trees of files such as the kernel shows them."""

import os
from pathlib import Path

import pytest

from muser.devices.cpu import threads
from muser.devices.cpu.threads import default_threads, quota
from muser.kernels import MAX_THREADS

V2 = "30 23 0:27 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"
V1 = "31 23 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct"


@pytest.fixture
def tree(tmp_path):
    """Writes files below a root of its own: a path to its text."""

    def write(files):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return write


@pytest.fixture(autouse=True)
def processors(monkeypatch):
    monkeypatch.setattr(threads, "allowed_processors", lambda: 8)


def v2(group, **limits):
    """One process in `group`; folder below the mount to the text of its cpu.max."""
    files = {"proc/self/cgroup": f"0::{group}\n", "proc/self/mountinfo": V2 + "\n"}
    for folder, text in limits.items():
        files[f"sys/fs/cgroup/{folder.replace('_', '/')}/cpu.max"] = text
    return files


def v1(group, mount=V1, **limits):
    files = {
        "proc/self/cgroup": f"4:memory:/other\n1:cpu,cpuacct:{group}\n0::/\n",
        "proc/self/mountinfo": mount + "\n",
    }
    for folder, granted in limits.items():
        place = f"sys/fs/cgroup/cpu,cpuacct/{folder.replace('_', '/')}"
        files[f"{place}/cpu.cfs_quota_us"] = f"{granted}\n"
        files[f"{place}/cpu.cfs_period_us"] = "100000\n"
    return files


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("max 100000\n", 8),
        ("200000 100000\n", 2),
        ("250000 100000\n", 3),
        ("240000 100000\n", 2),
        ("150000 100000\n", 2),
        ("20000 100000\n", 1),
        ("99999999 100000\n", 8),
        ("3000 1000\n", 3),
        ("0 100000\n", 8),
        ("200000 0\n", 8),
        ("nonsense\n", 8),
        ("", 8),
    ],
)
def test_quota_of_version_2(tree, text, expected):
    assert default_threads(tree(v2("/a", a=text))) == expected


def test_the_least_of_all_groups_above_holds(tree):
    root = tree(v2("/a/b/c", a="200000 100000", a_b="max 100000", a_b_c="400000 100000"))
    assert quota(root) == 2.0


def test_a_group_beside_the_way_up_does_not_count(tree):
    assert quota(tree(v2("/a/b", a_other="100000 100000"))) is None


def test_the_mount_itself_may_have_the_limit(tree):
    """What a container sees of version 2: its own group is the top."""
    root = tree(v2("/") | {"sys/fs/cgroup/cpu.max": "300000 100000\n"})
    assert quota(root) == 3.0


def test_quota_of_version_1(tree):
    assert quota(tree(v1("/a/b", a="150000", a_b="-1"))) == 1.5
    assert default_threads(tree({})) == 2


def test_a_container_names_its_group_from_outside(tree):
    """Version 1 without a namespace: the path is the host's, the mount shows it as its top."""
    mount = V1.replace("0:29 / /sys", "0:29 /docker/f00 /sys")
    files = v1("/docker/f00", mount)
    files["sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us"] = "400000\n"
    files["sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us"] = "100000\n"
    assert quota(tree(files)) == 4.0


def test_a_mount_with_a_space_in_its_name(tree):
    mount = r"30 23 0:27 / /sys/my\040groups rw - cgroup2 cgroup2 rw"
    files = {"proc/self/cgroup": "0::/\n", "proc/self/mountinfo": mount}
    assert quota(tree(files | {"sys/my groups/cpu.max": "100000 100000"})) == 1.0


def test_a_path_that_leads_out_stays_inside(tree):
    files = v2("/../../../..") | {"cpu.max": "100000 100000"}
    assert quota(tree(files)) is None


@pytest.mark.parametrize("damage", ["", ":", "0", "no\nsense\n", "0::", "\xff:::\n"])
def test_other_words_than_the_kernels_set_no_limit(tree, damage):
    assert quota(tree({"proc/self/cgroup": damage, "proc/self/mountinfo": damage})) is None


def test_without_control_groups(tmp_path: Path):
    assert default_threads(tmp_path) == 8


def test_never_more_than_the_device_takes(tmp_path, monkeypatch):
    monkeypatch.setattr(threads, "allowed_processors", lambda: 4096)
    assert default_threads(tmp_path) == MAX_THREADS


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no affinity")
def test_affinity_counts(tmp_path, monkeypatch):
    monkeypatch.undo()
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert default_threads(tmp_path) == 1
    finally:
        os.sched_setaffinity(0, before)
